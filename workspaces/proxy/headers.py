"""Which headers cross the proxy, in which direction, and how they change on the way. Pure: bytes in, bytes out.

The other side runs untrusted code: no cookie, CSRF token or credential of ours may reach it, and nothing it answers may touch
CodeHub's cookies or the shared origin. The same rules hold for WebSocket handshakes. Must not do I/O.
"""

from dataclasses import dataclass
from urllib.parse import urlsplit

Headers = list[tuple[bytes, bytes]]

OWN_COOKIE = b"codehub_ws"
_OUR_COOKIES = frozenset({b"codehub_session", b"codehub_csrf", b"codehub_language", OWN_COOKIE, b"csrftoken", b"sessionid", b"messages"})
_OUR_COOKIE_PREFIXES = (b"codehub_", b"__host-codehub", b"__secure-codehub")

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    }
)
# Set by us, by our framing, or never passed on. `x-csrftoken` is the header Django reads its token from.
_DROPPED_FROM_REQUEST = HOP_BY_HOP | {
    b"host",
    b"content-length",
    b"expect",
    b"authorization",
    b"forwarded",
    b"via",
    b"x-forwarded",
    b"x-forwarded-for",
    b"x-forwarded-host",
    b"x-forwarded-port",
    b"x-forwarded-prefix",
    b"x-forwarded-proto",
    b"x-forwarded-protocol",
    b"x-forwarded-scheme",
    b"x-forwarded-server",
    b"x-forwarded-ssl",
    b"x-forwarded-uri",
    b"x-forwarded-user",
    b"x-original-url",
    b"x-original-host",
    b"x-rewrite-url",
    b"x-real-ip",
    b"x-client-ip",
    b"x-cluster-client-ip",
    b"true-client-ip",
    b"x-script-name",
    b"x-csrftoken",
}
_WEBSOCKET_HANDSHAKE = frozenset(
    {
        b"sec-websocket-key",
        b"sec-websocket-version",
        b"sec-websocket-accept",
        b"sec-websocket-extensions",
        b"sec-websocket-protocol",
    }
)
# Orders to a web server in front, and reach beyond the path a service worker was served from.
_DROPPED_FROM_RESPONSE = HOP_BY_HOP | {
    b"service-worker-allowed",
    b"x-accel-redirect",
    b"x-accel-buffering",
    b"x-accel-charset",
    b"x-accel-expires",
    b"x-accel-limit-rate",
    b"x-sendfile",
    b"x-lighttpd-send-file",
    b"x-reproxy-url",
}
# These act on the whole origin, or the whole host name, not on the one answer that carries them.
_ORIGIN_WIDE = frozenset(
    {
        b"clear-site-data",
        b"strict-transport-security",
        b"public-key-pins",
        b"public-key-pins-report-only",
        b"expect-ct",
        b"alt-svc",
        b"report-to",
        b"reporting-endpoints",
        b"nel",
        b"accept-ch",
        b"critical-ch",
        b"origin-agent-cluster",
        b"set-login",
        b"origin-trial",
        b"supports-loading-mode",
        b"speculation-rules",
    }
)
# HSTS and Alt-Svc are remembered per host or port: on loopback they would cover the dashboard's name as well.
_HOST_WIDE = frozenset({b"strict-transport-security", b"public-key-pins", b"public-key-pins-report-only", b"expect-ct", b"alt-svc"})


@dataclass(frozen=True, slots=True)
class Hop:
    """What the upstream is told about the request's way here, and what its answers are mapped back to."""

    client: str
    scheme: str
    host: bytes
    prefix: bytes = b""
    """Public path prefix (`/w/{id}`), empty on the workspace's own origin."""
    base: bytes = b""
    """On its own origin: the base path an image insists on although no visitor sees it (`/w/{id}`)."""
    upstream_netloc: str = ""
    """Where the upstream believes to be, to recognise its own absolute redirects."""

    @property
    def shared_origin(self) -> bool:
        return bool(self.prefix)


def listed_in_connection(headers: Headers) -> frozenset[bytes]:
    """Names that a Connection header declares to be for one hop only."""
    names: set[bytes] = set()
    for name, value in headers:
        if name == b"connection":
            names.update(token.strip().lower() for token in value.split(b","))
    return frozenset(names)


def request_headers(headers: Headers, hop: Hop, *, websocket: bool = False, identity: bool = False) -> Headers:
    """The headers for the upstream. `headers` have lower-case names. `identity` asks for an uncompressed answer."""
    listed = listed_in_connection(headers)
    kept: Headers = [(b"host", hop.host)]
    cookies: list[bytes] = []
    for name, value in headers:
        # `x_forwarded_for` becomes X-Forwarded-For in many servers: judge it as what it will be taken for.
        judged = name.replace(b"_", b"-") if b"_" in name else name
        if judged in _DROPPED_FROM_REQUEST or judged in listed:
            continue
        if judged == b"cookie":
            cookies.append(value)
        elif (websocket and judged in _WEBSOCKET_HANDSHAKE) or (
            identity and judged in (b"accept-encoding", b"if-none-match", b"if-modified-since", b"range", b"if-range")
        ):
            continue
        else:
            kept.append((name, value))
    if cookies:
        left = filter_cookies(b"; ".join(cookies))
        if left:
            kept.append((b"cookie", left))
    if identity:
        kept.append((b"accept-encoding", b"identity"))
    kept.append((b"x-forwarded-for", hop.client.encode("latin-1", "replace")))
    kept.append((b"x-forwarded-proto", hop.scheme.encode("latin-1")))
    kept.append((b"x-forwarded-host", hop.host))
    if hop.prefix:
        kept.append((b"x-forwarded-prefix", hop.prefix))
    return kept


def filter_cookies(value: bytes) -> bytes:
    """A Cookie header without ours. Anything that a lenient parser could take for one of ours goes as well."""
    kept = [pair for pair in (part.strip() for part in value.split(b";")) if pair and not is_our_cookie(pair.partition(b"=")[0])]
    return b"; ".join(kept)


def is_our_cookie(name: bytes) -> bool:
    """Judged without quotes, blanks and case, as a careless reader would."""
    plain = name.strip(b" \t\"'\x00").lower()
    return plain in _OUR_COOKIES or plain.startswith(_OUR_COOKIE_PREFIXES)


def response_headers(headers: Headers, hop: Hop) -> Headers:
    """The headers for the browser. `headers` have lower-case names. Content-Length is kept: the caller frames by it."""
    listed = listed_in_connection(headers)
    shared = hop.shared_origin
    kept: Headers = []
    for name, value in headers:
        if name in _DROPPED_FROM_RESPONSE or name in listed:
            continue
        if name == b"set-cookie":
            cookie = rewrite_set_cookie(value, hop)
            if cookie is not None:
                kept.append((name, cookie))
        elif name in (b"location", b"content-location"):
            kept.append((name, rewrite_location(value, hop)))
        elif name in _HOST_WIDE or (shared and name in _ORIGIN_WIDE):
            continue
        else:
            kept.append((name, value))
    return kept


def rewrite_set_cookie(value: bytes, hop: Hop) -> bytes | None:
    """The cookie bound to this host (and, on the shared origin, to the workspace's path), or None when it must not be set."""
    pair, *attributes = value.split(b";")
    name, equals, content = pair.partition(b"=")
    if not equals:
        # A nameless cookie: browsers send its value bare, where it can pose as any `name=value`.
        return None
    plain = name.strip()
    if not plain or is_our_cookie(plain) or (plain.lower().startswith(b"__host-") and hop.shared_origin):
        return None
    path = b"/"
    kept: list[bytes] = []
    for attribute in attributes:
        key, _, setting = attribute.strip().partition(b"=")
        key = key.strip().lower()
        if key == b"domain":
            continue
        if key == b"path":
            path = setting.strip() or b"/"
            continue
        kept.append(attribute.strip())
    if hop.shared_origin:
        path = public_path(path, hop) if path.startswith(b"/") else hop.prefix + b"/"
        if path == hop.prefix:
            path += b"/"
    elif hop.base and (path == hop.base or path.startswith(hop.base + b"/")):
        # Pages are shown without the base here: bound to it, the cookie would be out of their scripts' sight.
        path = path[len(hop.base) :] or b"/"
    return b"; ".join([plain + b"=" + content.strip(), *(attribute for attribute in kept if attribute), b"Path=" + path])


def public_path(path: bytes, hop: Hop) -> bytes:
    """A path the upstream gave, as browsers must ask for it. Stays below the prefix whatever it was."""
    if not hop.prefix or path == hop.prefix or path.startswith((hop.prefix + b"/", hop.prefix + b"?")):
        if b"/.." not in path and b"%2e" not in path.lower() and b"\\" not in path:
            return path
        return path if not hop.prefix else hop.prefix + b"/"
    return hop.prefix + path


def rewrite_location(value: bytes, hop: Hop) -> bytes:
    """A redirect to itself is mapped to the public form; one that leads elsewhere is the user's own affair."""
    try:
        parts = urlsplit(value.decode("latin-1").strip())
        netloc = parts.netloc
    except ValueError:
        return hop.prefix + b"/"
    if netloc:
        own = {hop.host.decode("latin-1").lower(), hop.upstream_netloc.lower()}
        if parts.scheme not in ("", "http", "https") or netloc.lower() not in own:
            return value
        path = (parts.path or "/").encode("latin-1")
    elif parts.scheme or not value.strip().startswith(b"/"):
        return value
    else:
        path = parts.path.encode("latin-1")
    query = b"?" + parts.query.encode("latin-1") if parts.query else b""
    fragment = b"#" + parts.fragment.encode("latin-1") if parts.fragment else b""
    return public_path(path, hop) + query + fragment


def upstream_path(path: bytes, *, hop: Hop, keeps: bytes) -> bytes:
    """The path to ask the upstream for. `keeps` is the base path an image insists on (`/w/{id}`), or empty.

    On its own origin there is no prefix: a path that lacks the base gets it, one that has it goes as it is.
    """
    if not keeps:
        return path or b"/"
    if not hop.prefix and (path == keeps or path.startswith(keeps + b"/")):
        return path
    return keeps + (path or b"/")


def same_origin(origin: bytes, *, scheme: str, host: bytes) -> bool:
    """Whether an Origin header names exactly this scheme, host and port."""
    try:
        parts = urlsplit(origin.decode("latin-1"))
        named, asked = _host_and_port(parts.netloc, parts.scheme), _host_and_port(host.decode("latin-1"), scheme)
    except ValueError:
        return False
    return bool(named[0]) and parts.scheme == scheme and named == asked and not parts.path and not parts.query


def _host_and_port(netloc: str, scheme: str) -> tuple[str, int]:
    parts = urlsplit(f"//{netloc}")
    return (parts.hostname or "").lower(), parts.port or (443 if scheme == "https" else 80)
