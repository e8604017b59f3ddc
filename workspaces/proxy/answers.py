"""Short answers of the proxy itself, where no page of Django's can speak: redirects, refusals, a workspace that does not answer.

JSON in the API's form, a small page of its own for a browser that wants HTML, both in the visitor's language; also as the
answer to a WebSocket handshake. Decides nothing.
"""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from django.utils import translation
from django.utils.html import escape

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

_PAGE = """<!doctype html>
<html lang="{language}"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">{refresh}
<title>CodeHub</title><style>:root{{color-scheme:light dark}}body{{font:16px/1.5 system-ui,sans-serif;max-width:34rem;margin:18vh auto 0;padding:0 1.5rem}}
h1{{font-size:1.3rem}}p{{opacity:.75}}</style></head><body><h1>{detail}</h1><p>CodeHub · {status}</p></body></html>"""


def language_of(headers: list[tuple[bytes, bytes]]) -> str:
    """The visitor's language as the browser names it; there is no session to ask here."""
    wanted = next((value for name, value in headers if name == b"accept-language"), b"").decode("latin-1")
    for part in wanted.split(","):
        try:
            return translation.get_supported_language_variant(part.partition(";")[0].strip())
        except LookupError:
            continue
    return "en"


async def redirect(send: Send, location: str, *, extra: list[tuple[bytes, bytes]] | None = None) -> None:
    headers = [
        (b"location", location.encode("latin-1")),
        (b"content-length", b"0"),
        (b"cache-control", b"no-store"),
        (b"referrer-policy", b"no-referrer"),
        *(extra or []),
    ]
    await send({"type": "http.response.start", "status": 302, "headers": headers})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def answer(
    scope: Scope, send: Send, status: int, code: str, detail: str, *, retry_after: int = 0, facts: dict[str, Any] | None = None
) -> None:
    """`detail` is a sentence to translate; a page that asks to be tried again does so by itself."""
    language = language_of(scope["headers"])
    with translation.override(language):
        sentence = translation.gettext(detail) % (facts or {})
    headers = [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]
    if retry_after:
        headers.append((b"retry-after", b"%d" % retry_after))
    accept = next((value for name, value in scope["headers"] if name == b"accept"), b"")
    if scope["type"] == "http" and b"text/html" in accept:
        refresh = f'<meta http-equiv="refresh" content="{retry_after}">' if retry_after and scope["method"] == "GET" else ""
        body = _PAGE.format(language=language, refresh=refresh, detail=escape(sentence), status=status).encode()
        headers.append((b"content-type", b"text/html; charset=utf-8"))
        headers.append((b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"))
    else:
        body = json.dumps({"detail": sentence, "code": code}).encode()
        headers.append((b"content-type", b"application/json"))
    await respond(scope, send, status, headers, body)


async def respond(scope: Scope, send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    kind = "websocket.http.response" if scope["type"] == "websocket" else "http.response"
    framed = [(name, value) for name, value in headers if name != b"content-length"]
    framed.append((b"content-length", b"%d" % len(body)))
    await send({"type": f"{kind}.start", "status": status, "headers": framed})
    await send({"type": f"{kind}.body", "body": body, "more_body": False})
