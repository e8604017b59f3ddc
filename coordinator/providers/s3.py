"""The archive store on anything that speaks S3, by boto3.

Owns multipart streaming with constant memory, paging, batches and the translation of errors. Knows keys and bytes, not what is
in them. A short answer of the server is never taken for the whole object.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import boto3
import urllib3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from coordinator.providers.base import ActionFailedError, ByteSource, MissingError, ProviderError, StoredObject, UnreachableError

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

T = TypeVar("T")

READ_SIZE = 1 << 20
MAX_PARTS = 10_000
_UPLOADERS = 3
_TRIES = 3
_MISSING = ("404", "NoSuchKey", "NotFound", "NoSuchUpload")


class S3Store:
    """Implements `ArchiveStore`. Keys are relative to `prefix`."""

    page_size = 1000
    """Objects in one page of a listing and in one batch of deletions; S3 allows no more."""

    def __init__(
        self,
        *,
        endpoint_url: str,
        bucket: str,
        prefix: str,
        access_key: str,
        secret_key: str,
        region: str = "us-east-1",
        connect_timeout: float = 5,
        read_timeout: float = 60,
    ) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._arguments: dict[str, Any] = {
            "endpoint_url": endpoint_url or None,
            "aws_access_key_id": access_key or None,
            "aws_secret_access_key": secret_key or None,
            "region_name": region,
            "config": Config(
                connect_timeout=connect_timeout,
                read_timeout=read_timeout,
                retries={"total_max_attempts": _TRIES, "mode": "standard"},
                max_pool_connections=32,
                # Many servers do not know the newer trailing checksums; our own digest covers the whole object.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                # Signing a body means hashing it once more; what was stored is read back and compared anyway.
                s3={"addressing_style": "path", "payload_signing_enabled": False},
                # A server on this machine is never behind the proxy that the environment may name.
                proxies={} if urlsplit(endpoint_url).hostname in ("127.0.0.1", "localhost", "::1") else None,
            ),
        }
        self._made: S3Client | None = None
        self._lock = threading.Lock()

    def _client(self) -> "S3Client":
        with self._lock:
            if self._made is None:
                # Not the default session: making clients from it is not safe in threads.
                self._made = boto3.session.Session().client("s3", **self._arguments)
            return self._made

    def _call(self, function: Callable[["S3Client"], T], *, doing: str) -> T:
        try:
            return function(self._client())
        except (ClientError, BotoCoreError, urllib3.exceptions.HTTPError, OSError) as error:
            raise translated(error, doing) from error

    # --- put
    def put(
        self, key: str, stream: ByteSource | bytes, *, part_size: int = 8 * 1024 * 1024, metadata: Mapping[str, str] | None = None
    ) -> int:
        name = self._prefix + key
        facts = dict(metadata or {})
        first = stream if isinstance(stream, bytes) else read_fully(stream, part_size)
        if isinstance(stream, bytes) or len(first) < part_size:
            self._call(lambda s3: s3.put_object(Bucket=self._bucket, Key=name, Body=first, Metadata=facts), doing="store an object")
            return len(first)
        return self._put_in_parts(name, first, stream, part_size, facts)

    def _put_in_parts(self, name: str, first: bytes, stream: ByteSource, part_size: int, facts: dict[str, str]) -> int:
        begun = self._call(lambda s3: s3.create_multipart_upload(Bucket=self._bucket, Key=name, Metadata=facts), doing="begin an upload")
        upload_id = begun["UploadId"]
        try:
            parts, total = self._send_parts(name, upload_id, first, stream, part_size)
            self._complete(name, upload_id, parts, total)
        except BaseException:
            self._abort(name, upload_id)
            raise
        return total

    def _send_parts(self, name: str, upload_id: str, first: bytes, stream: ByteSource, part_size: int) -> tuple[list[tuple[int, str]], int]:
        parts: list[tuple[int, str]] = []
        waiting: list[Future[tuple[int, str]]] = []
        total, number, body = 0, 1, first
        with ThreadPoolExecutor(_UPLOADERS, thread_name_prefix="s3-part") as pool:
            try:
                while body:
                    if number > MAX_PARTS:
                        raise ActionFailedError("the object needs more parts than object storage allows")
                    waiting.append(pool.submit(self._send_part, name, upload_id, number, body))
                    total += len(body)
                    while len(waiting) >= _UPLOADERS:
                        parts.append(waiting.pop(0).result())
                    number += 1
                    # Parts grow, so that large homes fit into the number of parts that S3 allows and small ones take little memory.
                    body = read_fully(stream, part_size * (1 if number <= 3000 else 4 if number <= 6000 else 16))
                parts.extend(future.result() for future in waiting)
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise
        return parts, total

    def _send_part(self, name: str, upload_id: str, number: int, body: bytes) -> tuple[int, str]:
        answer = self._call(
            lambda s3: s3.upload_part(Bucket=self._bucket, Key=name, UploadId=upload_id, PartNumber=number, Body=body),
            doing="upload a part",
        )
        return number, answer["ETag"]

    def _complete(self, name: str, upload_id: str, parts: list[tuple[int, str]], total: int) -> None:
        listed = [{"PartNumber": number, "ETag": etag} for number, etag in parts]
        try:
            self._call(
                lambda s3: s3.complete_multipart_upload(
                    Bucket=self._bucket,
                    Key=name,
                    UploadId=upload_id,
                    MultipartUpload={"Parts": listed},  # type: ignore[typeddict-item]
                ),
                doing="finish an upload",
            )
        except MissingError:
            # A first answer was lost on the way and the retry finds the upload gone: done, if the object is whole.
            found = self._head(name)
            if found is None or found.size != total:
                raise UnreachableError("object storage lost an upload at its end", endpoint="s3") from None

    def _abort(self, name: str, upload_id: str) -> None:
        try:
            self._call(lambda s3: s3.abort_multipart_upload(Bucket=self._bucket, Key=name, UploadId=upload_id), doing="abort an upload")
        except ProviderError:
            # The failure that led here matters more; what is left is found by `abort_stale_uploads`.
            return

    # --- get, head, list
    @contextmanager
    def get(self, key: str) -> Iterator[Iterator[bytes]]:
        answer = self._call(lambda s3: s3.get_object(Bucket=self._bucket, Key=self._prefix + key), doing="read an object")
        body, length = answer["Body"], answer["ContentLength"]
        try:
            yield self._chunks(body, length)
        finally:
            body.close()

    @staticmethod
    def _chunks(body: Any, length: int) -> Iterator[bytes]:
        received = 0
        try:
            while chunk := body.read(READ_SIZE):
                received += len(chunk)
                yield chunk
        except (BotoCoreError, urllib3.exceptions.HTTPError, OSError) as error:
            raise translated(error, "read an object") from error
        if received != length:
            raise UnreachableError(f"object storage sent {received} of {length} bytes", endpoint="s3")

    def head(self, key: str) -> StoredObject | None:
        found = self._head(self._prefix + key)
        return found and StoredObject(key, found.size, found.modified_at, found.etag, found.metadata)

    def _head(self, name: str) -> StoredObject | None:
        try:
            answer = self._call(lambda s3: s3.head_object(Bucket=self._bucket, Key=name), doing="look at an object")
        except MissingError:
            self._check_bucket()
            return None
        return StoredObject(name, answer["ContentLength"], answer["LastModified"], answer.get("ETag", ""), answer.get("Metadata", {}))

    def _check_bucket(self) -> None:
        """An object is absent only from a bucket that is there: without one nothing is known, and nothing lost."""
        try:
            self._call(lambda s3: s3.head_bucket(Bucket=self._bucket), doing="look for the bucket")
        except MissingError:
            raise UnreachableError("object storage does not have the bucket", endpoint="s3", status_code=404) from None

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        token = ""
        while True:
            page = self._call(lambda s3, token=token: self._page(s3, prefix, token), doing="list objects")  # type: ignore[misc]
            for row in page.get("Contents", []):
                yield StoredObject(row["Key"].removeprefix(self._prefix), row["Size"], row["LastModified"], row.get("ETag", ""))
            if not page.get("IsTruncated"):
                return
            following = page.get("NextContinuationToken", "")
            if not following or following == token:
                raise UnreachableError("object storage broke off a listing", endpoint="s3")
            token = following

    def _page(self, s3: "S3Client", prefix: str, token: str) -> Any:
        more: dict[str, Any] = {"ContinuationToken": token} if token else {}
        return s3.list_objects_v2(Bucket=self._bucket, Prefix=self._prefix + prefix, MaxKeys=self.page_size, **more)

    # --- delete
    def delete(self, keys: Iterable[str]) -> None:
        for batch in _batches(keys, self.page_size):
            objects = [{"Key": self._prefix + key} for key in batch]
            answer = self._call(
                lambda s3, objects=objects: s3.delete_objects(  # type: ignore[misc]
                    Bucket=self._bucket, Delete={"Objects": objects, "Quiet": True}
                ),
                doing="delete objects",
            )
            failed = [row for row in answer.get("Errors", []) if row.get("Code") not in _MISSING]
            if failed:
                raise UnreachableError(f"object storage did not delete {len(failed)} objects: {failed[0].get('Code')}", endpoint="s3")

    def abort_stale_uploads(self, *, older_than: datetime) -> int:
        markers: dict[str, Any] = {}
        stale: list[tuple[str, str]] = []
        while True:
            page = self._call(
                lambda s3, markers=markers: s3.list_multipart_uploads(  # type: ignore[misc]
                    Bucket=self._bucket, Prefix=self._prefix, **markers
                ),
                doing="list uploads",
            )
            stale += [(row["Key"], row["UploadId"]) for row in page.get("Uploads", []) if row["Initiated"] < older_than]
            if not page.get("IsTruncated"):
                break
            markers = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}
        for name, upload_id in stale:
            self._abort(name, upload_id)
        return len(stale)

    def ensure_bucket(self) -> None:
        """The bucket exists on return; for a fresh installation and for tests."""
        try:
            self._call(lambda s3: s3.head_bucket(Bucket=self._bucket), doing="look for the bucket")
        except MissingError:
            try:
                self._call(lambda s3: s3.create_bucket(Bucket=self._bucket), doing="create the bucket")
            except ActionFailedError:
                time.sleep(0.2)
                self._call(lambda s3: s3.head_bucket(Bucket=self._bucket), doing="look for the bucket")


def read_fully(stream: ByteSource, size: int) -> bytes:
    """Exactly `size` bytes unless the stream ends first: parts of a multipart upload must not be short."""
    first = stream.read(size)
    if not first or len(first) == size:
        return first
    parts, missing = [first], size - len(first)
    while missing and (more := stream.read(missing)):
        parts.append(more)
        missing -= len(more)
    return b"".join(parts)


def _batches(keys: Iterable[str], size: int) -> Iterator[tuple[str, ...]]:
    batch: list[str] = []
    for key in keys:
        batch.append(key)
        if len(batch) == size:
            yield tuple(batch)
            batch = []
    if batch:
        yield tuple(batch)


def translated(error: Exception, doing: str) -> ProviderError:
    """Our error for one of boto3's. Access refused counts as unreachable: nothing of a single workspace is to blame."""
    if isinstance(error, ClientError):
        code = str(error.response.get("Error", {}).get("Code", ""))
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        if code == "NoSuchBucket":
            return UnreachableError(f"object storage does not have the bucket ({doing})", endpoint="s3", status_code=404)
        if code in _MISSING or status == 404:
            return MissingError(f"not in object storage ({doing})")
        message = f"object storage refused ({doing}): {code or status}"
        if status >= 500 or status in (0, 401, 403, 408, 429) or code in ("SlowDown", "RequestTimeout", "InternalError"):
            return UnreachableError(message, endpoint="s3", status_code=status or None)
        return ActionFailedError(message, stderr=str(error)[:500])
    return UnreachableError(f"object storage did not answer ({doing}): {type(error).__name__}", endpoint="s3")
