"""The values the state core works on: a workspace's row, what was seen of it, its last run, the policy, and the decision.

Owns shapes only: plain dataclasses without Django, I/O or a clock. A `Snapshot` is copied before it is changed, never in place.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Self
from uuid import UUID

from workspaces.phases import Action, AttemptState, ConditionKey, DesiredState, ErrorReason, Operation, Phase


class Sight(StrEnum):
    """What is known of something outside. UNKNOWN: it could not be asked; never the same as ABSENT."""

    UNKNOWN = "unknown"
    ABSENT = "absent"
    PRESENT = "present"


class ContainerSight(StrEnum):
    UNKNOWN = "unknown"
    ABSENT = "absent"
    STOPPED = "stopped"
    RUNNING = "running"


class ArchiveSight(StrEnum):
    UNKNOWN = "unknown"
    ABSENT = "absent"
    NO_META = "no_meta"
    """The archive is there, its commit marker is not: no loss, a restore rebuilds the marker."""
    PRESENT = "present"


class Look(StrEnum):
    """A direct look the decision needs before it can be made."""

    CONTAINER = "container"
    VOLUME = "volume"
    ARCHIVE = "archive"
    PROBE = "probe"


@dataclass(frozen=True, slots=True)
class Observation:
    """What was seen of one workspace. `*_direct`: asked by name, not found in (or missing from) a listing."""

    container: ContainerSight = ContainerSight.UNKNOWN
    container_direct: bool = False
    container_generation: int = 0
    instance: str = ""
    endpoint: str = ""
    exit_code: int | None = None
    detail: str = ""
    listening: bool | None = None
    """Whether the IDE's port answered; None: not asked."""
    volume: Sight = Sight.UNKNOWN
    """The volume of the generation below, and only that."""
    volume_direct: bool = False
    generation: int = 0
    any_volume: Sight = Sight.UNKNOWN
    """Whether a volume of any generation is there: what deletion waits for."""
    archive: ArchiveSight = ArchiveSight.UNKNOWN
    archive_direct: bool = False
    archive_key: str | None = None
    """Which archive was looked for: what was seen of an older one says nothing about a newer."""
    ended_in_order: bool = False
    """It was ended together with CodeHub itself: nothing died."""

    @property
    def has_container(self) -> bool:
        return self.container in (ContainerSight.STOPPED, ContainerSight.RUNNING)

    @property
    def is_blind(self) -> bool:
        """The engine could not be asked: nothing may be planned."""
        return self.container is ContainerSight.UNKNOWN or self.volume is Sight.UNKNOWN


@dataclass(frozen=True, slots=True)
class Run:
    """The latest Attempt row of the operation in progress."""

    id: UUID
    action: Action
    number: int
    state: AttemptState
    params: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)
    error: Mapping[str, Any] | None = None
    queued_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    log: str = ""

    @property
    def is_open(self) -> bool:
        return self.state in (AttemptState.QUEUED, AttemptState.RUNNING)


@dataclass(frozen=True, slots=True)
class Policy:
    """Limits of 6.2 and the state of the circuit breakers, as seen by this look."""

    max_retries: int = 3
    backoff: float = 30.0
    limits: Mapping[str, float] = field(default_factory=dict)
    open_breakers: frozenset[str] = frozenset()
    closed_at: Mapping[str, float] = field(default_factory=dict)
    """When each circuit that had been open closed again, in seconds of the database's clock."""

    def limit(self, operation: Operation) -> float:
        return self.limits.get(operation, 300.0)


def new_context() -> dict[str, Any]:
    return {"generation": 0, "whole": False, "expected": False, "restore_marker": None}


@dataclass(slots=True)
class Snapshot:
    """The columns of one workspace that decisions read and write."""

    id: UUID
    desired_state: DesiredState = DesiredState.RUNNING
    phase: Phase = Phase.PENDING
    operation: Operation = Operation.NONE
    deleted_at: datetime | None = None
    recovery_strategy: str | None = None
    conditions: dict[str, Any] = field(default_factory=dict)
    archive_op_id: UUID | None = None
    archive_key: str | None = None
    archive_sha256: str | None = None
    archive_size: int | None = None
    archived_at: datetime | None = None
    error_reason: ErrorReason | None = None
    error_info: dict[str, Any] | None = None
    error_count: int = 0
    previous_phase: Phase | None = None
    home_ctx: dict[str, Any] = field(default_factory=new_context)
    endpoint: str = ""

    def copy(self) -> Self:
        """Independent where decisions write: the two JSON objects are copied too."""
        return replace(self, conditions=dict(self.conditions), home_ctx=dict(self.home_ctx))

    def status(self, key: ConditionKey) -> bool:
        """A condition's last known status. Before the first observation a workspace is healthy and has nothing."""
        entry = self.conditions.get(key)
        return key is ConditionKey.HEALTHY if entry is None else bool(entry["status"])

    @property
    def generation(self) -> int:
        return int(self.home_ctx.get("generation", 0))

    @property
    def whole(self) -> bool:
        return bool(self.home_ctx.get("whole"))

    @property
    def expected(self) -> bool:
        return bool(self.home_ctx.get("expected"))

    def wanted_archive_key(self) -> str | None:
        """Where the archive being made goes."""
        return f"{self.id}/{self.archive_op_id}/home.tar.zst" if self.archive_op_id else None

    @property
    def committed(self) -> bool:
        """The archive of the operation in progress is verified and in the row."""
        return self.archive_op_id is not None and self.archive_key == self.wanted_archive_key()


@dataclass(frozen=True, slots=True)
class QueuedRun:
    """An Attempt row to insert with the decision."""

    id: UUID
    operation: Operation
    op_id: UUID
    action: Action
    number: int
    params: dict[str, Any]


@dataclass(slots=True)
class Decision:
    """Everything that is written, in one statement, and what follows it."""

    after: Snapshot
    queue: QueuedRun | None = None
    end_runs: AttemptState | None = None
    """An open run of this workspace is no longer wanted: it ends in this state and is fenced by that."""
    looks: frozenset[Look] = frozenset()
    """Not decided yet: look at these directly first."""
    reason: str = ""
    message: str = ""
    alert: str = ""
    """Why operators are told; empty: they are not."""
    consumed: bool = False
    """The recovery that was asked for has been taken up."""
