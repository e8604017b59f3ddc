"""Forwarding of one HTTP exchange: request body out, answer back, both as streams with back-pressure.

Owns the life of the upstream connection for that exchange: a client that goes away closes it, an answer that comes early ends
the upload. Who may pass and which headers do was decided before.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from asgiref.typing import ASGIReceiveCallable, ASGISendCallable

from workspaces.proxy.headers import Headers, Hop, response_headers
from workspaces.proxy.inject import Injection
from workspaces.proxy.splice import MIN_BYTES, Splice, Wire
from workspaces.proxy.upstream import ClientGoneError, Connection, Pool, StaleConnectionError, UpstreamError

# A client that leaves is looked for only when the answer is not there at once: short exchanges need no second task.
_WATCH_AFTER_SECONDS = 0.25
_REPEATABLE = frozenset({b"GET", b"HEAD", b"OPTIONS"})


class AnswerBrokeError(Exception):
    """The upstream broke off after the head of its answer was passed on: the client's connection must be cut."""


class Exchange:
    """One request on its way. `cut` ends it from outside (access was withdrawn)."""

    __slots__ = (
        "_connection",
        "_cut",
        "_on_long",
        "_pool",
        "_receive",
        "_send",
        "_timer",
        "_uploaded",
        "_watcher",
        "_wire",
        "received",
        "sent",
        "status",
    )

    def __init__(
        self,
        pool: Pool,
        receive: ASGIReceiveCallable,
        send: ASGISendCallable,
        *,
        wire: Wire | None = None,
        on_long: Callable[["Exchange"], None] | None = None,
    ) -> None:
        self._pool = pool
        self._receive = receive
        self._send = send
        self._wire = wire
        self._on_long = on_long
        self._connection: Connection | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._cut = False
        self._uploaded = False
        self.status = 0
        self.sent = 0
        self.received = 0

    def cut(self) -> None:
        self._cut = True
        if self._connection is not None:
            self._connection.fail(ClientGoneError("access has ended"))

    async def run(
        self, endpoint: str, *, method: bytes, path: bytes, headers: Headers, body_length: int | None, hop: Hop, injection: Injection | None
    ) -> None:
        """Carry it out. `body_length` is 0 without a body, None when its length is not known (chunked).

        Raises UpstreamError before anything was answered, AnswerBrokeError afterwards.
        """
        framing = b""
        if body_length is None:
            framing = b"transfer-encoding: chunked\r\n"
        elif body_length or method in (b"POST", b"PUT", b"PATCH"):
            framing = b"content-length: %d\r\n" % body_length
        head = b"".join(
            (
                method,
                b" ",
                path,
                b" HTTP/1.1\r\n",
                *[b"%b: %b\r\n" % pair for pair in headers],
                framing,
                b"\r\n",
            )
        )
        try:
            connection = await self._open(endpoint, method=method, head=head, body_length=body_length)
            try:
                await self._answer(connection, method=method, hop=hop, injection=injection)
            except BaseException:
                connection.abort()
                raise
            if body_length != 0 and not self._uploaded:
                # Answered before the whole body was taken: what is left of it must not run into the next request.
                connection.reusable = False
            self._pool.release(connection)
        finally:
            self._connection = None
            if self._timer is not None:
                self._timer.cancel()
            if self._watcher is not None:
                self._watcher.cancel()

    async def _open(self, endpoint: str, *, method: bytes, head: bytes, body_length: int | None) -> Connection:
        """Send the request and wait for the head of the answer. A stale pooled connection is replaced once."""
        fresh = False
        while True:
            connection = await self._pool.acquire(endpoint, fresh=fresh)
            if self._cut:
                connection.abort()
                raise ClientGoneError("access has ended")
            connection.begin(method)
            self._connection = connection
            connection.write(head)
            if body_length == 0:
                self._timer = connection.loop.call_later(_WATCH_AFTER_SECONDS, self._watch)
            else:
                self._watcher = asyncio.create_task(self._upload(connection, chunked=body_length is None))
                self._timer = connection.loop.call_later(_WATCH_AFTER_SECONDS, self._became_long)
            try:
                await connection.head()
                return connection
            except StaleConnectionError:
                connection.abort()
                if not connection.reused or fresh or body_length != 0 or method not in _REPEATABLE:
                    raise
                fresh = True
                self._timer.cancel()
            except BaseException:
                connection.abort()
                raise

    def _became_long(self) -> None:
        if self._on_long is not None:
            self._on_long(self)

    def _watch(self) -> None:
        self._became_long()
        self._watcher = asyncio.create_task(self._until_gone())

    async def _until_gone(self) -> None:
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                if self._connection is not None:
                    self._connection.fail(ClientGoneError("the client has gone"))
                return

    async def _upload(self, connection: Connection, *, chunked: bool) -> None:
        while True:
            message: Any = await self._receive()
            if message["type"] == "http.disconnect":
                connection.fail(ClientGoneError("the client has gone"))
                return
            body: bytes = message.get("body", b"")
            if body:
                self.received += len(body)
                if chunked:
                    connection.write(b"%x\r\n" % len(body))
                    connection.write(body)
                    connection.write(b"\r\n")
                else:
                    connection.write(body)
                await connection.drain()
            if not message.get("more_body", False):
                if chunked:
                    connection.write(b"0\r\n\r\n")
                break
        self._uploaded = True
        # Done uploading, and yet the client may leave before the answer has come.
        self._watcher = asyncio.create_task(self._until_gone())

    async def _answer(self, connection: Connection, *, method: bytes, hop: Hop, injection: Injection | None) -> None:
        send: Any = self._send
        self.status = status = connection.status
        headers = response_headers(connection.headers, hop)
        if status in (204, 304):
            headers = [pair for pair in headers if pair[0] != b"content-length"]
        first = b""
        if injection is not None and method == b"GET" and injection.wants(status, headers):
            first, headers = await injection.apply(connection, headers)
        wire = self._wire if connection.remaining >= MIN_BYTES else None
        if wire is not None:
            connection.hold()
        await send({"type": "http.response.start", "status": status, "headers": headers})
        try:
            more = True
            if first:
                self.sent += len(first)
                more = connection.is_pending()
                await send({"type": "http.response.body", "body": first, "more_body": more})
            while more:
                if wire is not None and not connection.has_chunks():
                    await self._splice(connection, wire)
                    wire = None
                piece = await connection.chunk()
                self.sent += len(piece)
                more = connection.is_pending()
                if piece or not more:
                    await send({"type": "http.response.body", "body": piece, "more_body": more})
        except ClientGoneError:
            raise
        except UpstreamError as error:
            raise AnswerBrokeError(str(error)) from error

    async def _splice(self, connection: Connection, wire: Wire) -> None:
        """The rest of a large body, past us. Without descriptors to spare it is copied as usual."""
        try:
            splice = Splice(connection, wire)
        except OSError:
            connection.resume()
            return
        try:
            await splice.run(self._send)
        finally:
            self.sent += splice.moved
