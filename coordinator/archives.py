"""Archive and restore: a home as a stream of tar, zstd and sha256 between a runtime and the archive store.

Owns the format of an archive and its `.meta`, and when either may be believed. A failure anywhere fails the whole: no archive
counts before it was read back, no home before its digest matched. Decides nothing about workspaces and writes no row.
"""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from uuid import UUID

import structlog
import zstandard

from coordinator.members import HomeFilter, HomeGuard
from coordinator.providers.base import (
    ActionFailedError,
    ArchiveCorruptedError,
    ArchiveStore,
    Buffer,
    ContainerSpec,
    MissingError,
    Progress,
    ProviderError,
    Runtime,
)
from coordinator.providers.tarstream import DIRECTORY, END_OF_TAR, TarScanner, TarStreamError, make_header
from coordinator.streams import CompressedReader, HashedChunks, decompressed, read_ahead

log = structlog.get_logger(__name__)

Check = Callable[[], None]
"""Raises when the caller's run is no longer its own. Called before each provider call and about once a second in streams."""
Begin = Callable[[str], None]
"""Told the name of each step that follows, whose progress counts from nothing again."""

ARCHIVE_NAME = "home.tar.zst"
PART_SIZE = 5 * 1024 * 1024
_META_PREFIX = "sha256:"
_HEADER_ALLOWANCE = 16 * 1024
_SPACE_MARGIN = 64 * 1024 * 1024
_CHECK_INTERVAL = 1.0


@dataclass(frozen=True, slots=True)
class ArchiveResult:
    sha256: str
    size: int
    files: int
    skipped: int
    """Sockets, devices and fifos that were left out."""
    uncompressed: int


def archive_key(workspace_id: UUID, archive_op_id: UUID | str) -> str:
    return f"{workspace_id}/{archive_op_id}/{ARCHIVE_NAME}"


def meta_key(key: str) -> str:
    """The commit marker beside an archive: it is written last."""
    return f"{key}.meta"


class _Regularly:
    """Runs the check when a second has passed since the last time: often enough to fence, cheap enough for each chunk."""

    def __init__(self, check: Check) -> None:
        self._check = check
        self._next = 0.0

    def __call__(self) -> None:
        if (now := time.monotonic()) >= self._next:
            self._check()
            self._next = now + _CHECK_INTERVAL


# --- archive
def archive_home(
    runtime: Runtime,
    store: ArchiveStore,
    *,
    workspace_id: UUID,
    generation: int,
    key: str,
    progress: Progress,
    check: Check,
    begin: Begin = lambda step: None,
) -> ArchiveResult:
    """The home is in the store under `key`, read back and compared, with its `.meta`. The volume is only read.

    Called again with the same key, it keeps what is there and verifies: the caller gives the same key only while the home
    cannot have changed.
    """
    check()
    if found := existing_archive(store, key, check=check):
        return found
    result = upload_home(runtime, store, workspace_id=workspace_id, generation=generation, key=key, progress=progress, check=check)
    begin("verify")
    commit_archive(store, key, result, check=check, progress=progress)
    return result


def upload_home(
    runtime: Runtime, store: ArchiveStore, *, workspace_id: UUID, generation: int, key: str, progress: Progress, check: Check
) -> ArchiveResult:
    """The upload alone, not yet verified nor committed."""
    chosen = HomeFilter()
    scanner = TarScanner(chosen)
    regularly = _Regularly(check)

    def tar(chunks: Iterator[bytes]) -> Iterator[Buffer]:
        for chunk in chunks:
            regularly()
            yield from scanner.feed(chunk)
            # Only an estimate: extended headers and files that grow make it longer.
            progress(scanner.bytes_out, expected and max(expected, scanner.bytes_out))
        scanner.close()

    check()
    expected = runtime.home_bytes(workspace_id, generation)
    try:
        with runtime.read_volume(workspace_id, generation) as raw, read_ahead(raw) as chunks:
            reader = CompressedReader(tar(chunks), threads=_threads())
            sent = store.put(key, reader, part_size=PART_SIZE)
    except TarStreamError as error:
        raise ActionFailedError("the home could not be read completely", stderr=str(error)) from error
    if sent != reader.size:
        raise ActionFailedError(f"object storage took {sent} of {reader.size} bytes")
    return ArchiveResult(reader.hexdigest(), reader.size, scanner.members, chosen.skipped, scanner.bytes_out)


def commit_archive(store: ArchiveStore, key: str, result: ArchiveResult, *, check: Check, progress: Progress | None = None) -> None:
    """Read the archive back, compare, and only then write its `.meta`."""
    try:
        verify_archive(store, key, result.sha256, check=check, progress=progress, size=result.size)
    except (ArchiveCorruptedError, MissingError) as error:
        # Not corrupted in the sense of a lost home: the volume is there and the next attempt stores it again.
        raise ActionFailedError("object storage did not keep what it was given", stderr=str(error)) from error
    _put_meta(store, key, result, check=check)


def empty_archive(store: ArchiveStore, *, key: str, uid: int, gid: int, check: Check) -> ArchiveResult:
    """An archive of an empty home of that owner, stored and verified like any other."""
    check()
    if found := existing_archive(store, key, check=check):
        return found
    tar = make_header(b"./", DIRECTORY, mode=0o755, uid=uid, gid=gid, mtime_ns=time.time_ns() // 10**9 * 10**9) + END_OF_TAR
    reader = CompressedReader([tar], threads=0)
    store.put(key, reader.read())
    result = ArchiveResult(reader.hexdigest(), reader.size, files=1, skipped=0, uncompressed=len(tar))
    commit_archive(store, key, result, check=check)
    return result


def existing_archive(store: ArchiveStore, key: str, *, check: Check) -> ArchiveResult | None:
    """What is already there under the key, if it is committed and reads back with the digest of its `.meta`."""
    try:
        digest = read_meta(store, key)
        if digest is None:
            return None
        size = verify_archive(store, key, digest, check=check)
    except (ArchiveCorruptedError, MissingError):
        return None
    facts = _facts(store, key)
    return ArchiveResult(digest, size, facts.get("files", 0), facts.get("skipped", 0), facts.get("uncompressed", 0))


# --- verification and `.meta`
def verify_archive(
    store: ArchiveStore, key: str, sha256: str, *, check: Check, progress: Progress | None = None, size: int | None = None
) -> int:
    """Read the whole archive; its size if the digest is that one, else ArchiveCorruptedError. MissingError: it is not there."""
    check()
    regularly = _Regularly(check)
    with store.get(key) as raw, read_ahead(raw) as chunks:
        hashed = HashedChunks(chunks)
        for _ in hashed:
            regularly()
            if progress:
                progress(hashed.size, size)
    if hashed.hexdigest() != sha256:
        raise ArchiveCorruptedError(f"the archive's sha256 is {hashed.hexdigest()}, not {sha256}")
    return hashed.size


def read_meta(store: ArchiveStore, key: str, *, known: str = "") -> str | None:
    """The digest in the `.meta`; None when there is none. ArchiveCorruptedError when it holds anything else.

    Only the beginning of what the `known` digest gives was cut when it was stored: as good as none.
    """
    try:
        with store.get(meta_key(key)) as chunks:
            # The first bytes say enough: a .meta that somebody made huge is not read into memory.
            text = next(chunks, b"")[:200].decode("ascii", "replace").strip()
    except MissingError:
        return None
    whole = f"{_META_PREFIX}{known}"
    if known and text != whole and whole.startswith(text):
        return None
    digest = text.removeprefix(_META_PREFIX)
    if text == digest or len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise ArchiveCorruptedError("the archive's .meta does not hold a sha256")
    return digest


def rebuild_meta(store: ArchiveStore, key: str, sha256: str, *, check: Check) -> None:
    """Write a lost `.meta` again, after the archive was read and matched the digest that the caller knows."""
    size = verify_archive(store, key, sha256, check=check)
    _put_meta(store, key, ArchiveResult(sha256, size, 0, 0, 0), check=check)


def _put_meta(store: ArchiveStore, key: str, result: ArchiveResult, *, check: Check) -> None:
    check()
    facts = {"files": str(result.files), "skipped": str(result.skipped), "uncompressed": str(result.uncompressed)}
    content = f"{_META_PREFIX}{result.sha256}".encode()
    store.put(meta_key(key), content, metadata={name: value for name, value in facts.items() if value != "0"})
    try:
        kept = read_meta(store, key)
    except ArchiveCorruptedError:
        kept = None
    if kept != result.sha256:
        # A broken marker would make a good archive unreadable once its home is gone.
        raise ActionFailedError("object storage did not keep the archive's .meta")


def _facts(store: ArchiveStore, key: str) -> dict[str, int]:
    found = store.head(meta_key(key))
    return {name: int(value) for name, value in found.metadata.items() if value.isdecimal()} if found else {}


# --- restore
def restore_home(
    runtime: Runtime,
    store: ArchiveStore,
    *,
    workspace_id: UUID,
    generation: int,
    key: str,
    expected_sha256: str,
    spec: ContainerSpec,
    max_bytes: int,
    max_files: int,
    progress: Progress,
    check: Check,
) -> ArchiveResult:
    """A fresh volume of this generation holds the archive's home on return; on any failure that generation is gone again.

    MissingError: there is no archive. ArchiveCorruptedError: it is not what was stored, or holds what no home holds. The
    archive itself is only read. Run again it starts from the beginning, with another generation.
    """
    check()
    stored_digest = read_meta(store, key, known=expected_sha256)
    wanted = expected_sha256 or stored_digest
    if wanted is None:
        raise MissingError("neither the database nor object storage knows the archive's digest")
    if stored_digest is not None and stored_digest != wanted:
        raise ArchiveCorruptedError("the archive's .meta and the database disagree about its sha256")
    found = store.head(key)
    if found is None:
        raise MissingError("the archive is not in object storage")
    expected_bytes = _refuse_without_space(runtime, store, key, max_bytes=max_bytes)
    check()
    runtime.provision(workspace_id, generation, spec)
    restored = _Restoring(store, key, wanted, max_bytes=max_bytes, max_files=max_files)
    try:
        runtime.write_volume(workspace_id, generation, restored.tar(progress, expected_bytes, check))
        if restored.result is None:
            raise ActionFailedError("the runtime did not take the whole home")
    except BaseException as error:
        _throw_away(runtime, workspace_id, generation)
        if isinstance(error, TarStreamError | zstandard.ZstdError):
            raise ArchiveCorruptedError(f"the archive cannot be unpacked: {error}") from error
        raise
    if stored_digest is None:
        # It was just read completely and matched.
        _put_meta(store, key, restored.result, check=check)
    return restored.result


class _Restoring:
    """One pass over an archive: gives its tar and, only after everything matched, the result."""

    def __init__(self, store: ArchiveStore, key: str, sha256: str, *, max_bytes: int, max_files: int) -> None:
        self._store, self._key, self._sha256 = store, key, sha256
        self._max_bytes = max_bytes
        self._guard = HomeGuard(max_bytes=max_bytes, max_files=max_files)
        self.result: ArchiveResult | None = None

    def tar(self, progress: Progress, total: int | None, check: Check) -> Iterator[Buffer]:
        """Ends only after a whole tar of the right digest; the receiver has then seen all of it."""
        scanner = TarScanner(self._guard)
        regularly = _Regularly(check)
        with self._store.get(self._key) as raw:
            hashed = HashedChunks(raw)
            with read_ahead(hashed) as downloaded, read_ahead(decompressed(downloaded)) as chunks:
                received = 0
                for chunk in chunks:
                    regularly()
                    received += len(chunk)
                    if received > self._max_bytes + (self._guard.files + 64) * _HEADER_ALLOWANCE:
                        raise TarStreamError("it unpacks to more than it says")
                    yield from scanner.feed(chunk)
                    progress(received, total)
                scanner.close()
        if hashed.hexdigest() != self._sha256:
            raise ArchiveCorruptedError(f"the archive's sha256 is {hashed.hexdigest()}, not {self._sha256}")
        self.result = ArchiveResult(self._sha256, hashed.size, scanner.members, 0, scanner.bytes_out)


def _refuse_without_space(runtime: Runtime, store: ArchiveStore, key: str, *, max_bytes: int) -> int | None:
    """Refuse at once what cannot fit; the size of the tar where it was recorded."""
    expected = _facts(store, key).get("uncompressed")
    free = runtime.free_bytes()
    if expected and free is not None and free < expected + _SPACE_MARGIN:
        raise ActionFailedError(f"not enough space for the home: it needs {expected} bytes and {free} are free")
    return expected


def _throw_away(runtime: Runtime, workspace_id: UUID, generation: int) -> None:
    try:
        runtime.delete_volume(workspace_id, generation)
    except ProviderError as error:
        # It never became current, so it is collected later; what led here matters more.
        log.warning("half-restored volume could not be removed", workspace=str(workspace_id), generation=generation, error=str(error))


def _threads() -> int:
    return max(1, min(4, os.cpu_count() or 1))
