"""The archive and restore pipelines on doubles: what counts as an archive, what is left after each failure."""

import hashlib
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest
import zstandard

from coordinator import archives
from coordinator.providers import hometree
from coordinator.providers.base import (
    ActionFailedError,
    ArchiveCorruptedError,
    ContainerSpec,
    MissingError,
    ProviderError,
    Runtime,
    UnreachableError,
)
from coordinator.providers.tarstream import END_OF_TAR, REGULAR, make_header
from tests.fakes.runtime import FakeRuntime
from tests.fakes.store import FakeStore
from tests.unit.test_tarstream import HOSTILE

SPEC = ContainerSpec(image="fake")
WORKSPACE = UUID("11111111-1111-4111-8111-111111111111")
KEY = archives.archive_key(WORKSPACE, "op-1")


def nothing() -> None:
    return None


def unheard(done: int, total: int | None) -> None:
    return None


@pytest.fixture
def runtime() -> FakeRuntime:
    fake = FakeRuntime()
    fake.provision(WORKSPACE, 1, SPEC)
    for number in range(20):
        fake.put_file(WORKSPACE, 1, f"file-{number}", bytes([number]) * 50_000)
    return fake


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


def archive(runtime: Runtime, store: FakeStore, check: archives.Check = nothing) -> archives.ArchiveResult:
    return archives.archive_home(runtime, store, workspace_id=WORKSPACE, generation=1, key=KEY, progress=unheard, check=check)


def restore(
    runtime: Runtime, store: FakeStore, sha256: str, *, generation: int = 2, max_bytes: int = 1 << 30, max_files: int = 1000
) -> archives.ArchiveResult:
    return archives.restore_home(
        runtime,
        store,
        workspace_id=WORKSPACE,
        generation=generation,
        key=KEY,
        expected_sha256=sha256,
        spec=SPEC,
        max_bytes=max_bytes,
        max_files=max_files,
        progress=unheard,
        check=nothing,
    )


def test_an_archive_and_its_meta_are_stored_and_restore_gives_the_same_files(runtime: FakeRuntime, store: FakeStore) -> None:
    result = archive(runtime, store)
    assert store.data(archives.meta_key(KEY)) == f"sha256:{result.sha256}".encode()
    assert (result.files, result.skipped, result.size) == (21, 0, len(store.data(KEY)))
    restored = restore(runtime, store, result.sha256)
    assert runtime.files(WORKSPACE, 2) == runtime.files(WORKSPACE, 1)
    assert restored.uncompressed == result.uncompressed


def test_meta_is_written_last_and_only_after_the_archive_was_read_back(runtime: FakeRuntime, store: FakeStore) -> None:
    archive(runtime, store)
    assert [(name, args[0]) for name, args in store.calls if name in ("put", "get")] == [
        ("get", archives.meta_key(KEY)),
        ("put", KEY),
        ("get", KEY),
        ("put", archives.meta_key(KEY)),
        ("get", archives.meta_key(KEY)),
    ]


def test_a_truncated_object_answered_with_success_is_no_archive(runtime: FakeRuntime, store: FakeStore) -> None:
    store.truncate_next = True
    with pytest.raises(ActionFailedError, match="did not keep"):
        archive(runtime, store)
    assert archives.meta_key(KEY) not in store.objects
    assert archive(runtime, store).size == len(store.data(KEY))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("method", ["read_volume", "put", "get"])
def test_a_failure_anywhere_leaves_no_meta_and_the_next_attempt_succeeds(
    runtime: FakeRuntime, store: FakeStore, method: str, when: str
) -> None:
    double = runtime if method == "read_volume" else store
    error = UnreachableError("gone", endpoint="s3")
    if method == "get":
        store.hook("put", lambda key, *_: store.fail("get", error, when=when) if key == KEY else None)  # type: ignore[arg-type]
    else:
        double.fail(method, error, when=when)  # type: ignore[arg-type]
    with pytest.raises(UnreachableError):
        archive(runtime, store)
    assert archives.meta_key(KEY) not in store.objects
    store.hook("put", lambda *_: None)
    result = archive(runtime, store)
    restore(runtime, store, result.sha256)
    assert runtime.files(WORKSPACE, 2) == runtime.files(WORKSPACE, 1)


def test_a_home_whose_tar_is_cut_never_becomes_an_archive(runtime: FakeRuntime, store: FakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    original = runtime.read_volume

    class Cut:
        def __init__(self) -> None:
            self.inner = original(WORKSPACE, 1)

        def __enter__(self) -> Iterator[bytes]:
            whole = b"".join(self.inner.__enter__())
            return iter([whole[: whole.rindex(b"file-9") + 512]])

        def __exit__(self, *exc: object) -> None:
            self.inner.__exit__(None, None, None)

    monkeypatch.setattr(runtime, "read_volume", lambda *_: Cut())
    with pytest.raises(ActionFailedError, match="completely"):
        archive(runtime, store)
    assert store.objects == {}


def test_a_retry_with_the_same_key_keeps_what_is_there_and_verifies(runtime: FakeRuntime, store: FakeStore) -> None:
    first = archive(runtime, store)
    runtime.calls.clear()
    assert archive(runtime, store) == first
    assert runtime.count("read_volume") == 0


def test_a_retry_stores_again_what_does_not_verify(runtime: FakeRuntime, store: FakeStore) -> None:
    first = archive(runtime, store)
    store.tamper(KEY, store.data(KEY)[:-1])
    assert archive(runtime, store).files == first.files
    assert runtime.count("read_volume") == 2


def test_a_meta_that_was_cut_when_it_was_stored_is_no_archive_and_the_next_attempt_succeeds(runtime: FakeRuntime, store: FakeStore) -> None:
    def cut_the_meta(key: str, *_rest: object) -> None:
        store.truncate_next = key == archives.meta_key(KEY) and store.count("put") == 2

    store.hook("put", cut_the_meta)
    with pytest.raises(ActionFailedError, match="did not keep"):
        archive(runtime, store)
    result = archive(runtime, store)
    assert store.data(archives.meta_key(KEY)) == f"sha256:{result.sha256}".encode()
    assert restore(runtime, store, result.sha256).sha256 == result.sha256


def test_special_files_and_hard_links_to_them_are_left_out_and_counted(runtime: FakeRuntime, store: FakeStore) -> None:
    home = runtime.homes[WORKSPACE, 1]
    for name, kind, link in (("p", tarfile.FIFOTYPE, ""), ("q", tarfile.LNKTYPE, "p"), ("zero", tarfile.CHRTYPE, "")):
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, link
        home.members[name] = (info, b"")
    result = archive(runtime, store)
    assert (result.skipped, result.files) == (3, 21)
    restore(runtime, store, result.sha256)
    assert runtime.files(WORKSPACE, 2) == runtime.files(WORKSPACE, 1)


class ReplacedError(Exception):
    """The run is no longer ours."""


def test_a_replaced_run_stops_before_its_next_step_and_commits_nothing(runtime: FakeRuntime, store: FakeStore) -> None:
    calls = 0

    def check() -> None:
        nonlocal calls
        calls += 1
        if KEY in store.objects:
            raise ReplacedError

    with pytest.raises(ReplacedError):
        archive(runtime, store, check)
    assert archives.meta_key(KEY) not in store.objects


# --- restore
def test_a_flipped_byte_is_corruption_and_leaves_no_volume_and_keeps_the_archive(runtime: FakeRuntime, store: FakeStore) -> None:
    result = archive(runtime, store)
    for position in (0, 10, len(store.data(KEY)) // 2, len(store.data(KEY)) - 1):
        good = store.data(KEY)
        bad = bytearray(good)
        bad[position] ^= 0x40
        store.tamper(KEY, bytes(bad))
        with pytest.raises(ArchiveCorruptedError):
            restore(runtime, store, result.sha256)
        assert (WORKSPACE, 2) not in runtime.homes
        assert store.data(KEY) == bytes(bad)
        store.tamper(KEY, good)


@pytest.mark.parametrize(
    "change", [lambda data: data[:-1], lambda data: data + b"\0", lambda data: b"", lambda data: data[: len(data) // 2]]
)
def test_an_archive_of_another_length_is_corruption(runtime: FakeRuntime, store: FakeStore, change: object) -> None:
    result = archive(runtime, store)
    store.tamper(KEY, change(store.data(KEY)))  # type: ignore[operator]
    with pytest.raises(ArchiveCorruptedError):
        restore(runtime, store, result.sha256)
    assert (WORKSPACE, 2) not in runtime.homes


@pytest.mark.parametrize("length", [0, 5, 7, 40, 70])
def test_a_meta_that_was_cut_is_as_good_as_none_and_is_rebuilt(runtime: FakeRuntime, store: FakeStore, length: int) -> None:
    result = archive(runtime, store)
    whole = store.data(archives.meta_key(KEY))
    store.tamper(archives.meta_key(KEY), whole[:length])
    restore(runtime, store, result.sha256)
    assert store.data(archives.meta_key(KEY)) == whole


@pytest.mark.parametrize("meta", [b"sha1:", b"sha256:" + b"0" * 64, b"md5:" + b"0" * 64, b"\xff" * 71, b"sha256:" + b"Z" * 64])
def test_a_tampered_meta_is_corruption(runtime: FakeRuntime, store: FakeStore, meta: bytes) -> None:
    result = archive(runtime, store)
    store.tamper(archives.meta_key(KEY), meta)
    with pytest.raises(ArchiveCorruptedError):
        restore(runtime, store, result.sha256)
    assert (WORKSPACE, 2) not in runtime.homes


def test_another_homes_archive_under_the_key_is_corruption_although_its_meta_agrees(runtime: FakeRuntime, store: FakeStore) -> None:
    result = archive(runtime, store)
    other = archives.empty_archive(store, key="other/op/home.tar.zst", uid=0, gid=0, check=nothing)
    store.tamper(KEY, store.data("other/op/home.tar.zst"))
    store.tamper(archives.meta_key(KEY), f"sha256:{other.sha256}".encode())
    with pytest.raises(ArchiveCorruptedError):
        restore(runtime, store, result.sha256)


def test_a_missing_archive_is_missing_and_makes_no_volume(runtime: FakeRuntime, store: FakeStore) -> None:
    result = archive(runtime, store)
    store.delete([KEY])
    with pytest.raises(MissingError):
        restore(runtime, store, result.sha256)
    assert (WORKSPACE, 2) not in runtime.homes


def test_a_lost_meta_is_rebuilt_after_the_archive_matched_the_database(runtime: FakeRuntime, store: FakeStore) -> None:
    result = archive(runtime, store)
    store.delete([archives.meta_key(KEY)])
    restore(runtime, store, result.sha256)
    assert archives.read_meta(store, KEY) == result.sha256
    store.delete([archives.meta_key(KEY)])
    archives.rebuild_meta(store, KEY, result.sha256, check=nothing)
    assert archives.read_meta(store, KEY) == result.sha256
    store.tamper(KEY, b"else")
    store.delete([archives.meta_key(KEY)])
    with pytest.raises(ArchiveCorruptedError):
        archives.rebuild_meta(store, KEY, result.sha256, check=nothing)
    assert archives.meta_key(KEY) not in store.objects


def planted_under(store: FakeStore, key: str, tar: bytes) -> str:
    """A validly stored archive of whatever bytes: only its content is hostile."""
    data = zstandard.compress(tar)
    digest = hashlib.sha256(data).hexdigest()
    store.put(key, data)
    store.put(archives.meta_key(key), f"sha256:{digest}".encode())
    return digest


def planted(store: FakeStore, tar: bytes) -> str:
    return planted_under(store, KEY, tar)


@pytest.mark.parametrize("content", [value for name, value in HOSTILE.items() if not name.startswith("too ")])
def test_a_hostile_archive_with_the_right_digest_is_refused_and_leaves_nothing(
    runtime: FakeRuntime, store: FakeStore, content: bytes
) -> None:
    digest = planted(store, content + END_OF_TAR)
    with pytest.raises(ArchiveCorruptedError):
        restore(runtime, store, digest)
    assert (WORKSPACE, 2) not in runtime.homes
    assert KEY in store.objects


def test_bombs_in_bytes_in_files_and_behind_the_end_are_refused(runtime: FakeRuntime, store: FakeStore) -> None:
    bombs = (
        make_header(b"./x", REGULAR, size=64 << 20) + bytes(64 << 20) + END_OF_TAR,
        b"".join(make_header(b"./%d" % number, REGULAR) for number in range(2000)) + END_OF_TAR,
        END_OF_TAR + bytes(64 << 20),
    )
    for bomb in bombs:
        digest = planted(store, bomb)
        with pytest.raises(ArchiveCorruptedError):
            restore(runtime, store, digest, max_bytes=1 << 20, max_files=1000)
        assert (WORKSPACE, 2) not in runtime.homes


def test_a_huge_window_is_refused(runtime: FakeRuntime, store: FakeStore) -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=27, write_content_size=False)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    data = compressor.compress(END_OF_TAR) + compressor.flush()
    store.put(KEY, data)
    digest = hashlib.sha256(data)
    with pytest.raises(ArchiveCorruptedError):
        restore(runtime, store, digest.hexdigest())


def test_without_space_nothing_is_begun(runtime: FakeRuntime, store: FakeStore) -> None:
    result = archive(runtime, store)
    runtime.space = 1000
    with pytest.raises(ActionFailedError, match="space"):
        restore(runtime, store, result.sha256)
    assert (WORKSPACE, 2) not in runtime.homes


@pytest.mark.parametrize("method", ["provision", "write_volume", "get"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_failing_restore_leaves_no_half_volume_and_runs_again(runtime: FakeRuntime, store: FakeStore, method: str, when: str) -> None:
    result = archive(runtime, store)
    double = store if method == "get" else runtime
    double.fail(method, UnreachableError("gone", endpoint="docker"), when=when)  # type: ignore[arg-type]
    with pytest.raises(ProviderError):
        restore(runtime, store, result.sha256)
    if method != "provision":
        assert (WORKSPACE, 2) not in runtime.homes
    restore(runtime, store, result.sha256, generation=3)
    assert runtime.files(WORKSPACE, 3) == runtime.files(WORKSPACE, 1)


def test_an_empty_archive_restores_to_an_empty_home_of_its_owner(runtime: FakeRuntime, store: FakeStore) -> None:
    result = archives.empty_archive(store, key=KEY, uid=1000, gid=1000, check=nothing)
    restore(runtime, store, result.sha256)
    info, _ = runtime.homes[WORKSPACE, 2].members[""]
    assert (info.uid, info.gid, len(runtime.homes[WORKSPACE, 2].members)) == (1000, 1000, 1)


def test_progress_is_told_and_the_total_is_known_on_restore(runtime: FakeRuntime, store: FakeStore) -> None:
    result = archive(runtime, store)
    told: list[tuple[int, int | None]] = []
    archives.restore_home(
        runtime,
        store,
        workspace_id=WORKSPACE,
        generation=2,
        key=KEY,
        expected_sha256=result.sha256,
        spec=SPEC,
        max_bytes=1 << 30,
        max_files=1000,
        progress=lambda done, total: told.append((done, total)),
        check=nothing,
    )
    assert told[-1] == (result.uncompressed, result.uncompressed)


def test_keys_follow_the_contract() -> None:
    workspace, operation = uuid4(), uuid4()
    assert archives.archive_key(workspace, operation) == f"{workspace}/{operation}/home.tar.zst"


def test_the_tar_in_an_archive_is_a_plain_one_that_other_tools_read(runtime: FakeRuntime, store: FakeStore) -> None:
    archive(runtime, store)
    with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(store.data(KEY))) as reader, tarfile.open(fileobj=reader, mode="r|") as tar:
        assert {member.name for member in tar if member.isreg()} == {f"./file-{number}" for number in range(20)}


def test_progress_has_a_total_while_packing_and_while_reading_back(runtime: FakeRuntime, store: FakeStore) -> None:
    told: list[tuple[str, int, int | None]] = []
    steps = ["archive"]
    archives.archive_home(
        runtime,
        store,
        workspace_id=WORKSPACE,
        generation=1,
        key=KEY,
        progress=lambda done, total: told.append((steps[-1], done, total)),
        check=nothing,
        begin=steps.append,
    )
    assert steps == ["archive", "verify"]
    packed = [(done, total) for step, done, total in told if step == "archive"]
    assert packed
    assert all(total is not None and done <= total for done, total in packed)
    size = len(store.data(KEY))
    assert [(done, total) for step, done, total in told if step == "verify"][-1] == (size, size)


def test_the_length_of_a_home_is_told_from_its_sizes(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "file").write_bytes(b"x" * 100_000)
    (tmp_path / "deep" / "twin").hardlink_to(tmp_path / "deep" / "er" / "file")
    (tmp_path / "link").symlink_to("/nowhere")
    exact = sum(map(len, hometree.read_tree(os.fsencode(tmp_path))))
    assert exact * 0.9 < (hometree.tree_bytes(os.fsencode(tmp_path)) or 0) <= exact
    assert hometree.tree_bytes(os.fsencode(tmp_path), seconds=-1) is None
    assert hometree.tree_bytes(os.fsencode(tmp_path / "absent")) is None
