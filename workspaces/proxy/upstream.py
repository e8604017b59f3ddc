"""A lean HTTP/1.1 client for one purpose: carry a request to a workspace and its answer back, streaming both ways.

Owns pooled connections to TCP and Unix-socket endpoints, their flow control and their end. Knows nothing of who may go where,
nor of header rules: it sends the head it is given, byte for byte. Own code because a proxy wants raw headers and bodies that are
not looked at, where a general client offers sessions, cookies and redirects.
"""

import asyncio
import contextlib
from collections import deque
from typing import cast
from urllib.parse import urlsplit

import httptools

CONNECT_SECONDS = 5.0
# Below the keep-alive time of Node's server (5 s): a connection it is about to close is not reused.
IDLE_SECONDS = 4.0
MAX_IDLE_PER_ENDPOINT = 64
MAX_RESPONSE_HEAD = 128 * 1024
_HIGH_WATER = 64 * 1024
# All connections read into this one, in turn; what a slow client makes us keep is bounded by it and by the mark above.
_READ = memoryview(bytearray(64 * 1024))


class UpstreamError(Exception):
    """The workspace did not answer, or not in HTTP."""


class ConnectError(UpstreamError):
    """Nothing listens at the endpoint."""


class ClientGoneError(UpstreamError):
    """The browser closed the connection; there is nobody to answer."""


class StaleConnectionError(UpstreamError):
    """A pooled connection was closed before it gave a single byte of an answer: the request may be sent again."""


class Connection(asyncio.BufferedProtocol):
    """One connection. A request's head goes out with `write`; then `head()` and `chunk()` give the answer."""

    __slots__ = (
        "_chunks",
        "_closed",
        "_drain_waiter",
        "_error",
        "_head_bytes",
        "_head_done",
        "_held",
        "_informational",
        "_method",
        "_parser",
        "_paused",
        "_remaining",
        "_size",
        "_until_close",
        "_waiter",
        "_write_paused",
        "answered",
        "complete",
        "endpoint",
        "headers",
        "idle_since",
        "loop",
        "reusable",
        "reused",
        "status",
        "transport",
    )

    def __init__(self, endpoint: str, loop: asyncio.AbstractEventLoop) -> None:
        self.endpoint = endpoint
        self.loop = loop
        self.transport: asyncio.Transport | None = None
        self.reused = False
        self.idle_since = 0.0
        self._closed = False
        self._write_paused = False
        self._drain_waiter: asyncio.Future[None] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._reset(b"GET")

    def _reset(self, method: bytes) -> None:
        self._method = method
        self._parser = httptools.HttpResponseParser(self)
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._paused = False
        self._held = False
        self._error: UpstreamError | None = None
        self._head_bytes = 0
        self._head_done = False
        self._informational = False
        self._remaining = -1
        self._until_close = False
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.answered = False
        self.complete = False
        self.reusable = True

    # --- asyncio.BufferedProtocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return _READ

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(_READ[:nbytes])
        self.answered = True
        if self.complete or self._error is not None:
            # Bytes after the end of an answer: whatever they are, they belong to no request of ours.
            self.reusable = False
            self.abort()
            return
        if self._remaining > 0 and self._head_done:
            self._direct(data)
        else:
            self._parse(data)
        if self._size > _HIGH_WATER:
            self._pause()
        self.wake()

    def _pause(self) -> None:
        if not self._paused and self.transport is not None:
            self._paused = True
            self.transport.pause_reading()

    def _direct(self, data: bytes) -> None:
        """The body's length is known: pass it on without another look, counting."""
        if len(data) > self._remaining:
            data = data[: self._remaining]
            self.reusable = False
        self._remaining -= len(data)
        self._chunks.append(data)
        self._size += len(data)
        if self._remaining == 0:
            self.complete = True

    def _parse(self, data: bytes) -> None:
        if not self._head_done:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail("the workspace switched protocols without being asked")
        except httptools.HttpParserError as error:
            if not self.complete:
                self._fail(f"the workspace did not answer in HTTP: {type(error).__name__}")
            self.reusable = False
        if not self._head_done and self._head_bytes > MAX_RESPONSE_HEAD:
            self._fail("the workspace's answer has too large a head")

    def _fail(self, message: str) -> None:
        if self._error is None:
            self._error = UpstreamError(message)
        self.reusable = False
        self.abort()

    def eof_received(self) -> bool | None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        self.reusable = False
        if not self.complete and self._error is None:
            if self._head_done and self._until_close and exc is None:
                self.complete = True
            elif not self.answered:
                self._error = StaleConnectionError("closed before an answer")
            else:
                self._error = UpstreamError("closed in the middle of an answer")
        self.wake()
        if self._drain_waiter is not None and not self._drain_waiter.done():
            self._drain_waiter.set_result(None)

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._drain_waiter is not None and not self._drain_waiter.done():
            self._drain_waiter.set_result(None)

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- httptools callbacks
    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._head_done:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self.complete:
            # A second answer in the same bytes, to a question nobody asked.
            self.reusable = False
            return
        status = self._parser.get_status_code()
        if 100 <= status < 200 and status != 101:
            self._informational = True
            self.headers = []
            return
        if any(name == b"transfer-encoding" and value.strip().lower() != b"chunked" for name, value in self.headers):
            self._fail("the workspace's answer has an unknown Transfer-Encoding")
            return
        self.status = status
        self._head_done = True
        if not self._parser.should_keep_alive():
            self.reusable = False
        length: int | None = None
        chunked = False
        for name, value in self.headers:
            if name == b"content-length":
                length = int(value)
            elif name == b"transfer-encoding":
                chunked = True
        if self._method == b"HEAD" or status in (204, 304):
            self.complete = True
        elif length is not None and not chunked:
            self._remaining = length
            self.complete = length == 0
        elif not chunked:
            self._until_close = True
            self.reusable = False

    def on_body(self, body: bytes) -> None:
        if self.complete:
            self.reusable = False
            return
        if self._remaining >= 0:
            self._remaining -= len(body)
        self._chunks.append(body)
        self._size += len(body)

    def on_message_complete(self) -> None:
        if self._informational:
            self._informational = False
            return
        self.complete = True

    # --- for the forwarder
    @property
    def closed(self) -> bool:
        return self._closed or self.transport is None or self.transport.is_closing()

    def begin(self, method: bytes) -> None:
        """Forget the previous exchange and get ready for the next."""
        self._reset(method)

    def write(self, data: bytes) -> None:
        if self.transport is not None:
            self.transport.write(data)

    async def drain(self) -> None:
        """Wait until the workspace has taken enough of what was written."""
        if not self._write_paused or self._closed:
            return
        self._drain_waiter = self.loop.create_future()
        try:
            await self._drain_waiter
        finally:
            self._drain_waiter = None

    async def head(self) -> None:
        """Returns when status and headers are there. Raises UpstreamError when they never will be."""
        while not self._head_done:
            if self._error is not None:
                raise self._error
            await self.wait()
        if not 200 <= self.status <= 599:
            raise UpstreamError("the workspace answered with a status that does not exist")

    async def chunk(self) -> bytes:
        """The next piece of the body; empty at its end. Raises UpstreamError when the answer breaks off."""
        while not self._chunks:
            if self.complete:
                return b""
            if self._error is not None:
                raise self._error
            await self.wait()
        piece = self._chunks.popleft()
        self._size -= len(piece)
        if self._size < _HIGH_WATER // 2 and not self._held:
            self.resume()
        return piece

    # --- for whoever moves the rest of the body past this object
    @property
    def remaining(self) -> int:
        """Bytes of a body of known length that were not read yet; 0 when the length is not known."""
        return max(0, self._remaining)

    def has_chunks(self) -> bool:
        return bool(self._chunks)

    def hold(self) -> None:
        """Read no further, until `resume`; what was read already is still to be taken."""
        self._held = True
        self._pause()

    def check(self) -> None:
        """Raises what ended this exchange, if something did."""
        if self._error is not None:
            raise self._error

    def fileno(self) -> int:
        """Raises OSError when the connection is closed."""
        if self.transport is None or self.transport.is_closing():
            raise OSError("closed")
        return int(self.transport.get_extra_info("socket").fileno())

    def finish(self) -> None:
        """The rest of the body was moved: the connection may be used again."""
        self._remaining = 0
        self.complete = True
        self.resume()

    def resume(self) -> None:
        self._held = False
        if self._paused and self.transport is not None:
            self._paused = False
            self.transport.resume_reading()

    def is_pending(self) -> bool:
        """Whether something of the body is still to come or to be taken."""
        return bool(self._chunks) or not self.complete

    async def wait(self) -> None:
        self._waiter = self.loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def fail(self, error: UpstreamError) -> None:
        """End the exchange from our side: whoever waits for the answer gets `error`."""
        if self._error is None:
            self._error = error
        self.abort()
        self.wake()

    def abort(self) -> None:
        self.reusable = False
        if self.transport is not None:
            self.transport.abort()


class Pool:
    """Idle connections by endpoint, newest first. One per process; every method runs on the event loop."""

    def __init__(self) -> None:
        self._idle: dict[str, list[Connection]] = {}
        self._sweeper: asyncio.TimerHandle | None = None

    async def acquire(self, endpoint: str, *, fresh: bool = False) -> Connection:
        """A connection that is ready for a request. Raises ConnectError when nothing listens."""
        loop = asyncio.get_running_loop()
        idle = self._idle.get(endpoint)
        while idle and not fresh:
            connection = idle.pop()
            if not connection.closed and loop.time() - connection.idle_since < IDLE_SECONDS:
                connection.reused = True
                return connection
            connection.abort()
        return await connect(endpoint, loop)

    def release(self, connection: Connection) -> None:
        """Give a connection back after a complete exchange; one that cannot be used again is closed."""
        if not connection.reusable or not connection.complete or connection.closed:
            connection.abort()
            return
        idle = self._idle.setdefault(connection.endpoint, [])
        if len(idle) >= MAX_IDLE_PER_ENDPOINT:
            connection.abort()
            return
        connection.idle_since = connection.loop.time()
        idle.append(connection)
        if self._sweeper is None:
            self._sweeper = connection.loop.call_later(IDLE_SECONDS, self._sweep, connection.loop)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sweeper = None
        horizon = loop.time() - IDLE_SECONDS
        for endpoint, idle in list(self._idle.items()):
            for connection in idle:
                if connection.idle_since < horizon:
                    connection.abort()
            left = [connection for connection in idle if not connection.closed]
            if left:
                self._idle[endpoint] = left
            else:
                del self._idle[endpoint]
        if self._idle:
            self._sweeper = loop.call_later(IDLE_SECONDS, self._sweep, loop)

    def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for idle in self._idle.values():
            for connection in idle:
                connection.abort()
        self._idle.clear()


async def connect(endpoint: str, loop: asyncio.AbstractEventLoop) -> Connection:
    """A new connection to `http://host:port` or `unix:/path`."""
    connection = Connection(endpoint, loop)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            if endpoint.startswith("unix:"):
                await loop.create_unix_connection(lambda: connection, endpoint.removeprefix("unix:"))
            else:
                parts = urlsplit(endpoint)
                if parts.scheme != "http" or not parts.hostname:
                    raise ConnectError("the workspace has no address")
                await loop.create_connection(lambda: connection, parts.hostname, parts.port or 80)
    except (OSError, TimeoutError, ValueError) as error:
        with contextlib.suppress(RuntimeError):
            connection.abort()
        raise ConnectError("nothing answers at the workspace's address") from error
    return connection
