"""Relays one WebSocket: message by message, both ways, with close codes, subprotocol and back-pressure.

Each hop speaks its own framing, pings and compression; what passes are whole messages. Upstream no compression is offered: it
is a socket on the same machine. Who may pass and which headers do was decided before.
"""

import asyncio
from typing import Any
from urllib.parse import urlsplit

from asgiref.typing import ASGIReceiveCallable, ASGISendCallable
from websockets.asyncio.client import ClientConnection, connect, unix_connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

from workspaces.proxy.activity import Listener
from workspaces.proxy.headers import Headers, Hop, response_headers
from workspaces.proxy.upstream import CONNECT_SECONDS, ConnectError, UpstreamError

MAX_MESSAGE_BYTES = 80 * 1024 * 1024
_PING_SECONDS = 20
# A busy IDE may not answer for a while; a dead one is found by its socket.
_PONG_SECONDS = 60
_HANDSHAKE_SECONDS = 20


class RefusedError(Exception):
    """The workspace answered the handshake with an ordinary response, which is passed on."""

    def __init__(self, status: int, headers: Headers, body: bytes) -> None:
        super().__init__(f"refused with {status}")
        self.status = status
        self.headers = headers
        self.body = body


def may_send_code(code: int) -> bool:
    """Whether a close code may appear in a frame; the others only describe what happened."""
    return code in (1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014) or 3000 <= code <= 4999


async def open_upstream(endpoint: str, *, path: bytes, headers: Headers, subprotocols: list[str], hop: Hop) -> ClientConnection:
    """A connected WebSocket to the workspace. Raises RefusedError, ConnectError or UpstreamError."""
    options: dict[str, Any] = {
        "additional_headers": [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers if name != b"host"],
        "subprotocols": [Subprotocol(name) for name in subprotocols] or None,
        "compression": None,
        "user_agent_header": None,
        "max_size": MAX_MESSAGE_BYTES,
        "max_queue": 4,
        "ping_interval": _PING_SECONDS,
        "ping_timeout": _PONG_SECONDS,
        "close_timeout": 5,
        "open_timeout": _HANDSHAKE_SECONDS,
        "proxy": None,
        "process_exception": lambda error: error,
    }
    # The public host goes into the handshake: IDEs compare it with Origin. The connection goes to the endpoint.
    uri = f"ws://{hop.host.decode('latin-1')}{path.decode('latin-1')}"
    try:
        async with asyncio.timeout(CONNECT_SECONDS + _HANDSHAKE_SECONDS):
            if endpoint.startswith("unix:"):
                return await unix_connect(endpoint.removeprefix("unix:"), uri, **options)
            parts = urlsplit(endpoint)
            return await connect(uri, host=parts.hostname, port=parts.port or 80, **options)
    except InvalidStatus as refusal:
        response = refusal.response
        raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in response.headers.raw_items()]
        raise RefusedError(response.status_code, response_headers(raw, hop), bytes(response.body or b"")) from refusal
    except OSError as error:
        raise ConnectError("nothing answers at the workspace's address") from error
    except (InvalidHandshake, WebSocketException, ValueError, EOFError) as error:
        raise UpstreamError(f"the workspace does not speak WebSocket here: {type(error).__name__}") from error


class Relay:
    """Both directions of one open WebSocket. `cut` ends it from outside with a policy code."""

    def __init__(self, upstream: ClientConnection, receive: ASGIReceiveCallable, send: ASGISendCallable, *, on_message: Listener) -> None:
        self._upstream = upstream
        self._receive = receive
        self._send: Any = send
        self._on_message = on_message
        self._ended = asyncio.Event()
        self._close: tuple[int, str] | None = None

    def cut(self) -> None:
        self._close = (1008, "access has ended")
        self._ended.set()

    async def run(self) -> None:
        tasks = [
            asyncio.create_task(self._outward()),
            asyncio.create_task(self._inward()),
            asyncio.create_task(self._ended.wait()),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._upstream.transport.abort()
        if self._close is not None:
            await self._send({"type": "websocket.close", "code": self._close[0], "reason": self._close[1]})

    async def _outward(self) -> None:
        """From the client to the workspace."""
        upstream, on_message = self._upstream, self._on_message
        while True:
            message: Any = await self._receive()
            if message["type"] == "websocket.receive":
                data = message.get("bytes")
                if data is None:
                    data = message["text"]
                on_message(data, False)
                try:
                    await upstream.send(data)
                except ConnectionClosed:
                    # The other direction learns the code it was closed with.
                    await asyncio.Event().wait()
            elif message["type"] == "websocket.disconnect":
                code = message.get("code") or 1005
                if may_send_code(code):
                    await upstream.close(code, message.get("reason") or "")
                elif code == 1005:
                    await upstream.close()
                return

    async def _inward(self) -> None:
        """From the workspace to the client."""
        upstream, on_message, send = self._upstream, self._on_message, self._send
        try:
            while True:
                data = await upstream.recv()
                on_message(data, True)
                if isinstance(data, str):
                    await send({"type": "websocket.send", "text": data})
                else:
                    await send({"type": "websocket.send", "bytes": data})
        except ConnectionClosed as end:
            closed = end.rcvd
            if closed is None:
                self._close = (1011, "the workspace broke the connection")
            elif may_send_code(closed.code):
                self._close = (closed.code, closed.reason)
            else:
                self._close = (1000, "")
