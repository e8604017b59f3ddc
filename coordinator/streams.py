"""Stages of a streaming pipeline: reading ahead in a thread, compressing, decompressing, hashing, with constant memory.

Owns bytes on their way and nothing else: no tar, no store, no runtime. An error in any stage comes out at the end of the
pipeline; a stage never turns an error into an end of stream.
"""

import hashlib
import io
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import IO, TypeVar, cast

import zstandard

T = TypeVar("T")

LEVEL = 3
CHUNK = 1 << 20
MAX_WINDOW = 1 << 25
_AHEAD = 4
# Smaller than zstd would choose: its own choice takes 100 MB more for no gain that could be measured.
_JOB_SIZE = 1 << 20


class _End:
    """What the reading thread leaves behind when it is done; with the error, if it failed."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


@contextmanager
def read_ahead(source: Iterable[T], *, depth: int = _AHEAD) -> Iterator[Iterator[T]]:
    """The same items, fetched by a thread a few ahead. Leaving early stops the thread at its next item."""
    items: queue.Queue[T | _End] = queue.Queue(depth)
    stopped = threading.Event()

    def fetch() -> None:
        end = _End()
        try:
            for item in source:
                if not _offer(items, item, stopped):
                    return
        except BaseException as error:
            end = _End(error)
        _offer(items, end, stopped)

    def consume() -> Iterator[T]:
        while True:
            item = items.get()
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            yield item

    thread = threading.Thread(target=fetch, name="read-ahead", daemon=True)
    thread.start()
    try:
        yield consume()
    finally:
        stopped.set()
        thread.join(timeout=10)


def _offer(items: "queue.Queue[T | _End]", item: T | _End, stopped: threading.Event) -> bool:
    while not stopped.is_set():
        try:
            items.put(item, timeout=0.2)
        except queue.Full:
            continue
        return True
    return False


class CompressedReader(io.RawIOBase):
    """A file to read from that compresses what it is given, on several threads, and knows the digest of what it gave."""

    def __init__(self, source: Iterable[bytes | bytearray | memoryview], *, threads: int) -> None:
        parameters = zstandard.ZstdCompressionParameters.from_level(
            LEVEL, threads=threads, job_size=_JOB_SIZE if threads else 0, write_checksum=True, write_content_size=False
        )
        self._compressor = zstandard.ZstdCompressor(compression_params=parameters).chunker(chunk_size=1 << 18)
        self._source = iter(source)
        self._parts: list[bytes] = []
        self._waiting = 0
        self._ended = False
        self._digest = hashlib.sha256()
        self.size = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while not self._ended and (size < 0 or self._waiting < size):
            chunk = next(self._source, None)
            self._ended = chunk is None
            made: Iterator[bytes] = iter(self._compressor.compress(chunk)) if chunk is not None else self._finish()
            for part in made:
                self._parts.append(part)
                self._waiting += len(part)
        parts, self._parts = self._parts, []
        rest: list[bytes] = []
        while size >= 0 and (surplus := self._waiting - size) > 0:
            # Give back from the end, so that the bytes given are copied only once.
            last = parts.pop()
            keep = max(0, len(last) - surplus)
            rest.append(last[keep:])
            self._waiting -= len(last) - keep
            if keep:
                parts.append(last[:keep])
        rest.reverse()
        self._parts, self._waiting = rest, sum(map(len, rest))
        given = b"".join(parts)
        self._digest.update(given)
        self.size += len(given)
        return given

    def _finish(self) -> Iterator[bytes]:
        yield from self._compressor.finish()  # type: ignore[no-untyped-call]

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


class HashedChunks:
    """Passes chunks on and knows the digest and size of those that passed."""

    def __init__(self, source: Iterable[bytes], *, on_bytes: Callable[[int], None] | None = None) -> None:
        self._source = source
        self._on_bytes = on_bytes
        self._digest = hashlib.sha256()
        self.size = 0

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._source:
            self._digest.update(chunk)
            self.size += len(chunk)
            if self._on_bytes:
                self._on_bytes(self.size)
            yield chunk

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


class _ChunkFile(io.RawIOBase):
    """A file to read from over an iterator of chunks."""

    def __init__(self, source: Iterator[bytes]) -> None:
        self._source = source
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if not self._rest:
            self._rest = memoryview(next(self._source, b""))
        given = self._rest if size < 0 else self._rest[:size]
        self._rest = self._rest[len(given) :]
        return bytes(given)


def decompressed(source: Iterator[bytes]) -> Iterator[memoryview]:
    """The content of one zstd stream, in bounded chunks however well it was compressed, and the source read to its end.

    A cut stream ends early without an error here: whoever knows the content's own end marker notices.
    """
    decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW)
    source_file = cast("IO[bytes]", _ChunkFile(source))
    with decompressor.stream_reader(source_file, read_size=1 << 17, read_across_frames=True, closefd=False) as reader:
        while size := reader.readinto(buffer := bytearray(CHUNK)):
            yield memoryview(buffer)[:size]
    for _ in source:
        # Whatever follows the stream still belongs to the object's digest.
        continue
