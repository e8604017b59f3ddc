"""The archive store on a real S3 server: streaming, paging, batches, and a server that misbehaves."""

import hashlib
import io
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from coordinator import archives
from coordinator.providers.base import ContainerSpec, MissingError, ProviderError, UnreachableError
from coordinator.providers.s3 import S3Store
from tests.fakes.runtime import FakeRuntime
from tests.fakes.s3_proxy import MisbehavingProxy, misbehaving

PART = 5 * 1024 * 1024


def store_at(s3: dict[str, str], url: str = "", *, prefix: str | None = None, read_timeout: float = 20) -> S3Store:
    return S3Store(
        endpoint_url=url or s3["S3_ENDPOINT_URL"],
        bucket=s3["S3_BUCKET"],
        prefix=f"{uuid4().hex}/" if prefix is None else prefix,
        access_key=s3["AWS_ACCESS_KEY_ID"],
        secret_key=s3["AWS_SECRET_ACCESS_KEY"],
        connect_timeout=2,
        read_timeout=read_timeout,
    )


@pytest.fixture
def store(s3: dict[str, str]) -> S3Store:
    return store_at(s3)


@pytest.fixture
def proxy(s3: dict[str, str]) -> Iterator[MisbehavingProxy]:
    with misbehaving(s3["S3_ENDPOINT_URL"]) as made:
        yield made


def content_of(store: S3Store, key: str) -> bytes:
    with store.get(key) as chunks:
        return b"".join(chunks)


@pytest.mark.parametrize("size", [0, 1, PART - 1, PART, PART + 1, 3 * PART + 17])
def test_what_is_put_is_got(store: S3Store, size: int) -> None:
    data = os.urandom(size)
    assert store.put("a/b", io.BytesIO(data), part_size=PART) == size
    assert content_of(store, "a/b") == data
    found = store.head("a/b")
    assert found
    assert (found.key, found.size) == ("a/b", size)


def test_facts_are_kept_beside_the_bytes(store: S3Store) -> None:
    store.put("k.meta", b"sha256:0", metadata={"files": "7"})
    found = store.head("k.meta")
    assert found
    assert found.metadata == {"files": "7"}


def test_what_is_not_there_is_missing(store: S3Store) -> None:
    assert store.head("nothing") is None
    with pytest.raises(MissingError), store.get("nothing"):
        pass


class OwnError(Exception):
    """What the source raises."""


class Breaking(io.BytesIO):
    def read(self, size: int | None = -1) -> bytes:
        if self.tell() >= 2 * PART:
            raise OwnError
        return super().read(size)


def test_an_error_of_the_source_aborts_the_upload_and_nothing_appears(store: S3Store) -> None:
    with pytest.raises(OwnError):
        store.put("broken", Breaking(os.urandom(4 * PART)), part_size=PART)
    assert store.head("broken") is None
    assert store.abort_stale_uploads(older_than=datetime.now(UTC) + timedelta(hours=1)) == 0


def test_half_uploads_that_are_old_are_dropped_and_young_ones_kept(store: S3Store) -> None:
    store._client().create_multipart_upload(Bucket=store._bucket, Key=store._prefix + "half")
    assert store.abort_stale_uploads(older_than=datetime.now(UTC) - timedelta(hours=1)) == 0
    assert store.abort_stale_uploads(older_than=datetime.now(UTC) + timedelta(hours=1)) == 1
    assert store.abort_stale_uploads(older_than=datetime.now(UTC) + timedelta(hours=1)) == 0


def test_listings_go_over_pages_and_deletes_over_batches(store: S3Store) -> None:
    store.page_size = 20
    keys = [f"{number:04}/x" for number in range(110)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: store.put(key, b""), keys))
    assert [found.key for found in store.list()] == keys
    assert [found.key for found in store.list("010")] == [f"010{number}/x" for number in range(10)]
    store.delete([*keys, "never-there"])
    assert list(store.list()) == []


def test_two_prefixes_do_not_see_each_other(s3: dict[str, str]) -> None:
    first, second = store_at(s3), store_at(s3)
    first.put("k", b"1")
    assert list(second.list()) == []
    assert second.head("k") is None


def test_a_stopped_server_is_unreachable_and_never_empty(s3: dict[str, str]) -> None:
    gone = store_at(s3, "http://127.0.0.1:9")
    with pytest.raises(UnreachableError):
        list(gone.list())
    with pytest.raises(UnreachableError):
        gone.head("x")
    with pytest.raises(UnreachableError), gone.get("x"):
        pass


def test_a_missing_bucket_is_unreachable_and_no_archive_counts_as_lost(s3: dict[str, str]) -> None:
    store = store_at({**s3, "S3_BUCKET": f"gone-{uuid4().hex[:8]}"})
    for ask in (lambda: store.head("x"), lambda: list(store.list()), lambda: archives.read_meta(store, "x")):
        with pytest.raises(UnreachableError):
            ask()


def test_wrong_credentials_are_unreachable(s3: dict[str, str]) -> None:
    with pytest.raises(UnreachableError):
        list(store_at({**s3, "AWS_SECRET_ACCESS_KEY": "wrong"}).list())


def test_short_faults_are_retried_inside_one_call(s3: dict[str, str], proxy: MisbehavingProxy) -> None:
    store = store_at(s3, proxy.url)
    for mode in ("cut_upload", "error", "lose_answer"):
        proxy.misbehave(mode, times=1)
        store.put(f"{mode}.zst", b"content")
        assert content_of(store, f"{mode}.zst") == b"content"
    assert proxy.faults == 3


def test_a_finish_whose_answer_is_lost_is_recognised_as_done(s3: dict[str, str], proxy: MisbehavingProxy) -> None:
    store = store_at(s3, proxy.url)
    data = os.urandom(2 * PART)
    original = store._complete

    def losing(*args: object) -> None:
        proxy.misbehave("lose_answer", times=1)
        original(*args)  # type: ignore[arg-type]

    store._complete = losing  # type: ignore[method-assign, assignment]
    assert store.put("big.zst", io.BytesIO(data), part_size=PART) == len(data)
    assert hashlib.sha256(content_of(store, "big.zst")).digest() == hashlib.sha256(data).digest()


def test_a_download_that_is_cut_raises_and_never_ends_quietly(s3: dict[str, str], proxy: MisbehavingProxy) -> None:
    store = store_at(s3, proxy.url)
    store.put("x.zst", os.urandom(300_000))
    proxy.misbehave("cut_download")
    with pytest.raises(UnreachableError):
        content_of(store, "x.zst")


@pytest.mark.parametrize("mode", ["cut_upload", "cut_download", "truncate", "slow", "error"])
def test_whatever_the_server_does_the_home_is_still_there_and_nothing_counts_as_its_archive(
    s3: dict[str, str], proxy: MisbehavingProxy, mode: str
) -> None:
    runtime, workspace, spec = FakeRuntime(), uuid4(), ContainerSpec(image="fake")
    runtime.provision(workspace, 1, spec)
    runtime.put_file(workspace, 1, "blob", os.urandom(200_000))
    store = store_at(s3, proxy.url, read_timeout=1 if mode == "slow" else 20)
    key = archives.archive_key(workspace, "op")
    proxy.misbehave(mode, only="home.tar.zst")

    def archive() -> archives.ArchiveResult:
        return archives.archive_home(
            runtime, store, workspace_id=workspace, generation=1, key=key, progress=lambda *_: None, check=lambda: None
        )

    with pytest.raises(ProviderError):
        archive()
    proxy.behave()
    assert proxy.faults
    assert store.head(archives.meta_key(key)) is None
    assert runtime.files(workspace, 1)
    result = archive()
    assert archives.verify_archive(store, key, result.sha256, check=lambda: None) == result.size
