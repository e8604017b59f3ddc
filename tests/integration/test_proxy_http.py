"""HTTP through the proxy: methods, framing, streams and faults, against a recording upstream."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from urllib.parse import quote

import pytest
import requests

from tests.integration.proxy_world import World


def state(world: World) -> dict[str, int]:
    return dict(requests.get(f"http://127.0.0.1:{world.upstream}/state").json())


def eventually(condition: Callable[[], bool], *, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.05)


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND", "REPORT"])
def test_proxy_forwards_any_method_with_body_query_and_raw_path(path_world: World, method: str) -> None:
    got = requests.request(method, path_world.url("/a%2Fb/%252e/c;d?q=1&q=%20"), headers=path_world.bearer, data=b"payload").json()
    assert (got["method"], got["target"], got["body"]) == (method, "/a%2Fb/%252e/c;d?q=1&q=%20", "payload")


@pytest.mark.parametrize("status", [200, 201, 204, 206, 301, 304, 400, 401, 404, 418, 429, 500, 502, 503])
def test_proxy_passes_status_codes_and_headers_on(path_world: World, status: int) -> None:
    headers = quote(json.dumps([["X-One", "1"], ["X-Two", "2"], ["X-Two", "3"]]))
    got = requests.get(path_world.url(f"/respond?status={status}&headers={headers}"), headers=path_world.bearer, allow_redirects=False)
    assert got.status_code == status
    assert got.headers["x-one"] == "1"
    assert got.headers["x-two"] == "2, 3"


def test_proxy_answers_head_without_a_body_and_keeps_the_connection(path_world: World) -> None:
    with requests.Session() as session:
        session.headers.update(path_world.bearer)
        for _ in range(3):
            got = session.head(path_world.url("/small"))
            assert (got.status_code, got.headers["content-length"], got.content) == (200, "1024", b"")
            assert len(session.get(path_world.url("/small")).content) == 1024


def test_proxy_streams_chunked_answers_and_drops_their_trailers(path_world: World) -> None:
    got = requests.get(path_world.url("/chunked"), headers=path_world.bearer)
    assert got.content == b"onetwothree"
    assert "trailer" not in got.headers


def test_proxy_passes_ranges_through(path_world: World) -> None:
    got = requests.get(path_world.url("/range"), headers={**path_world.bearer, "Range": "bytes=10-19"})
    assert (got.status_code, got.content, got.headers["content-range"]) == (206, bytes(range(10, 20)), "bytes 10-19/256")


def test_proxy_reads_an_answer_that_ends_with_the_connection(path_world: World) -> None:
    assert requests.get(path_world.url("/until-close"), headers=path_world.bearer).text == "until the end"


def test_proxy_swallows_informational_answers(path_world: World) -> None:
    assert requests.get(path_world.url("/hints"), headers=path_world.bearer).text == "after hints"


def test_proxy_passes_an_early_answer_on_while_the_upload_is_still_going(path_world: World) -> None:
    got = requests.post(path_world.url("/early"), headers=path_world.bearer, data=b"x" * 5_000_000)
    assert (got.status_code, got.text) == (413, "too much")


def test_proxy_streams_a_chunked_upload_of_unknown_length(path_world: World) -> None:
    def body() -> Iterator[bytes]:
        for number in range(100):
            yield b"%04d" % number

    got = requests.post(path_world.url("/echo"), headers=path_world.bearer, data=body()).json()
    assert got["body"] == "".join(f"{number:04d}" for number in range(100))
    assert "content-length" not in {name.lower() for name, _ in got["headers"]}


LARGE = 32 * 1024 * 1024
PIECES = b"".join(b"%07d\n" % number * 32768 for number in range(LARGE // 262144))


def test_proxy_moves_a_large_upload_unchanged(path_world: World) -> None:
    before = state(path_world)["received"]
    requests.post(path_world.url("/sink"), headers=path_world.bearer, data=PIECES).raise_for_status()
    assert state(path_world)["received"] - before == LARGE


@pytest.mark.parametrize("size", [LARGE, LARGE - 1, 1024 * 1024 + 300_000, 1024 * 1024, 1024 * 1024 - 1])
def test_large_downloads_arrive_byte_for_byte_and_the_connections_go_on(path_world: World, size: int) -> None:
    with requests.Session() as session:
        session.headers.update(path_world.bearer)
        for _ in range(2):
            assert session.get(path_world.url(f"/big?size={size}")).content == PIECES[:size]
            assert session.get(path_world.url("/small")).text == "k" * 1024


def test_large_download_that_breaks_off_is_never_taken_for_complete(path_world: World) -> None:
    with pytest.raises((requests.exceptions.ChunkedEncodingError, requests.exceptions.ConnectionError)):
        requests.get(path_world.url(f"/big?size={LARGE}&send=3000000&break=1"), headers=path_world.bearer)


def test_client_that_leaves_a_large_download_closes_the_upstream(path_world: World) -> None:
    before = state(path_world)["cut"]
    # Everything that comes is taken, and then nothing comes for a while: the proxy waits for the workspace, not for the client.
    with requests.get(path_world.url(f"/big?size={LARGE}&send=3000000"), headers=path_world.bearer, stream=True) as got:
        assert len(got.raw.read(3_000_000)) == 3_000_000
    eventually(lambda: state(path_world)["cut"] > before)


def test_slow_client_holds_the_upstream_back_and_others_pass(path_world: World) -> None:
    with requests.get(path_world.url(f"/big?size={LARGE}"), headers=path_world.bearer, stream=True) as slow:
        assert slow.raw.read(1000) == PIECES[:1000]
        assert requests.get(path_world.url("/small"), headers=path_world.bearer).text == "k" * 1024
        assert slow.raw.read() == PIECES[1000:]


def test_proxy_expects_continue_from_itself(path_world: World) -> None:
    with socket.create_connection(("127.0.0.1", path_world.port)) as client:
        head = f"POST /w/{path_world.workspace.pk}/echo HTTP/1.1\r\nHost: 127.0.0.1:{path_world.port}\r\nAuthorization: Bearer {path_world.token}\r\nExpect: 100-continue\r\nContent-Length: 4\r\nConnection: close\r\n\r\n"
        client.sendall(head.encode())
        assert client.recv(100).startswith(b"HTTP/1.1 100 ")
        client.sendall(b"body")
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert b"200 OK" in answer
    assert b'"body": "body"' in answer
    assert b'"expect"' not in answer.lower()


def test_client_that_leaves_a_stream_closes_the_upstream(path_world: World) -> None:
    before = state(path_world)["cut"]
    with requests.get(path_world.url("/stream"), headers=path_world.bearer, stream=True) as got:
        assert next(got.iter_lines()) == b"data: hello"
    eventually(lambda: state(path_world)["cut"] > before)


def test_client_that_leaves_before_the_answer_closes_the_upstream(path_world: World) -> None:
    before = state(path_world)["cut"]
    with pytest.raises(requests.exceptions.ReadTimeout):
        requests.get(path_world.url("/hang"), headers=path_world.bearer, timeout=0.5)
    eventually(lambda: state(path_world)["cut"] > before)


def test_answer_that_breaks_off_is_never_taken_for_complete(path_world: World) -> None:
    with pytest.raises((requests.exceptions.ChunkedEncodingError, requests.exceptions.ConnectionError)):
        requests.get(path_world.url("/broken"), headers=path_world.bearer)


@pytest.mark.parametrize(
    "answer",
    [
        "SSH-2.0-nothing\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        "HTTP/1.1 999 Odd\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nBad Name: x\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: a\x7fb\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "",
    ],
)
def test_answers_that_are_not_http_give_bad_gateway(path_world: World, answer: str) -> None:
    got = requests.get(path_world.url("/raw?bytes=" + quote(answer)), headers=path_world.bearer)
    assert (got.status_code, got.json()["code"]) == (502, "upstream_unavailable")


def test_bytes_after_an_answer_never_reach_the_next_request(path_world: World) -> None:
    poison = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison"
    with requests.Session() as session:
        session.headers.update(path_world.bearer)
        assert session.get(path_world.url("/raw?bytes=" + quote(poison))).text == "ok"
        for _ in range(5):
            assert session.get(path_world.url("/small")).text == "k" * 1024


def test_large_request_headers_pass_and_oversized_ones_are_refused(path_world: World) -> None:
    fits = requests.get(path_world.url("/echo"), headers={**path_world.bearer, "X-Large": "v" * 30_000})
    assert dict(fits.json()["headers"])["x-large"] == "v" * 30_000
    with socket.create_connection(("127.0.0.1", path_world.port)) as client:
        client.settimeout(10)
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        answer = b""
        try:
            for number in range(200):
                client.sendall(b"X-%d: %b\r\n" % (number, b"v" * 4096))
            answer = client.recv(4096)
        except OSError:
            answer = answer or b"HTTP/1.1 431 "
    assert answer.startswith(b"HTTP/1.1 431 ")


def test_page_of_the_ide_gets_the_activity_script_and_other_pages_do_not(path_world: World) -> None:
    browser = {"User-Agent": "Mozilla/5.0", "Accept": "text/html", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    page = requests.get(path_world.url("/page"), cookies=path_world.cookies, headers=browser)
    assert f'<script src="/w/{path_world.workspace.pk}/_codehub/activity.js" async></script></head>' in page.text
    assert "etag" not in page.headers
    script = requests.get(path_world.url("/_codehub/activity.js"), cookies=path_world.cookies)
    assert script.headers["content-type"].startswith("text/javascript")
    plain = requests.get(path_world.url("/page"), headers=path_world.bearer)
    assert "<script" not in plain.text
    headless = requests.get(path_world.url("/page?html=<p>no head"), cookies=path_world.cookies, headers=browser)
    assert headless.text == "<p>no head"
