"""What the coordinator needs of a runtime (containers and home volumes) and of an archive store.

Owns the interfaces, the values they exchange and the errors they raise. Nothing here assumes Docker: a volume may be a
PVC or a directory, a container a Pod or a process group. Providers know neither each other nor Django.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Literal, Protocol
from uuid import UUID

Buffer = bytes | bytearray | memoryview
"""Bytes on their way. Whoever gives one away does not touch it again; whoever is given one may write into it."""

Progress = Callable[[int, int | None], None]
"""Called with (done, total or None if unknown), often; the receiver limits its own rate."""


class ByteSource(Protocol):
    """What `put` reads from. Gives fewer bytes than asked for only at its end; anything it raises ends the upload."""

    def read(self, size: int = -1, /) -> bytes: ...


class ProviderError(Exception):
    """Something outside failed. `transient`: the same call may succeed a moment later."""

    transient = False

    def __init__(self, message: str, *, exit_code: int | None = None, stderr: str = "") -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.stderr = stderr


class UnreachableError(ProviderError):
    """The engine or the store did not answer, or refused us. The only error a circuit breaker counts."""

    transient = True

    def __init__(self, message: str, *, endpoint: Literal["docker", "k8s-api", "s3"], status_code: int | None = None) -> None:
        super().__init__(message)
        self.endpoint = endpoint
        self.status_code = status_code


class ActionFailedError(ProviderError):
    """It answered, and the thing asked for did not work (volume creation, container start, extraction)."""


class ImagePullFailedError(ProviderError):
    """The image cannot be had: unknown, forbidden, or nothing to pull it from."""


class MissingError(ProviderError):
    """The volume, container or object that the call needs is not there."""


class ArchiveCorruptedError(ProviderError):
    """The bytes of an archive are not what was stored, or hold what no archive of ours holds."""


class ContainerState(StrEnum):
    RUNNING = "running"
    """Its main process is alive. Whether the IDE answers is a separate question (`probe`)."""
    STOPPED = "stopped"
    """Created, exited, dead or being removed: it must be replaced before it can run."""


@dataclass(frozen=True, slots=True)
class Container:
    workspace_id: UUID
    generation: int
    state: ContainerState
    endpoint: str = ""
    """`http://host:port` or `unix:/path/to.sock`; empty while it has none. A fragment (`#address`) is the container's own address,
    where `host` is shared with others."""
    detail: str = ""
    """For people: exit code, out of memory and the like."""
    started_at: datetime | None = None
    exit_code: int | None = None
    instance_id: str = ""
    """The engine's own id: two runs of one workspace differ in it."""
    is_ended_in_order: bool = False
    """It was ended together with CodeHub itself: nothing died."""


@dataclass(frozen=True, slots=True)
class Volume:
    workspace_id: UUID
    generation: int
    size: int | None = None
    """Bytes, where the runtime knows without walking the tree."""


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """Everything `start` needs to know of an image of the catalogue. Templates `{port}`, `{home}`, `{base_url}`, `{socket}`
    and `{id}` in the command and the environment's values are filled in by the runtime."""

    image: str
    command: tuple[str, ...] = ()
    port: int = 8080
    env: dict[str, str] = field(default_factory=dict)
    home: str = "/home/coder"
    uid: int = 1000
    gid: int = 1000
    memory_mb: int = 2048
    cpus: float = 2.0
    pids_limit: int = 512
    base_url: str = "/"
    health_path: str = "/"


@dataclass(frozen=True, slots=True)
class StoredObject:
    key: str
    size: int
    modified_at: datetime
    etag: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Short facts stored beside the bytes. Filled by `head` only: listings do not carry them."""


class Runtime(Protocol):
    """Containers and home volumes of one engine. Every method may be called twice, from any process.

    All methods raise `UnreachableError` when the engine cannot be asked: never an empty answer instead. Only things that
    carry this installation's label (or live in its directory) are seen or touched.
    """

    name: str

    def identity(self) -> str:
        """What tells this engine from every other; the same after a restart of the engine."""

    def list_containers(self) -> list[Container]:
        """All of this installation's containers, running or not, in one call to the engine. Does not probe ports."""

    def list_volumes(self) -> list[Volume]:
        """All of this installation's volumes, every generation, in one call to the engine. Sizes may be None."""

    def get_container(self, workspace_id: UUID) -> Container | None:
        """A direct look. None means: the engine said that it does not exist."""

    def get_volume(self, workspace_id: UUID, generation: int) -> Volume | None:
        """A direct look. None means: the engine said that it does not exist."""

    def probe(self, container: Container, spec: ContainerSpec) -> bool:
        """Whether the IDE of this running container accepts a connection now. Never raises for a refused connection."""

    def ensure_image(self, image: str, progress: Progress) -> None:
        """The image is there on return. Raises ImagePullFailedError when it cannot be had."""

    def provision(self, workspace_id: UUID, generation: int, spec: ContainerSpec) -> None:
        """An empty volume owned by the spec's user exists on return. An existing one of this generation is left as it is."""

    def delete_volume(self, workspace_id: UUID, generation: int) -> None:
        """That generation is gone on return. Gone already: nothing happens. Still in use: ActionFailedError."""

    def start(self, workspace_id: UUID, generation: int, spec: ContainerSpec) -> Container:
        """Exactly one running container with this generation's volume on return; it may not listen yet.

        A running one of the same generation is left alone; any other (stopped, other generation) is replaced. A missing
        volume is MissingError, never created by mounting.
        """

    def delete(self, workspace_id: UUID, *, only: str | None = None) -> str:
        """No container of this workspace exists on return, whatever its generation. Its volume stays.

        `only`: just the one with that instance id; a newer one is left alone. Gives the last lines its IDE printed, those at its
        end included; empty when there are none or they cannot be had.
        """

    def read_volume(self, workspace_id: UUID, generation: int) -> AbstractContextManager[Iterator[bytes]]:
        """The home as a tar stream with member names relative to the home (`./...`), metadata kept. Runs nothing inside.

        Raises MissingError when the volume is not there. A stream that breaks raises; the caller still checks that the tar
        is complete.
        """

    def write_volume(self, workspace_id: UUID, generation: int, stream: Iterable[Buffer]) -> None:
        """Fill the (new, empty) volume from a tar stream of names relative to the home, owners and times kept.

        The caller has already refused dangerous members. An exception raised by the iterable stops the write and comes out
        as it is. What was written so far stays: the caller throws the generation away.
        """

    def home_bytes(self, workspace_id: UUID, generation: int) -> int | None:
        """About how long the tar of this home is, for showing progress; None when the runtime cannot tell in a moment."""

    def free_bytes(self) -> int | None:
        """Space left for volumes, or None when the runtime cannot tell."""

    def logs(self, workspace_id: UUID, lines: int = 200) -> str:
        """The last lines its IDE printed, oldest first; empty when there is no container."""

    def remove_leftovers(self, *, older_than: datetime) -> int:
        """Remove what calls of a killed process left of the runtime's own making (helper containers, half-made or half-removed
        directories) and that was made before; how many. Never a workspace's container nor a volume that is listed."""

    def events(self) -> Iterator[UUID]:
        """Ids of workspaces whose container changed, as it happens, until the stream breaks (then it raises or ends)."""


class ArchiveStore(Protocol):
    """Object storage. Keys are relative to this installation's prefix. All methods raise `UnreachableError` when it cannot
    be asked and retry short faults themselves."""

    def put(
        self, key: str, stream: ByteSource | bytes, *, part_size: int = 8 * 1024 * 1024, metadata: Mapping[str, str] | None = None
    ) -> int:
        """Store the stream (multipart when it is long) and return how many bytes were sent. An exception from the stream's
        `read` aborts the upload: nothing appears under the key."""

    def get(self, key: str) -> AbstractContextManager[Iterator[bytes]]:
        """The object's bytes. MissingError when it is not there. A connection that breaks early raises, never ends quietly."""

    def head(self, key: str) -> StoredObject | None:
        """None means: the store said that it does not exist."""

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """Everything below the prefix, page by page. Raises rather than end early."""

    def delete(self, keys: Iterable[str]) -> None:
        """Gone on return, in batches; what is gone already is no error."""

    def abort_stale_uploads(self, *, older_than: datetime) -> int:
        """Drop multipart uploads that were begun before and never finished; how many."""
