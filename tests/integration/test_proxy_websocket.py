"""WebSockets through the proxy: every kind of message, close codes, subprotocols, refusals, against a recording upstream."""

import json
import socket
import struct
from typing import Any

import pytest
import requests
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from tests.integration.proxy_world import World
from tests.integration.test_proxy_http import eventually, state


def open_socket(world: World, path: str = "/ws", *, headers: dict[str, str] | None = None, **options: Any) -> ClientConnection:
    url = f"ws://127.0.0.1:{world.port}/w/{world.workspace.pk}{path}"
    socket: ClientConnection = connect(url, additional_headers={**world.bearer, **(headers or {})}, max_size=None, proxy=None, **options)
    return socket


@pytest.mark.parametrize("compression", [None, "deflate"])
@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536, 1_000_000])
def test_messages_of_every_size_come_back_unchanged(path_world: World, size: int, compression: str | None) -> None:
    with open_socket(path_world, compression=compression) as client:
        client.send("t" * size)
        assert client.recv() == "t" * size
        client.send(b"\x00" * size)
        assert client.recv() == b"\x00" * size


def test_messages_of_64_megabytes_pass(path_world: World) -> None:
    with open_socket(path_world, compression=None) as client:
        client.send(b"z" * (64 * 1024 * 1024))
        assert len(client.recv(timeout=60)) == 64 * 1024 * 1024


def test_text_keeps_every_character(path_world: World) -> None:
    text = "κόσμε 안녕 \U0001f600 \u0000 \uffff"
    with open_socket(path_world) as client:
        client.send(text)
        assert client.recv() == text


def test_fragments_arrive_as_one_message_in_both_directions(path_world: World) -> None:
    with open_socket(path_world, "/ws/fragments") as client:
        assert client.recv() == "abc"
        assert client.recv() == b"123"
        client.send(["one", " ", "message"])
        assert client.recv() == "one message"


def test_pings_are_answered_on_the_hop_they_were_sent_on(path_world: World) -> None:
    with open_socket(path_world) as client:
        assert client.ping(b"payload").wait(5)


@pytest.mark.parametrize("code", [1000, 1001, 1003, 1008, 1011, 3000, 4000, 4999])
def test_close_code_of_the_workspace_reaches_the_client(path_world: World, code: int) -> None:
    with open_socket(path_world, f"/ws/close?code={code}") as client:
        with pytest.raises(ConnectionClosed) as end:
            client.recv(timeout=5)
        assert end.value.rcvd is not None
        assert (end.value.rcvd.code, end.value.rcvd.reason) == (code, "as asked")


@pytest.mark.parametrize("code", [1000, 1001, 3001, 4321])
def test_close_code_of_the_client_reaches_the_workspace(path_world: World, code: int) -> None:
    with open_socket(path_world) as client:
        client.close(code, "done")
    eventually(lambda: state(path_world).get("last_close") == code)


def test_connection_that_breaks_upstream_closes_the_client_with_an_error(path_world: World) -> None:
    with open_socket(path_world, "/ws/die") as client, pytest.raises(ConnectionClosed) as end:
        client.recv(timeout=5)
    assert end.value.rcvd is not None
    assert end.value.rcvd.code == 1011


def test_client_that_vanishes_closes_the_upstream(path_world: World) -> None:
    with open_socket(path_world) as client:
        client.send("here")
        client.recv()
        open_before = state(path_world)["websockets"]
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.socket.shutdown(socket.SHUT_RDWR)
        eventually(lambda: state(path_world)["websockets"] == open_before - 1)


def test_subprotocol_chosen_by_the_workspace_is_the_one_accepted(path_world: World) -> None:
    with open_socket(path_world, subprotocols=[Subprotocol("one"), Subprotocol("two")]) as client:
        assert client.subprotocol == "two"


def test_refusal_of_the_workspace_is_passed_on(path_world: World) -> None:
    with pytest.raises(InvalidStatus) as refusal, open_socket(path_world, "/ws/refuse"):
        pass
    assert refusal.value.response.status_code == 418


def test_handshake_carries_the_same_header_rules_as_http(path_world: World) -> None:
    headers = {"Cookie": f"codehub_session={path_world.session}; codehub_csrf=c; mine=1", "X-Forwarded-For": "6.6.6.6", "X-Own": "kept"}
    with open_socket(path_world, "/ws/headers?a=1", headers=headers) as client:
        seen = json.loads(client.recv())
    fields = {name.lower(): value for name, value in seen["headers"]}
    assert seen["path"] == "/ws/headers?a=1"
    assert fields["cookie"] == "mine=1"
    assert fields["x-forwarded-for"] == "127.0.0.1"
    assert fields["x-own"] == "kept"
    assert "authorization" not in fields
    assert path_world.token not in json.dumps(seen)
    assert path_world.session not in json.dumps(seen)


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b"\x81\x82\x00\x00\x00\x00\xff\xfe", 1007),  # text that is not UTF-8
        (b"\x09\x80\x00\x00\x00\x00", 1002),  # a ping in fragments
        (b"\x80\x81\x00\x00\x00\x00x", 1002),  # a continuation of nothing
        (b"\x83\x80\x00\x00\x00\x00", 1002),  # an opcode that does not exist
        (b"\xc1\x80\x00\x00\x00\x00", 1002),  # a reserved bit without an extension
        (b"\x81\x01x", 1002),  # not masked
        (b"\x89\xfe\x00\x7e\x00\x00\x00\x00" + b"p" * 126, 1002),  # a ping that is too long
    ],
)
def test_malformed_frames_are_refused_on_the_clients_hop(path_world: World, frame: bytes, code: int) -> None:
    with open_socket(path_world, compression=None) as client:
        client.socket.sendall(frame)
        with pytest.raises(ConnectionClosed) as end:
            client.recv(timeout=5)
        assert end.value.rcvd is not None
        assert end.value.rcvd.code == code


def test_nothing_listening_gives_bad_gateway(path_world: World) -> None:
    with pytest.raises(InvalidStatus) as refusal, open_socket(path_world, "/ports/9/x"):
        pass
    assert refusal.value.response.status_code == 502
    assert requests.get(path_world.url("/small"), headers=path_world.bearer).status_code == 200
