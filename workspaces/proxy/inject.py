"""Adds one script element to the IDE's page, so that real use can be told from an open tab. Pure but for reading the answer.

Touches only the top document of a navigation, uncompressed HTML, and only when a head is found early; everything else passes
as it came. The script is an external file of the same origin: a page's Content-Security-Policy with 'self' lets it run.
"""

import re

from workspaces.proxy.headers import Headers
from workspaces.proxy.upstream import Connection

_SEARCH_BYTES = 64 * 1024
_HEAD_END = re.compile(rb"</head\s*>", re.IGNORECASE)
_HEAD_START = re.compile(rb"<head(\s[^>]*)?>", re.IGNORECASE)


class Injection:
    """The element to add, for one exchange."""

    __slots__ = ("tag",)

    def __init__(self, script_path: bytes) -> None:
        self.tag = b'<script src="%b" async></script>' % script_path

    def wants(self, status: int, headers: Headers) -> bool:
        """Whether this answer is a plain HTML page."""
        fields = dict(headers)
        media = fields.get(b"content-type", b"").partition(b";")[0].strip().lower()
        return status == 200 and media == b"text/html" and fields.get(b"content-encoding", b"identity").lower() == b"identity"

    async def apply(self, connection: Connection, headers: Headers) -> tuple[bytes, Headers]:
        """The first part of the page with the element in it, and headers that fit its new length."""
        page = b""
        while len(page) < _SEARCH_BYTES and connection.is_pending():
            page += await connection.chunk()
            if _HEAD_END.search(page):
                break
        place = _HEAD_END.search(page)
        at = place.start() if place else None
        if at is None and (start := _HEAD_START.search(page)):
            at = start.end()
        if at is None:
            return page, headers
        changed = [
            (name, b"%d" % (int(value) + len(self.tag))) if name == b"content-length" else (name, value)
            for name, value in headers
            # The entity is no longer the one these describe.
            if name not in (b"etag", b"content-md5", b"digest", b"accept-ranges")
        ]
        return page[:at] + self.tag + page[at:], changed
