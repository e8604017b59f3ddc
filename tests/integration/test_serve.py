"""The server's own limits, on a real socket: whoever sends nothing of use does not keep a connection."""

import asyncio
import logging
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from codehub import serve


async def answers_at_once(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Reads no body. A WebSocket is accepted, or with the path /refused answered like a page."""
    if scope["type"] == "websocket" and scope["path"] != "/refused":
        await receive()
        await send({"type": "websocket.accept"})
        await receive()
        return
    kind = "websocket.http.response" if scope["type"] == "websocket" else "http.response"
    await send({"type": f"{kind}.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": f"{kind}.body", "body": b"ok"})


async def talk(*pieces: bytes, seconds: float) -> tuple[bytes, bool]:
    """Send the pieces, each after an answer came; everything that came back, and whether the server closed the connection."""
    config = uvicorn.Config(answers_at_once, http=serve.DoorProtocol, ws=serve.DoorSocket, log_config=None)
    config.load()
    loop, state = asyncio.get_running_loop(), ServerState()
    server = await loop.create_server(lambda: serve.DoorProtocol(config, state, app_state={}), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    answer = b""
    try:
        for number, piece in enumerate(pieces):
            writer.write(piece)
            if number + 1 < len(pieces):
                answer += await reader.readuntil(b"ok")
        async with asyncio.timeout(seconds):
            answer += await reader.read()
        return answer, True
    except TimeoutError:
        return answer, False
    finally:
        writer.close()
        server.close()


HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n"
UPGRADE = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"


@pytest.mark.parametrize(
    "pieces",
    [
        (b"",),
        (b"GET / HT",),
        (b"\r\n",),
        (HEAD + b"\r\n", b"\r\n"),
        (HEAD + b"\r\n", b"GET /"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n", b"some of it"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n", b"all of it."),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", b"5\r\nhe"),
        (HEAD + UPGRADE + b"Content-Length: 5\r\n\r\n",),
    ],
    ids=[
        "nothing",
        "half a line",
        "an empty line",
        "an empty line later",
        "half a line later",
        "half a body",
        "a late body",
        "chunk",
        "ws",
    ],
)
def test_connection_on_which_nothing_is_asked_is_closed_in_the_end(monkeypatch: pytest.MonkeyPatch, pieces: tuple[bytes, ...]) -> None:
    monkeypatch.setattr(serve, "HEAD_SECONDS", 0.2)
    assert asyncio.run(talk(*pieces, seconds=10))[1]


def test_connection_that_became_a_websocket_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "HEAD_SECONDS", 0.1)
    assert not asyncio.run(talk(HEAD + UPGRADE + b"\r\n", seconds=1))[1]


def test_refused_handshake_is_answered_and_is_no_error_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        answer, closed = asyncio.run(talk(HEAD.replace(b"/ ", b"/refused ", 1) + UPGRADE + b"\r\n", seconds=10))
    assert (answer.startswith(b"HTTP/1.1 200 "), closed) == (True, True)
    assert caplog.records == []
