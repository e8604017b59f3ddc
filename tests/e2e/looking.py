"""How the browser tests look at a page: pictures in both themes and two widths, and what axe-core finds.

A page is loaded once: the theme is an attribute and the width a size of the window, so neither needs another request.
"""

import base64
from pathlib import Path

from playwright.sync_api import Page

SCREENS = Path(__file__).resolve().parents[2] / "artifacts" / "screens"
# Neighbours differ in one thing only.
VIEWS = (("light", 1440), ("light", 390), ("dark", 390), ("dark", 1440))
# axe is the slow part: each page in each theme once, at either width and in either language.
CHECKED = {("en", "light", 1440), ("ko", "dark", 390)}
_AXE = (Path(__file__).parent / "vendor" / "axe" / "axe.min.js").read_text()


class Looks:
    """Pictures and complaints of one visit to many pages."""

    def __init__(self, language: str) -> None:
        self.language = language
        self.complaints: dict[str, list[str]] = {}
        SCREENS.mkdir(parents=True, exist_ok=True)

    def take(self, page: Page, name: str, *, whole: bool = True) -> None:
        """Four pictures of the page as it is now. Not `whole`: what is in the window, for dialogs that stand in it."""
        # A change of theme must not be caught half way.
        page.emulate_media(reduced_motion="reduce")
        devtools = page.context.new_cdp_session(page)
        for theme, width in VIEWS:
            page.set_viewport_size({"width": width, "height": 900})
            page.evaluate("theme => { document.documentElement.dataset.theme = theme }", theme)
            height, sideways = page.evaluate(
                "[document.documentElement.scrollHeight, document.documentElement.scrollWidth > document.documentElement.clientWidth]"
            )
            area = {"x": 0, "y": 0, "width": width, "height": height if whole else 900, "scale": 1}
            shot = devtools.send(
                "Page.captureScreenshot", {"format": "png", "optimizeForSpeed": True, "captureBeyondViewport": whole, "clip": area}
            )
            title = f"{name}-{self.language}-{theme}-{width}"
            (SCREENS / f"{title}.png").write_bytes(base64.b64decode(shot["data"]))
            found = findings(page) if (self.language, theme, width) in CHECKED else []
            if sideways:
                found.append("the page scrolls sideways")
            if found:
                self.complaints[title] = found
        devtools.detach()


def findings(page: Page) -> list[str]:
    """What axe-core complains about. Evaluated by the debugger, which the page's policy does not bind."""
    page.evaluate(_AXE)
    # Without preloading: axe would write a style into the page, which the page's policy rightly refuses.
    result = page.evaluate("axe.run(document, {resultTypes: ['violations'], preload: false})")
    return [f"{found['id']}: {found['help']} ({node['html'][:160]})" for found in result["violations"] for node in found["nodes"]]


def tab_to(page: Page, text: str, *, limit: int = 80) -> None:
    """Press Tab until the focus is on what is named so, as somebody without a mouse would."""
    name = """() => {
        const at = document.activeElement;
        if (!at.matches("a, button, input, select, textarea, summary")) return "";
        return [at.innerText, at.ariaLabel, at.name, at.value, at.labels?.[0]?.innerText].filter(Boolean).join(" ").replace(/\\s+/g, " ");
    }"""
    for _step in range(limit):
        page.keyboard.press("Tab")
        if text in str(page.evaluate(name)):
            return
    raise AssertionError(f"the keyboard never reached {text!r}")
