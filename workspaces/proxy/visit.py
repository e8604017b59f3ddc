"""What a request says about itself: credential, whether a person is visiting, whether it comes from elsewhere. Pure.

Reads headers with lower-case names and decides nothing about access. Browsers send Sec-Fetch-*; where they are absent the older
signs (Origin, Accept) are used.
"""

from dataclasses import dataclass
from functools import lru_cache

from workspaces.proxy.headers import OWN_COOKIE, Headers, same_origin

SESSION_COOKIE = b"codehub_session"
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


@lru_cache(maxsize=2048)
def cookie_value(header: bytes, name: bytes) -> str:
    """The last cookie of that name: browsers send the most specific path first, and ours is set for `/`."""
    found = ""
    for part in header.split(b";"):
        key, _, value = part.strip().partition(b"=")
        if key == name:
            found = value.decode("latin-1").strip('"')
    return found


@dataclass(frozen=True, slots=True)
class Visit:
    """One request, seen from outside."""

    fields: dict[bytes, bytes]
    method: str
    scheme: str
    host: bytes

    @property
    def bearer(self) -> str:
        kind, _, token = self.fields.get(b"authorization", b"").partition(b" ")
        return token.strip().decode("latin-1") if kind.lower() == b"bearer" else ""

    @property
    def session(self) -> str:
        return cookie_value(self.fields.get(b"cookie", b""), SESSION_COOKIE)

    @property
    def own_cookie(self) -> str:
        return cookie_value(self.fields.get(b"cookie", b""), OWN_COOKIE)

    @property
    def accepts_html(self) -> bool:
        return b"text/html" in self.fields.get(b"accept", b"")

    @property
    def is_browser(self) -> bool:
        return self.fields.get(b"user-agent", b"").startswith(b"Mozilla/") or b"sec-fetch-mode" in self.fields

    @property
    def is_prefetch(self) -> bool:
        return any(b"prefetch" in self.fields.get(name, b"") for name in (b"sec-purpose", b"purpose", b"x-moz"))

    @property
    def is_navigation(self) -> bool:
        """A page opened in a tab of its own: not an image, a frame, a prefetch or a script's request."""
        if self.method not in ("GET", "HEAD") or self.is_prefetch:
            return False
        mode = self.fields.get(b"sec-fetch-mode")
        if mode is None:
            return self.accepts_html
        return mode == b"navigate" and self.fields.get(b"sec-fetch-dest", b"document") == b"document"

    @property
    def is_deliberate(self) -> bool:
        """Whether this may wake a workspace: a visit that no other site brought about, or an explicit call of a script."""
        if self.bearer:
            return self.method in ("GET", "HEAD") and not self.is_prefetch
        return self.is_navigation and self.fields.get(b"sec-fetch-site", b"none") in (b"none", b"same-origin", b"same-site")

    @property
    def is_foreign(self) -> bool:
        """Whether another site (or a sibling workspace) made the browser send this with our cookies. Visits are let in."""
        if self.is_navigation:
            return False
        site = self.fields.get(b"sec-fetch-site")
        if site is not None and site not in (b"same-origin", b"none"):
            return True
        origin = self.fields.get(b"origin")
        return origin is not None and self.method not in _SAFE and not same_origin(origin, scheme=self.scheme, host=self.host)

    @property
    def websocket_origin_fits(self) -> bool:
        """Scheme, host and port must be this host's. Browsers always send Origin, so a cookie without one is not theirs."""
        origin = self.fields.get(b"origin")
        if origin is None:
            return bool(self.bearer)
        return same_origin(origin, scheme=self.scheme, host=self.host)


def body_length(fields: dict[bytes, bytes]) -> int | None:
    """Bytes of the body: 0 when there is none, None when it comes in chunks of unknown total."""
    if b"transfer-encoding" in fields:
        return None
    return int(fields.get(b"content-length", b"0") or b"0")


def forwarded_hop(headers: Headers, *, peer: str, scheme: str, trusted: int) -> tuple[str, str]:
    """Client address and scheme, as far as trusted proxies vouch for them."""
    if not trusted:
        return peer, scheme
    chain = [part.strip() for name, value in headers if name == b"x-forwarded-for" for part in value.decode("latin-1").split(",")]
    proto = next((value for name, value in headers if name == b"x-forwarded-proto"), b"").decode("latin-1").strip().lower()
    client = chain[-trusted] if len(chain) >= trusted and chain[-trusted] else peer
    return client, proto if proto in ("http", "https") else scheme
