"""Writes `docs/settings.md` from the typed configuration: `python -m codehub.settings_docs`.

Owns the page's form. A test fails when the page and the configuration differ, so it is never edited by hand.
"""

from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from codehub.config import Config

PAGE = Path(__file__).resolve().parent.parent / "docs" / "settings.md"
HEAD = """# Settings

Every setting is one environment variable. A value that is not allowed stops the start, and the message names the variable.
This page is written by `python -m codehub.settings_docs` from `codehub/config.py`.

| variable | default | allowed | what it does |
|---|---|---|---|
"""
BOUNDS = {"ge": "≥ {}", "gt": "> {}", "le": "≤ {}", "lt": "< {}", "min_length": "at least {} characters", "max_length": "at most {} characters", "pattern": "like `{}`"}  # fmt: skip
NAMES = {int: "whole number", float: "number", bool: "`true` or `false`", str: "text", Path: "path", list: "comma-separated"}


def page() -> str:
    return HEAD + "".join(_row(name, field) for name, field in Config.model_fields.items())


def _row(name: str, field: FieldInfo) -> str:
    cells = [f"`{name.upper()}`", _default(field.default), _allowed(field), field.description or ""]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _default(value: Any) -> str:
    if isinstance(value, list):
        value = ",".join(value)
    if isinstance(value, bool):
        value = str(value).lower()
    return f"`{value}`" if value != "" else "empty"


def _allowed(field: FieldInfo) -> str:
    annotation = field.annotation
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(annotation))
    kind: Any = get_origin(annotation) or annotation
    words = [NAMES[kind]]
    bounds: dict[str, Any] = {}
    for limit in field.metadata:
        for name in BOUNDS:
            value = getattr(limit, name, None)
            if value is not None:
                # A type and its field may both set a bound: both hold, so the tighter one is the true one.
                bounds[name] = min(value, bounds.get(name, value)) if name in {"le", "lt"} else value
    words += [text.format(bounds[name]) for name, text in BOUNDS.items() if name in bounds]
    return ", ".join(words)


if __name__ == "__main__":
    PAGE.write_text(page())
