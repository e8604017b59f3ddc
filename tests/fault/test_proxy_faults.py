"""A web process that dies while bytes pass through it: neither side may take what it got for the whole."""

import contextlib
import socket

import requests

from tests.integration.proxy_world import World, web_process
from tests.integration.test_proxy_http import eventually, state
from tests.integration.test_proxy_leaks import web_process_of
from tests.live import session_env

HALF = b"x" * 4_000_000


def begin_upload(world: World, port: int, framing: str, begin: bytes) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port))
    client.settimeout(30)
    lines = [f"POST /w/{world.workspace.pk}/sink HTTP/1.1", f"Host: 127.0.0.1:{port}", f"Authorization: Bearer {world.token}", framing]
    client.sendall("\r\n".join([*lines, "", ""]).encode() + begin)
    return client


def test_uploads_through_a_web_process_that_is_killed_are_never_taken_for_whole(path_world: World) -> None:
    before = state(path_world)
    with web_process(session_env(), CODEHUB_WORKSPACE_DOMAIN="none") as port:
        sized = begin_upload(path_world, port, f"Content-Length: {2 * len(HALF)}", HALF)
        chunked = begin_upload(path_world, port, "Transfer-Encoding: chunked", b"%x\r\n%b\r\n" % (len(HALF), HALF))
        eventually(lambda: state(path_world)["received"] - before["received"] >= 2 * len(HALF))
        web_process_of(port).kill()
        for client in (sized, chunked):
            with client, contextlib.suppress(ConnectionResetError):
                assert client.recv(1000) == b""
    eventually(lambda: state(path_world)["cut"] == before["cut"] + 2)
    assert state(path_world)["whole"] == before["whole"]
    # Another web process knows all it needs: nothing was kept in the one that died.
    assert requests.get(path_world.url("/small"), headers=path_world.bearer).text == "k" * 1024
