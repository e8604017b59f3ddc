"""Attacks on the wire: smuggling, odd heads, path tricks, spoofed hosts and forwarded headers, hostile answers."""

import json
import socket
from urllib.parse import quote

import pytest
import requests

from tests.integration.proxy_world import NAVIGATE, World
from tests.integration.test_proxy_http import state


def raw(world: World, data: bytes, *, seconds: float = 3) -> bytes:
    """Send bytes as they are; everything that comes back until the server closes or falls silent."""
    with socket.create_connection(("127.0.0.1", world.port)) as client:
        client.settimeout(seconds)
        client.sendall(data)
        answer = b""
        try:
            while piece := client.recv(65536):
                answer += piece
        except TimeoutError:
            return answer
        return answer


def head(world: World, *lines: str, method: str = "POST", path: str = "/echo") -> bytes:
    first = f"{method} /w/{world.workspace.pk}{path} HTTP/1.1"
    return "\r\n".join([first, f"Host: 127.0.0.1:{world.port}", f"Authorization: Bearer {world.token}", *lines, "", ""]).encode("latin-1")


SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize(
    "lines",
    [
        ["Content-Length: 5", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: chunked", "Content-Length: 5"],
        ["Content-Length: 5", "Content-Length: 6"],
        ["Content-Length: 5, 6"],
        ["Content-Length: +5"],
        ["Content-Length: -5"],
        ["Content-Length: 0x5"],
        ["Content-Length: 5 5"],
        ["Transfer-Encoding: chunked, identity"],
        ["Transfer-Encoding: xchunked"],
        ["Transfer-Encoding : chunked"],
        [" Transfer-Encoding: chunked"],
        ["Transfer-Encoding:\x0bchunked"],
        ["Transfer-Encoding: chunked\x00"],
        ["X: y\nTransfer-Encoding: chunked"],
        ["X: y\rTransfer-Encoding: chunked"],
        ["Bad Name: x"],
        ["No-Colon"],
        ["X\x00: y"],
        ["Host: other.example"],
    ],
)
def test_ambiguous_requests_are_refused_and_nothing_is_smuggled(path_world: World, lines: list[str]) -> None:
    before = state(path_world)["requests"]
    answer = raw(path_world, head(path_world, *lines) + b"0\r\n\r\n" + SMUGGLED, seconds=1)
    assert answer.startswith(b"HTTP/1.1 400 ") or answer == b""
    assert state(path_world)["requests"] == before + 1


@pytest.mark.parametrize(
    "chunk",
    [
        b"5;\r\nhello\r\n0\r\n\r\n",
        b"5 \r\nhello\r\n0\r\n\r\n",
        b"-5\r\nhello\r\n0\r\n\r\n",
        b"5\nhello\n0\n\n",
        b"ffffffffffffffff1\r\n",
        b"zz\r\n",
    ],
)
def test_malformed_chunks_never_become_another_request(path_world: World, chunk: bytes) -> None:
    answer = raw(path_world, head(path_world, "Transfer-Encoding: chunked") + chunk + SMUGGLED, seconds=1)
    assert b'"target": "/smuggled"' not in answer
    assert b"smuggled" not in answer.replace(b"GET /smuggled", b"")


def test_body_that_looks_like_a_request_stays_a_body(path_world: World) -> None:
    body = SMUGGLED
    answer = raw(path_world, head(path_world, f"Content-Length: {len(body)}", "Connection: close") + body)
    assert answer.count(b"HTTP/1.1 200") == 1
    assert b"GET /smuggled" in answer


def test_upgrade_to_anything_but_websocket_is_an_ordinary_request(path_world: World) -> None:
    answer = raw(
        path_world,
        head(path_world, "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__", method="GET"),
        seconds=2,
    )
    assert answer.startswith(b"HTTP/1.1 200 ")
    seen = answer.lower()
    assert b"h2c" not in seen
    assert b"http2-settings" not in seen


@pytest.mark.parametrize(
    "path",
    [
        "/../{other}/echo",
        "/%2e%2e/{other}/echo",
        "/..%2f{other}%2fecho",
        "/..\\{other}\\echo",
        "/%252e%252e/{other}/echo",
        "/;/../{other}/echo",
        "//{other}/echo",
    ],
)
def test_path_tricks_stay_in_the_workspace_that_was_authorised(path_world: World, path: str) -> None:
    trick = path.format(other=path_world.foreign.pk)
    answer = raw(path_world, head(path_world, "Connection: close", method="GET", path=trick))
    assert answer.startswith(b"HTTP/1.1 200 ")
    body = json.loads(answer.partition(b"\r\n\r\n")[2])
    # Byte for byte, to the upstream of the id in front: what it makes of dots is its own affair.
    assert body["target"] == trick
    assert dict(body["headers"])["x-forwarded-prefix"] == f"/w/{path_world.workspace.pk}"


@pytest.mark.parametrize("path", ["/w%2f{id}/echo", "//w/{id}/echo", "/x/../w/{id}/echo", "/w/{id}%2fecho", "/W/{id}/echo", "\\w\\{id}"])
def test_other_spellings_of_the_prefix_lead_nowhere(path_world: World, path: str) -> None:
    before = state(path_world)["requests"]
    target = path.format(id=path_world.workspace.pk)
    request = f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {path_world.token}\r\nConnection: close\r\n\r\n"
    answer = raw(path_world, request.encode())
    assert answer[9:12] in (b"404", b"400", b"401", b"301", b"302")
    assert state(path_world)["requests"] == before + 1


def test_forwarded_headers_of_strangers_are_not_believed(path_world: World) -> None:
    spoofed = {"X-Forwarded-For": "6.6.6.6", "X-Forwarded-Host": "evil.example", "X-Forwarded-Proto": "https", "Forwarded": "for=6.6.6.6"}
    got = requests.get(path_world.url("/echo"), headers={**path_world.bearer, **spoofed}).json()
    seen = {name.lower(): value for name, value in got["headers"]}
    assert seen["x-forwarded-for"] == "127.0.0.1"
    assert seen["x-forwarded-host"] == f"127.0.0.1:{path_world.port}"
    assert seen["x-forwarded-proto"] == "http"
    assert "forwarded" not in seen


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "evil.localhost", "a b", ""])
def test_unknown_hosts_get_no_ticket_and_no_page(own_world: World, host: str) -> None:
    got = requests.get(own_world.url(), cookies=own_world.cookies, headers={**NAVIGATE, "Host": host}, allow_redirects=False)
    assert got.status_code == 400
    assert "codehub_ticket" not in got.text + str(got.headers)


@pytest.mark.parametrize("host", ["evil.example", "user:secret@127.0.0.1", "a b", "127.0.0.1:99999", ""])
def test_websocket_with_a_spoofed_host_is_refused_before_anything_is_opened(path_world: World, host: str) -> None:
    before = state(path_world)["handshakes"]
    lines = [f"GET /w/{path_world.workspace.pk}/ws/headers HTTP/1.1", f"Host: {host}", f"Authorization: Bearer {path_world.token}"]
    lines += ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="]
    assert raw(path_world, "\r\n".join([*lines, "", ""]).encode()).startswith(b"HTTP/1.1 400 ")
    assert state(path_world)["handshakes"] == before


@pytest.mark.parametrize(
    "header",
    [
        ["Set-Cookie", "codehub_session=stolen; Path=/"],
        ["Set-Cookie", "codehub_csrf=x; Path=/; Domain=127.0.0.1"],
        ["Set-Cookie", "__Host-codehub_session=x; Path=/; Secure"],
        ["Service-Worker-Allowed", "/"],
        ["X-Accel-Redirect", "/protected"],
        ["Clear-Site-Data", '"cookies"'],
        ["Strict-Transport-Security", "max-age=1"],
    ],
)
def test_hostile_answers_cannot_touch_the_dashboards_origin(path_world: World, header: list[str]) -> None:
    got = requests.get(path_world.url("/respond?headers=" + quote(json.dumps([header]))), headers=path_world.bearer)
    assert got.status_code == 200
    assert header[0].lower() not in got.headers


def test_cookie_of_a_workspace_is_bound_to_its_path(path_world: World) -> None:
    header = ["Set-Cookie", "mine=1; Path=/; Domain=127.0.0.1; HttpOnly"]
    got = requests.get(path_world.url("/respond?headers=" + quote(json.dumps([header]))), headers=path_world.bearer)
    assert got.headers["set-cookie"] == f"mine=1; HttpOnly; Path=/w/{path_world.workspace.pk}/"


def test_header_injection_over_websocket_is_refused(path_world: World) -> None:
    before = state(path_world)["handshakes"]
    for value in ("a\r\nX-Injected: 1", "a\nX-Injected: 1", "a\x00b"):
        lines = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="]
        answer = raw(path_world, head(path_world, *lines, f"Sec-WebSocket-Protocol: {value}", method="GET", path="/ws/headers"), seconds=1)
        assert b"X-Injected: 1" not in answer
    assert state(path_world)["handshakes"] <= before + 1


@pytest.mark.parametrize("port", ["0", "65536", "99999", "-1", "80a", "22%00"])
def test_ports_out_of_range_are_not_ports(path_world: World, port: str) -> None:
    got = requests.get(path_world.url(f"/ports/{port}/x"), headers=path_world.bearer)
    assert got.status_code in (200, 404)
    assert got.status_code == 404 or got.json()["target"] == f"/ports/{port}/x"


@pytest.mark.parametrize("port", [1, 22, 80, 5432, 6379, 8000, 65535])
def test_ports_of_the_machine_cannot_be_reached_through_a_published_workspace(path_world: World, port: int) -> None:
    got = requests.get(path_world.url(f"/ports/{port}/"), headers=path_world.bearer)
    assert (got.status_code, got.json()["code"]) == (502, "port_unavailable")


def test_port_of_the_web_process_itself_cannot_be_reached(path_world: World) -> None:
    got = requests.get(path_world.url(f"/ports/{path_world.port}/healthz"), headers=path_world.bearer)
    assert (got.status_code, got.json()["code"]) == (502, "port_unavailable")
