"""The header rules, as a table: what crosses the proxy, what does not, and what changes on the way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workspaces.proxy.headers import (
    Headers,
    Hop,
    filter_cookies,
    is_our_cookie,
    request_headers,
    response_headers,
    rewrite_location,
    rewrite_set_cookie,
    same_origin,
    upstream_path,
)

PREFIX = b"/w/3b1f8a52-0d6f-4f33-9f0e-2f8f2f3f4f5f"
PATH = Hop(client="10.0.0.7", scheme="https", host=b"code.example.org", prefix=PREFIX, upstream_netloc="172.18.0.2:8080")
OWN = Hop(client="10.0.0.7", scheme="https", host=b"abc.ws.example.org", upstream_netloc="172.18.0.2:8080")


def sent(headers: Headers, hop: Hop = PATH, **options: bool) -> dict[bytes, bytes]:
    return dict(request_headers(headers, hop, **options))


@pytest.mark.parametrize(
    "name",
    [
        b"connection",
        b"keep-alive",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"authorization",
        b"x-csrftoken",
        b"expect",
        b"forwarded",
        b"x-real-ip",
        b"x_forwarded_for",
        b"X_Forwarded_Proto".lower(),
    ],
)
def test_headers_of_one_hop_and_credentials_never_reach_the_workspace(name: bytes) -> None:
    assert name not in sent([(name, b"close" if name == b"connection" else b"x")])


def test_headers_named_in_connection_stay_on_their_hop() -> None:
    assert sent([(b"connection", b"close, X-Hop"), (b"x-hop", b"1"), (b"x-end", b"2")]).keys() & {b"x-hop", b"x-end"} == {b"x-end"}


def test_forwarded_headers_are_ours_whatever_came_in() -> None:
    spoofed: Headers = [(b"x-forwarded-for", b"6.6.6.6"), (b"x-forwarded-host", b"evil"), (b"x-forwarded-proto", b"gopher")]
    got = sent([*spoofed, (b"x-forwarded-prefix", b"/evil")])
    assert got[b"x-forwarded-for"] == b"10.0.0.7"
    assert got[b"x-forwarded-proto"] == b"https"
    assert got[b"x-forwarded-host"] == b"code.example.org"
    assert got[b"x-forwarded-prefix"] == PREFIX
    assert b"x-forwarded-prefix" not in sent(spoofed, OWN)


def test_cookies_of_ours_are_taken_out_and_the_others_stay() -> None:
    got = sent([(b"cookie", b"a=1; codehub_session=s; b=2"), (b"cookie", b"codehub_csrf=t; c=3; codehub_ws=w; codehub_theme=dark")])
    assert got[b"cookie"] == b"a=1; b=2; c=3"
    assert b"cookie" not in sent([(b"cookie", b"codehub_session=s")])


@pytest.mark.parametrize(
    "name",
    [
        b"codehub_session",
        b"CodeHub_Session",
        b'"codehub_session"',
        b" codehub_csrf ",
        b"__Host-codehub_session",
        b"csrftoken",
        b"\x00codehub_ws",
    ],
)
def test_cookie_names_are_judged_as_a_careless_reader_would(name: bytes) -> None:
    assert is_our_cookie(name)


@given(
    st.lists(st.tuples(st.text("abcdefgh_-", min_size=1, max_size=20), st.text("abc=123", max_size=20)), max_size=10), st.integers(0, 10)
)
def test_no_arrangement_of_cookies_lets_the_session_through(pairs: list[tuple[str, str]], position: int) -> None:
    parts = [f"{name}={value}" for name, value in pairs]
    parts.insert(min(position, len(parts)), "codehub_session=secret-of-ours")
    assert b"secret-of-ours" not in filter_cookies("; ".join(parts).encode())
    assert b"secret-of-ours" not in filter_cookies(";".join(parts).encode())


def test_navigation_asks_for_an_uncompressed_whole_page() -> None:
    got = sent([(b"accept-encoding", b"br"), (b"if-none-match", b"x"), (b"range", b"bytes=0-")], identity=True)
    assert got[b"accept-encoding"] == b"identity"
    assert not got.keys() & {b"if-none-match", b"range"}


def test_websocket_handshake_is_made_anew_on_each_hop() -> None:
    handshake: Headers = [
        (b"sec-websocket-key", b"k"),
        (b"sec-websocket-extensions", b"e"),
        (b"sec-websocket-version", b"13"),
        (b"origin", b"o"),
    ]
    assert sent(handshake, websocket=True).keys() & {name for name, _ in handshake} == {b"origin"}


def received(headers: Headers, hop: Hop = PATH) -> dict[bytes, bytes]:
    return dict(response_headers(headers, hop))


@pytest.mark.parametrize("hop", [PATH, OWN])
@pytest.mark.parametrize(
    "name",
    [
        b"service-worker-allowed",
        b"x-accel-redirect",
        b"x-sendfile",
        b"connection",
        b"transfer-encoding",
        b"strict-transport-security",
        b"alt-svc",
    ],
)
def test_answers_never_carry_orders_beyond_themselves(name: bytes, hop: Hop) -> None:
    assert name not in received([(name, b"x")], hop)


@pytest.mark.parametrize("name", [b"clear-site-data", b"report-to", b"nel", b"origin-agent-cluster", b"accept-ch"])
def test_headers_that_act_on_a_whole_origin_are_kept_off_the_shared_one(name: bytes) -> None:
    assert name not in received([(name, b"x")], PATH)
    assert name in received([(name, b"x")], OWN)


@pytest.mark.parametrize(
    ("given_cookie", "expected"),
    [
        (b"a=1", b"a=1; Path=" + PREFIX + b"/"),
        (b"a=1; Path=/", b"a=1; Path=" + PREFIX + b"/"),
        (b"a=1; path=/sub; HttpOnly", b"a=1; HttpOnly; Path=" + PREFIX + b"/sub"),
        (b"a=1; Domain=example.org; Secure", b"a=1; Secure; Path=" + PREFIX + b"/"),
        (b"a=1; Path=" + PREFIX + b"/lab", b"a=1; Path=" + PREFIX + b"/lab"),
        (b"a=1; Path=" + PREFIX + b"/../", b"a=1; Path=" + PREFIX + b"/"),
        (b"a=1; Path=relative", b"a=1; Path=" + PREFIX + b"/"),
        (b"codehub_session=x; Path=/", None),
        (b"Codehub_CSRF=x", None),
        (b"__Host-codehub_session=x", None),
        (b"__Host-other=x; Path=/; Secure", None),
        (b"csrftoken=x", None),
        (b"nameless", None),
        (b"=codehub_session=x", None),
    ],
)
def test_cookies_of_a_workspace_are_bound_to_its_path_on_the_shared_origin(given_cookie: bytes, expected: bytes | None) -> None:
    assert rewrite_set_cookie(given_cookie, PATH) == expected


def test_cookies_on_the_own_origin_are_bound_to_the_host() -> None:
    assert rewrite_set_cookie(b"a=1; Domain=ws.example.org; Path=/x", OWN) == b"a=1; Path=/x"
    assert rewrite_set_cookie(b"codehub_ws=stolen", OWN) is None


def test_cookies_of_an_image_with_a_base_of_its_own_are_seen_by_its_pages() -> None:
    hop = Hop(client="10.0.0.7", scheme="https", host=b"abc.ws.example.org", base=PREFIX)
    assert rewrite_set_cookie(b"_xsrf=1; Path=" + PREFIX + b"/", hop) == b"_xsrf=1; Path=/"
    assert rewrite_set_cookie(b"_xsrf=1; Path=" + PREFIX + b"/lab", hop) == b"_xsrf=1; Path=/lab"
    assert rewrite_set_cookie(b"_xsrf=1; Path=/other", hop) == b"_xsrf=1; Path=/other"


@pytest.mark.parametrize(
    ("location", "in_path_form", "on_own_origin"),
    [
        (b"/login", PREFIX + b"/login", b"/login"),
        (b"/", PREFIX + b"/", b"/"),
        (PREFIX + b"/lab?x#y", PREFIX + b"/lab?x#y", PREFIX + b"/lab?x#y"),
        (b"relative/path", b"relative/path", b"relative/path"),
        (b"http://172.18.0.2:8080/x?y=1", PREFIX + b"/x?y=1", b"/x?y=1"),
        (b"https://elsewhere.example/x", b"https://elsewhere.example/x", b"https://elsewhere.example/x"),
        (b"//elsewhere.example/x", b"//elsewhere.example/x", b"//elsewhere.example/x"),
        (b"http://[", PREFIX + b"/", b"/"),
        (PREFIX + b"/../../admin/", PREFIX + b"/", PREFIX + b"/../../admin/"),
    ],
)
def test_redirects_of_a_workspace_to_itself_stay_in_it(location: bytes, in_path_form: bytes, on_own_origin: bytes) -> None:
    assert rewrite_location(location, PATH) == in_path_form
    assert rewrite_location(location, OWN) == on_own_origin


def test_redirect_to_the_public_name_stays_below_the_prefix() -> None:
    assert rewrite_location(b"https://code.example.org/admin/", PATH) == PREFIX + b"/admin/"


@pytest.mark.parametrize(
    ("path", "hop", "keeps", "expected"),
    [
        (b"/a", PATH, b"", b"/a"),
        (b"", PATH, b"", b"/"),
        (b"/lab", PATH, PREFIX, PREFIX + b"/lab"),
        (b"", PATH, PREFIX, PREFIX + b"/"),
        (b"/", OWN, PREFIX, PREFIX + b"/"),
        (b"/lab", OWN, PREFIX, PREFIX + b"/lab"),
        (PREFIX + b"/lab", OWN, PREFIX, PREFIX + b"/lab"),
    ],
)
def test_images_that_keep_the_prefix_get_it_once(path: bytes, hop: Hop, keeps: bytes, expected: bytes) -> None:
    assert upstream_path(path, hop=hop, keeps=keeps) == expected


@pytest.mark.parametrize(
    ("origin", "fits"),
    [
        (b"https://code.example.org", True),
        (b"https://CODE.example.org", True),
        (b"https://code.example.org:443", True),
        (b"http://code.example.org", False),
        (b"https://code.example.org:444", False),
        (b"https://abc.code.example.org", False),
        (b"https://code.example.org.evil", False),
        (b"https://code.example.org/x", False),
        (b"null", False),
        (b"", False),
        (b"https://[", False),
        (b"https://code.example.org:port", False),
    ],
)
def test_origin_is_compared_with_scheme_host_and_port(origin: bytes, fits: bool) -> None:
    assert same_origin(origin, scheme="https", host=b"code.example.org") is fits
