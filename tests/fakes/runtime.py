"""A runtime in memory: containers and homes as plain values, faults on demand, every call recorded.

Owns nothing outside its own dictionaries. `ever_stored` remembers every file any home ever held, so that a test can ask
whether one was lost. Reads and writes real tar streams, so the real archive pipeline runs on it.
"""

import io
import itertools
import queue
import tarfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from uuid import UUID

from coordinator.providers.base import (
    ActionFailedError,
    Buffer,
    Container,
    ContainerSpec,
    ContainerState,
    ImagePullFailedError,
    MissingError,
    Progress,
    Volume,
)
from tests.fakes.scripting import Scripted, scripted


@dataclass(slots=True)
class FakeHome:
    """Members by name relative to the home (`a/b`; the home itself is the empty name)."""

    members: dict[str, tuple[tarfile.TarInfo, bytes]] = field(default_factory=dict)

    def files(self) -> dict[str, bytes]:
        return {name: data for name, (info, data) in self.members.items() if info.isreg()}


def _directory(name: str, *, uid: int, gid: int, mode: int = 0o755) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.uid, info.gid, info.mtime = tarfile.DIRTYPE, mode, uid, gid, int(time.time())
    return info


class FakeRuntime(Scripted):
    """Implements `Runtime`. Test-only verbs: `put_file`, `files`, `kill`, `lose_volume`, `lose_container`, `fail`, `hook`."""

    name = "fake"

    def __init__(self, *, identity: str = "fake-engine", listening: bool = True) -> None:
        super().__init__()
        self.engine_id = identity
        self.listening = listening
        """Whether new containers answer at once; a set of ids in `deaf` never does."""
        self.deaf: set[UUID] = set()
        self.containers: dict[UUID, Container] = {}
        self.homes: dict[tuple[UUID, int], FakeHome] = {}
        self.images: set[str] | None = None
        """None: every image is there or can be pulled."""
        self.pulled: list[str] = []
        self.space: int | None = None
        self.ever_stored: dict[UUID, dict[str, set[bytes]]] = {}
        self.printed: dict[UUID, str] = {}
        self._events: queue.SimpleQueue[UUID | None] = queue.SimpleQueue()
        self._instances = itertools.count(1)

    # --- test-only verbs
    def put_file(self, workspace_id: UUID, generation: int, name: str, data: bytes, *, uid: int = 1000, gid: int = 1000) -> None:
        info = tarfile.TarInfo(name)
        info.size, info.mode, info.uid, info.gid, info.mtime = len(data), 0o644, uid, gid, int(time.time())
        with self.lock:
            self.homes[workspace_id, generation].members[name] = (info, data)
            self._remember(workspace_id, name, data)

    def files(self, workspace_id: UUID, generation: int) -> dict[str, bytes]:
        return self.homes[workspace_id, generation].files()

    def kill(self, workspace_id: UUID, *, exit_code: int = 137, detail: str = "killed") -> None:
        """The container's process dies behind our back."""
        with self.lock:
            old = self.containers[workspace_id]
            self.containers[workspace_id] = replace(old, state=ContainerState.STOPPED, endpoint="", detail=detail, exit_code=exit_code)
        self._events.put(workspace_id)

    def lose_container(self, workspace_id: UUID) -> None:
        self.containers.pop(workspace_id, None)
        self._events.put(workspace_id)

    def lose_volume(self, workspace_id: UUID, generation: int) -> None:
        self.homes.pop((workspace_id, generation), None)
        self._events.put(workspace_id)

    def end_events(self) -> None:
        self._events.put(None)

    def _remember(self, workspace_id: UUID, name: str, data: bytes) -> None:
        self.ever_stored.setdefault(workspace_id, {}).setdefault(name, set()).add(data)

    # --- Runtime
    @scripted
    def identity(self) -> str:
        return self.engine_id

    @scripted
    def list_containers(self) -> list[Container]:
        with self.lock:
            return list(self.containers.values())

    @scripted
    def list_volumes(self) -> list[Volume]:
        with self.lock:
            return [Volume(workspace_id, generation) for workspace_id, generation in self.homes]

    @scripted
    def get_container(self, workspace_id: UUID) -> Container | None:
        return self.containers.get(workspace_id)

    @scripted
    def get_volume(self, workspace_id: UUID, generation: int) -> Volume | None:
        return Volume(workspace_id, generation) if (workspace_id, generation) in self.homes else None

    @scripted
    def probe(self, container: Container, spec: ContainerSpec) -> bool:
        current = self.containers.get(container.workspace_id)
        return bool(
            self.listening
            and container.workspace_id not in self.deaf
            and current
            and current.instance_id == container.instance_id
            and current.state is ContainerState.RUNNING
        )

    @scripted
    def ensure_image(self, image: str, progress: Progress) -> None:
        if self.images is not None and image not in self.images:
            raise ImagePullFailedError(f"no such image: {image}")
        self.pulled.append(image)
        progress(1, 1)

    @scripted
    def provision(self, workspace_id: UUID, generation: int, spec: ContainerSpec) -> None:
        with self.lock:
            if (workspace_id, generation) not in self.homes:
                root = _directory("", uid=spec.uid, gid=spec.gid)
                self.homes[workspace_id, generation] = FakeHome({"": (root, b"")})

    @scripted
    def delete_volume(self, workspace_id: UUID, generation: int) -> None:
        with self.lock:
            container = self.containers.get(workspace_id)
            if container and container.generation == generation and (workspace_id, generation) in self.homes:
                raise ActionFailedError("the volume is in use by a container")
            self.homes.pop((workspace_id, generation), None)

    @scripted
    def start(self, workspace_id: UUID, generation: int, spec: ContainerSpec) -> Container:
        with self.lock:
            if (workspace_id, generation) not in self.homes:
                raise MissingError("the home volume is not there")
            if self.images is not None and spec.image not in self.images:
                raise ImagePullFailedError(f"no such image: {spec.image}")
            old = self.containers.get(workspace_id)
            if old and old.generation == generation and old.state is ContainerState.RUNNING:
                return old
            number = next(self._instances)
            container = Container(
                workspace_id=workspace_id,
                generation=generation,
                state=ContainerState.RUNNING,
                endpoint=f"http://127.0.0.1:{10000 + number}",
                started_at=datetime.now(UTC),
                instance_id=f"instance-{number}",
            )
            self.containers[workspace_id] = container
            self.printed[workspace_id] = "started\n"
        self._events.put(workspace_id)
        return container

    @scripted
    def delete(self, workspace_id: UUID, *, only: str | None = None) -> str:
        with self.lock:
            if only is not None and (found := self.containers.get(workspace_id)) and found.instance_id != only:
                return ""
            gone = self.containers.pop(workspace_id, None)
            words = self.printed.pop(workspace_id, "")
        if gone:
            self._events.put(workspace_id)
        return words

    @scripted
    def _open_volume(self, workspace_id: UUID, generation: int) -> FakeHome:
        home = self.homes.get((workspace_id, generation))
        if home is None:
            raise MissingError("the home volume is not there")
        return home

    @contextmanager
    def read_volume(self, workspace_id: UUID, generation: int) -> Iterator[Iterator[bytes]]:
        with self.lock:
            self.calls.append(("read_volume", (workspace_id, generation)))
        self.run_hook("read_volume", workspace_id, generation)
        fault = self.take_fault("read_volume")
        if fault and fault.when == "before":
            raise fault.error
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for name, (info, data) in sorted(self._open_volume(workspace_id, generation).members.items()):
                member = info.replace(name=f"./{name}", deep=False)
                if info.islnk():
                    member.linkname = f"./{info.linkname}"
                tar.addfile(member, io.BytesIO(data) if info.isreg() else None)
        content = buffer.getvalue()

        def chunks() -> Iterator[bytes]:
            for start in range(0, len(content), 65536):
                # A fault "after" cuts the stream in its middle: the caller has seen a part of the home.
                if fault and start + 65536 >= len(content) // 2:
                    raise fault.error
                yield content[start : start + 65536]

        yield chunks()

    @scripted
    def write_volume(self, workspace_id: UUID, generation: int, stream: Iterable[Buffer]) -> None:
        home = self._open_volume(workspace_id, generation)
        content = b"".join(stream)
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
            for member in tar:
                name = member.name.removeprefix("./").strip("/") if member.name != "." else ""
                reader = tar.extractfile(member) if member.isreg() else None
                data = reader.read() if reader else b""
                # The old name in a pax record would win over the member's new one.
                member.pax_headers = {key: value for key, value in member.pax_headers.items() if key not in ("path", "linkpath")}
                if member.islnk():
                    member.linkname = member.linkname.removeprefix("./")
                with self.lock:
                    home.members[name] = (member, data)
                    if member.isreg():
                        self._remember(workspace_id, name, data)

    def home_bytes(self, workspace_id: UUID, generation: int) -> int | None:
        home = self.homes.get((workspace_id, generation))
        return None if home is None else sum(512 + len(data) for _, data in home.members.values())

    @scripted
    def free_bytes(self) -> int | None:
        return self.space

    @scripted
    def logs(self, workspace_id: UUID, lines: int = 200) -> str:
        return "".join(self.printed.get(workspace_id, "").splitlines(keepends=True)[-lines:])

    @scripted
    def remove_leftovers(self, *, older_than: datetime) -> int:
        return 0

    def events(self) -> Iterator[UUID]:
        while (workspace_id := self._events.get()) is not None:
            yield workspace_id
