"""An archive store in memory: objects as bytes, faults on demand, every call recorded.

Also misbehaves as real servers do: `truncate_next` stores less than it was sent and answers well, `stale` hides new objects
from listings. Implements `ArchiveStore`.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

from coordinator.providers.base import ByteSource, MissingError, StoredObject
from tests.fakes.scripting import Scripted, scripted


@dataclass(slots=True)
class FakeObject:
    data: bytes
    modified_at: datetime
    metadata: dict[str, str] = field(default_factory=dict)


class FakeStore(Scripted):
    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[str, FakeObject] = {}
        self.truncate_next = False
        self.stale: set[str] = set()
        self.half_uploads: dict[str, datetime] = {}

    def data(self, key: str) -> bytes:
        return self.objects[key].data

    def tamper(self, key: str, data: bytes) -> None:
        self.objects[key].data = data

    @scripted
    def put(
        self, key: str, stream: ByteSource | bytes, *, part_size: int = 8 * 1024 * 1024, metadata: Mapping[str, str] | None = None
    ) -> int:
        if isinstance(stream, bytes):
            content = stream
        else:
            parts = []
            while part := stream.read(part_size):
                parts.append(part)
            content = b"".join(parts)
        stored = content[: len(content) // 2] if self.truncate_next else content
        self.truncate_next = False
        with self.lock:
            self.objects[key] = FakeObject(stored, datetime.now(UTC), dict(metadata or {}))
        return len(content)

    @contextmanager
    def get(self, key: str) -> Iterator[Iterator[bytes]]:
        with self.lock:
            self.calls.append(("get", (key,)))
        self.run_hook("get", key)
        fault = self.take_fault("get")
        if fault and fault.when == "before":
            raise fault.error
        found = self.objects.get(key)
        if found is None:
            raise MissingError(f"no object {key}")
        content = found.data

        def chunks() -> Iterator[bytes]:
            for start in range(0, len(content), 65536):
                if fault and start + 65536 >= len(content) // 2:
                    raise fault.error
                yield content[start : start + 65536]

        yield chunks()

    @scripted
    def head(self, key: str) -> StoredObject | None:
        found = self.objects.get(key)
        return self._stored(key, found) if found else None

    @scripted
    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        with self.lock:
            keys = sorted(key for key in self.objects if key.startswith(prefix) and key not in self.stale)
            found = [(key, self.objects[key]) for key in keys]
        return iter([self._stored(key, value) for key, value in found])

    @scripted
    def delete(self, keys: Iterable[str]) -> None:
        with self.lock:
            for key in keys:
                self.objects.pop(key, None)

    @scripted
    def abort_stale_uploads(self, *, older_than: datetime) -> int:
        stale = [key for key, begun in self.half_uploads.items() if begun < older_than]
        for key in stale:
            del self.half_uploads[key]
        return len(stale)

    @staticmethod
    def _stored(key: str, found: FakeObject) -> StoredObject:
        return StoredObject(key, len(found.data), found.modified_at, str(hash(found.data)), found.metadata)
