"""How uvicorn is run: its options, and its protocols with limits on what a client may send before anything is decided.

`python -m codehub.serve` starts one web process. Options live here so that the supervisor, the tests and a deployment use the
same ones. Must not hold business rules.
"""

import argparse
import asyncio
import resource
from typing import Any

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from codehub import config as config_module
from workspaces.proxy.splice import EXTENSION as WIRE_EXTENSION

MAX_HEAD_BYTES = 64 * 1024
HEAD_SECONDS = 30.0
_BODY = (b"content-length", b"transfer-encoding")
_TOO_LARGE = b"Request Header Fields Too Large"


class DoorProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1, with a limit on the size of a request's head and on the time it may take to arrive."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = False
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.parser is None or self.transport.is_closing():
            return
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse_head()
                return
        super().data_received(data)
        if self._in_head:
            self._head_bytes = max(self._head_bytes, len(data))
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse_head()
                return
        # One that was upgraded is no longer ours. The server has just stopped the clock of an idle connection: without this one,
        # a stray byte, or a body nobody waits for any more, would keep the connection for ever.
        if self._head_timer is None and self._is_waiting() and self in self.connections:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._head_is_late)

    def _is_waiting(self) -> bool:
        """Nothing is being answered: the next head is on its way, or not even that."""
        return self._in_head or self.cycle is None or self.cycle.response_complete

    def on_message_begin(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_head_timer()
        if sum(1 for name, _ in self.headers if name == b"host") > 1:
            raise httptools.HttpParserError("more than one Host")
        if any(name == b"transfer-encoding" and value.lower() != b"chunked" for name, value in self.headers):
            # The parser notices too, but only after the request was handed on.
            raise httptools.HttpParserError("an unknown Transfer-Encoding")
        if self._should_upgrade() and any(name in _BODY and value != b"0" for name, value in self.headers):
            # The other protocol would wait for that body without a clock.
            raise httptools.HttpParserError("a handshake with a body")
        super().on_headers_complete()
        if self.cycle is not None and self.cycle.scope is self.scope and self.transport.get_extra_info("sslcontext") is None:
            # The application runs only after this returns. With this it can let the kernel move a large answer, but never past TLS.
            extensions: dict[str, Any] = {WIRE_EXTENSION: self.cycle}
            self.scope["extensions"] = extensions

    def _unsupported_upgrade_warning(self) -> None:
        # The parser stops at an upgrade: after the answer this connection is of no use.
        if self.cycle is not None:
            self.cycle.keep_alive = False

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._is_waiting():
            self.transport.close()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse_head(self) -> None:
        self._in_head = False
        self.transport.write(
            b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: text/plain\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
            % (len(_TOO_LARGE), _TOO_LARGE)
        )
        self.transport.close()


class DoorSocket(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket. A handshake that was refused with an answer is complete: it is no error of ours to be logged."""

    _accepted = False

    @property
    def handshake_complete(self) -> bool:
        return self._accepted or (self.initial_response is not None and self.close_sent)

    @handshake_complete.setter
    def handshake_complete(self, value: bool) -> None:
        self._accepted = value


UVICORN_OPTIONS: dict[str, Any] = {
    "app": "codehub.asgi:application",
    "http": DoorProtocol,
    "ws": DoorSocket,
    "loop": "uvloop",
    "lifespan": "on",
    "ws_max_size": 80 * 1024 * 1024,
    "ws_ping_interval": 20.0,
    "ws_ping_timeout": 20.0,
    "ws_per_message_deflate": True,
    # Forwarded headers are judged by CodeHub itself (CODEHUB_TRUSTED_PROXIES): uvicorn would believe anything on loopback.
    "proxy_headers": False,
    "server_header": False,
    "date_header": False,
    "access_log": False,
    "log_config": None,
    "log_level": "warning",
    "timeout_keep_alive": 75,
    "timeout_graceful_shutdown": 5,
    "backlog": 4096,
}


def raise_descriptor_limit() -> None:
    """As many open connections as the machine allows: each one that is proxied takes two descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> None:
    raise_descriptor_limit()
    config = config_module.load()
    parser = argparse.ArgumentParser(description="One CodeHub web process.")
    parser.add_argument("--host", default=config.host)
    parser.add_argument("--port", type=int, default=config.port)
    parser.add_argument("--fd", type=int, default=None, help="Serve on this inherited listening socket instead.")
    given = parser.parse_args()
    uvicorn.run(**UVICORN_OPTIONS, host=given.host, port=given.port, fd=given.fd)


if __name__ == "__main__":
    main()
