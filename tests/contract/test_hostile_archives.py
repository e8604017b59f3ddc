"""Archives that were tampered with or made to do harm, restored for real: refused, nothing outside touched, nothing half left.

Every case runs on each runtime with homes of its own, from a real S3 server. Whatever is hostile comes after an innocent file, so
that the refusal finds a volume that is already being filled.
"""

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest
import zstandard

from coordinator import archives
from coordinator.providers.base import ArchiveCorruptedError, MissingError, ProviderError
from coordinator.providers.s3 import S3Store
from coordinator.providers.tarstream import BLOCK, END_OF_TAR, REGULAR, make_header
from tests.contract.conftest import Harness
from tests.contract.test_store_contract import store_at
from tests.contract.trees import HOME, Node, home_of, read_nodes, tar_of
from tests.unit.test_tarstream import HOSTILE

INNOCENT = tar_of([HOME, Node(b"innocent", data=b"i" * 3000)])[: -len(END_OF_TAR)]
MOST_BYTES, MOST_FILES = 1 << 20, 100


@pytest.fixture(scope="module")
def store(s3: dict[str, str]) -> S3Store:
    return store_at(s3)


def stored(store: S3Store, workspace: UUID, tar: bytes) -> tuple[str, str]:
    """A whole archive of these bytes, `.meta` and all: only its content may be hostile. Its key and digest."""
    key, data = archives.archive_key(workspace, uuid4()), zstandard.compress(tar)
    digest = hashlib.sha256(data).hexdigest()
    store.put(key, data)
    store.put(archives.meta_key(key), f"sha256:{digest}".encode())
    return key, digest


def restored(place: Harness, store: S3Store, workspace: UUID, key: str, digest: str) -> None:
    archives.restore_home(
        place.runtime,
        store,
        workspace_id=workspace,
        generation=1,
        key=key,
        expected_sha256=digest,
        spec=place.spec,
        max_bytes=MOST_BYTES,
        max_files=MOST_FILES,
        progress=lambda *_: None,
        check=lambda: None,
    )


def outside() -> object:
    """What the hostile names aim at."""
    found = Path("/etc/passwd").stat()
    return found.st_mtime_ns, found.st_size, found.st_nlink, sorted(Path("/etc").iterdir()), sorted(Path("/").iterdir())


def objects(store: S3Store, workspace: UUID) -> dict[str, bytes]:
    keys = [found.key for found in store.list(f"{workspace}/")]
    return {key: _content(store, key) for key in keys}


def _content(store: S3Store, key: str) -> bytes:
    with store.get(key) as chunks:
        return b"".join(chunks)


def refused(place: Harness, store: S3Store, workspace: UUID, key: str, digest: str, error: type[ProviderError]) -> None:
    before, archive = outside(), objects(store, workspace)
    volumes = set(place.runtime.list_volumes())
    with pytest.raises(error):
        restored(place, store, workspace, key, digest)
    assert outside() == before
    assert set(place.runtime.list_volumes()) == volumes
    assert place.runtime.get_volume(workspace, 1) is None
    assert place.runtime.remove_leftovers(older_than=datetime.now(UTC) + timedelta(hours=1)) == 0
    assert objects(store, workspace) == archive


def test_without_anything_hostile_in_it_the_same_archive_is_restored(place: Harness, store: S3Store) -> None:
    workspace = place.workspace()
    restored(place, store, workspace, *stored(store, workspace, INNOCENT + END_OF_TAR))
    assert read_nodes(home_of(place.runtime, workspace, 1))[b"innocent"].data == b"i" * 3000


CONTENT = {name: value for name, value in HOSTILE.items() if not name.startswith("too ")}
BOMBS = {
    "a file larger than allowed": make_header(b"./x", REGULAR, size=64 << 20) + bytes(64 << 20),
    "more files than allowed": b"".join(make_header(b"./%d" % number, REGULAR) for number in range(MOST_FILES)),
    "zeros behind the end": END_OF_TAR + bytes(64 << 20),
    "a size that is a lie": make_header(b"./x", REGULAR, size=BLOCK) + bytes(4 * BLOCK) + b"no header" * BLOCK,
}


@pytest.mark.parametrize("name", [*CONTENT, *BOMBS])
def test_what_no_home_holds_is_refused(place: Harness, store: S3Store, name: str) -> None:
    workspace = place.workspace()
    key, digest = stored(store, workspace, INNOCENT + (CONTENT | BOMBS)[name] + END_OF_TAR)
    refused(place, store, workspace, key, digest, ArchiveCorruptedError)


def flipped(store: S3Store, key: str) -> None:
    data = bytearray(_content(store, key))
    data[len(data) // 2] ^= 1
    store.put(key, bytes(data))


def another_home(store: S3Store, key: str) -> None:
    store.put(key, zstandard.compress(tar_of([HOME, Node(b"not yours")])))


TAMPERED: dict[str, tuple[Callable[[S3Store, str], object], type[ProviderError]]] = {
    "a flipped byte": (flipped, ArchiveCorruptedError),
    "its end cut off": (lambda store, key: store.put(key, _content(store, key)[:-5]), ArchiveCorruptedError),
    "something appended": (lambda store, key: store.put(key, _content(store, key) + b"\0"), ArchiveCorruptedError),
    "nothing in it": (lambda store, key: store.put(key, b""), ArchiveCorruptedError),
    "another home in its place": (another_home, ArchiveCorruptedError),
    "a .meta of another archive": (lambda store, key: store.put(archives.meta_key(key), b"sha256:" + b"0" * 64), ArchiveCorruptedError),
    "a .meta of nonsense": (lambda store, key: store.put(archives.meta_key(key), b"\xff" * 100_000), ArchiveCorruptedError),
    "no archive under the key": (lambda store, key: store.delete([key]), MissingError),
    "neither archive nor .meta": (lambda store, key: store.delete([key, archives.meta_key(key)]), MissingError),
}


@pytest.mark.parametrize("left", [b"", b"sha2", b"sha256:"])
def test_a_meta_that_was_cut_when_stored_is_as_good_as_lost(place: Harness, store: S3Store, left: bytes) -> None:
    """The database knows the digest, and the archive still has it."""
    workspace = place.workspace()
    key, digest = stored(store, workspace, INNOCENT + END_OF_TAR)
    store.put(archives.meta_key(key), left)
    restored(place, store, workspace, key, digest)
    assert read_nodes(home_of(place.runtime, workspace, 1))[b"innocent"].data == b"i" * 3000


@pytest.mark.parametrize("name", TAMPERED)
def test_what_was_tampered_with_is_refused(place: Harness, store: S3Store, name: str) -> None:
    tamper, error = TAMPERED[name]
    workspace = place.workspace()
    key, digest = stored(store, workspace, INNOCENT + END_OF_TAR)
    tamper(store, key)
    refused(place, store, workspace, key, digest, error)


def test_the_key_of_another_workspace_s_archive_is_refused(place: Harness, store: S3Store) -> None:
    workspace, other = place.workspace(), place.workspace()
    _, digest = stored(store, workspace, INNOCENT + END_OF_TAR)
    key, _ = stored(store, other, tar_of([HOME, Node(b"not yours")]))
    refused(place, store, workspace, key, digest, ArchiveCorruptedError)


def test_a_window_that_would_take_all_memory_is_refused(place: Harness, store: S3Store) -> None:
    workspace = place.workspace()
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=27, write_content_size=False)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    data = compressor.compress(INNOCENT + END_OF_TAR) + compressor.flush()
    key = archives.archive_key(workspace, uuid4())
    store.put(key, data)
    refused(place, store, workspace, key, hashlib.sha256(data).hexdigest(), ArchiveCorruptedError)
