"""Stages of the pipeline alone: bytes come out as they went in, in the sizes asked for, and errors come through."""

import hashlib
import io
import threading
from collections.abc import Iterator

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.streams import CompressedReader, HashedChunks, decompressed, read_ahead

pieces = st.one_of(
    st.binary(max_size=50_000),
    st.integers(1, 300_000).map(lambda size: b"a" * size),
    st.integers(1, 40).map(lambda n: bytes(range(256)) * n * 64),
)


@settings(deadline=None, max_examples=60)
@given(source=st.lists(pieces, max_size=8), threads=st.sampled_from([0, 2]), size=st.sampled_from([1000, 4096, 100_000, 1 << 20, -1]))
def test_what_is_compressed_in_parts_of_any_size_is_the_source(source: list[bytes], threads: int, size: int) -> None:
    reader = CompressedReader(source, threads=threads)
    parts = []
    while part := reader.read(size):
        parts.append(part)
    whole = b"".join(parts)
    assert all(len(part) == size for part in parts[:-1])
    assert (reader.size, reader.hexdigest()) == (len(whole), hashlib.sha256(whole).hexdigest())
    with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(whole)) as back:
        assert back.read() == b"".join(source)


def test_incompressible_data_through_several_threads_is_whole_and_in_order() -> None:
    blocks = [hashlib.shake_256(bytes([number])).digest(3 << 20) for number in range(8)]
    reader = CompressedReader(blocks, threads=2)
    whole = b"".join(iter(lambda: reader.read(5 << 20), b""))
    assert b"".join(decompressed(iter([whole]))) == b"".join(blocks)


class OwnError(Exception):
    """What a stage raises."""


def failing() -> Iterator[bytes]:
    yield b"some"
    raise OwnError


def test_an_error_in_the_source_is_never_an_end_of_stream() -> None:
    with read_ahead(failing()) as chunks, pytest.raises(OwnError):
        list(chunks)
    with pytest.raises(OwnError):
        CompressedReader(failing(), threads=0).read()


def test_leaving_early_stops_the_thread() -> None:
    def endless() -> Iterator[bytes]:
        while True:
            yield b"x"

    before = threading.active_count()
    with read_ahead(endless()) as chunks:
        next(chunks)
    assert threading.active_count() == before


def test_a_bomb_is_given_out_in_bounded_pieces() -> None:
    bomb = zstandard.compress(bytes(256 << 20))
    assert max(len(chunk) for chunk in decompressed(iter([bomb]))) <= 1 << 20


def test_what_follows_the_compressed_stream_is_still_read_and_hashed() -> None:
    data = zstandard.compress(b"content")
    hashed = HashedChunks([data[:5], data[5:], b""])
    assert b"".join(decompressed(iter(hashed))) == b"content"
    assert hashed.hexdigest() == hashlib.sha256(data).hexdigest()
