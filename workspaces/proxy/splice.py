"""Large bodies without a copy: the kernel moves them from the workspace's socket to the client's, through a pipe.

Owns the descriptors this takes, for one body. It is used once the body's length is known and everything before it has
left the server's buffer; whoever hands a connection over leaves both sockets alone until it is done.
"""

import asyncio
import fcntl
import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any, Protocol

from workspaces.proxy.upstream import ClientGoneError, Connection, UpstreamError

MIN_BYTES = 1024 * 1024
"""Below this the four descriptors cost more than the copies."""
MAX_AT_ONCE = 256
"""A slow client keeps its four descriptors for as long as it likes: beyond this, bodies are copied."""
_PIPE_BYTES = 512 * 1024
_AVAILABLE = hasattr(os, "splice")
_FLAGS = os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK if _AVAILABLE else 0
EXTENSION = "codehub.wire"
"""Name of the ASGI extension under which the server lends the `Wire` of a request."""


class Wire(Protocol):
    """The client's side of one request below ASGI, as the server knows it."""

    transport: asyncio.Transport
    disconnected: bool
    expected_content_length: int
    """What the server believes is still to be written of the body."""


async def hang_up(wire: Wire, *, after_the_rest: bool) -> None:
    """Cut the client off, perhaps after what was written already, and let the server know: it shall not complain of it."""
    if after_the_rest:
        wire.transport.close()
    else:
        wire.transport.abort()
    for _ in range(10):
        if wire.disconnected:
            return
        await asyncio.sleep(0)


class Splice:
    """One body on its way. Raises OSError when there are no descriptors to spare: then it is copied like any other."""

    _at_once = 0

    def __init__(self, connection: Connection, wire: Wire) -> None:
        if not _AVAILABLE or Splice._at_once >= MAX_AT_ONCE:
            raise OSError("no kernel that does it, or enough bodies on their way")
        self._connection = connection
        self._wire = wire
        self._stack = ExitStack()
        self.moved = 0
        Splice._at_once += 1
        self._stack.callback(self._end)
        try:
            # The event loop refuses to watch a descriptor that a transport of its own uses.
            self._source = self._own(os.dup(connection.fileno()))
            self._sink = self._own(os.dup(wire.transport.get_extra_info("socket").fileno()))
            self._out, self._in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            self._own(self._out)
            self._own(self._in)
        except OSError:
            self._stack.close()
            raise
        # Refused above the user's share of pipe memory: the ordinary size works too.
        with suppress(OSError):
            fcntl.fcntl(self._in, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    @staticmethod
    def _end() -> None:
        Splice._at_once -= 1

    def _own(self, descriptor: int) -> int:
        self._stack.callback(os.close, descriptor)
        return descriptor

    async def run(self, send: Callable[[Any], Any]) -> None:
        """Move what is left of the body. Raises UpstreamError when it breaks off, ClientGoneError when nobody takes it."""
        transport, connection = self._wire.transport, self._connection
        low, high = transport.get_write_buffer_limits()
        with self._stack:
            # What the server wrote before must be gone: a limit of nothing makes it wait for exactly that.
            transport.set_write_buffer_limits(high=0)
            try:
                await send({"type": "http.response.body", "body": b"", "more_body": True})
            finally:
                transport.set_write_buffer_limits(high=high, low=low)
            size = connection.remaining
            await self._move(size)
        self._wire.expected_content_length -= size
        connection.finish()

    async def _move(self, left: int) -> None:
        loop, connection = self._connection.loop, self._connection
        held = 0
        while left or held:
            connection.check()
            if not held:
                try:
                    held = os.splice(self._source, self._in, min(left, _PIPE_BYTES), flags=_FLAGS)
                except BlockingIOError:
                    await self._until(loop.add_reader, loop.remove_reader, self._source)
                    continue
                except OSError as error:
                    raise UpstreamError("closed in the middle of an answer") from error
                if not held:
                    raise UpstreamError("closed in the middle of an answer")
                left -= held
            try:
                taken = os.splice(self._out, self._sink, held, flags=_FLAGS)
            except BlockingIOError:
                await self._until(loop.add_writer, loop.remove_writer, self._sink)
                continue
            except OSError as error:
                raise ClientGoneError("the client has gone") from error
            held -= taken
            self.moved += taken
            if not held:
                # Others have their turn, however fast both ends are.
                await asyncio.sleep(0)

    async def _until(self, watch: Callable[..., Any], forget: Callable[[int], Any], descriptor: int) -> None:
        """Until the descriptor is ready or the exchange was ended from elsewhere."""
        watch(descriptor, self._connection.wake)
        try:
            await self._connection.wait()
        finally:
            forget(descriptor)
