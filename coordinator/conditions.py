"""Pure: observations -> conditions, broken invariants and the phase.

Owns sections 1.1 to 1.3 of the state model. What could not be seen stays as it was; an absence from a listing counts only after a
direct look. No Django, no I/O, no clock.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from coordinator.state import ArchiveSight, ContainerSight, Look, Observation, Run, Sight, Snapshot
from workspaces.phases import ConditionKey, DesiredState, ErrorReason, Operation, Phase

Verdict = tuple[bool, str, str]

# Where an operation starts from, for a row whose context does not say.
_STARTS_FROM = {
    Operation.PROVISIONING: Phase.PENDING,
    Operation.CREATE_EMPTY_ARCHIVE: Phase.PENDING,
    Operation.RESTORING: Phase.ARCHIVED,
    Operation.STARTING: Phase.STANDBY,
    Operation.STOPPING: Phase.RUNNING,
    Operation.ARCHIVING: Phase.STANDBY,
    Operation.DELETING: Phase.DELETING,
}


def decide_phase(
    *,
    conditions: Mapping[str, Any],
    operation: Operation,
    deleted_at: datetime | None,
    archive_key: str | None,
    home_ctx: Mapping[str, Any],
    error_info: Mapping[str, Any] | None,
) -> Phase:
    """The phase, in the order of judgement: deletion, safety, the operation's start, reality."""

    def holds(key: ConditionKey) -> bool:
        entry = conditions.get(key)
        return key is ConditionKey.HEALTHY if entry is None else bool(entry["status"])

    if deleted_at is not None:
        return Phase.DELETED if home_ctx.get("gone") else Phase.DELETING
    if not holds(ConditionKey.HEALTHY) or (error_info is not None and error_info.get("is_terminal")):
        return Phase.ERROR
    if operation is not Operation.NONE:
        return Phase(home_ctx.get("op_phase") or _STARTS_FROM[operation])
    if holds(ConditionKey.VOLUME_READY):
        return Phase.RUNNING if holds(ConditionKey.CONTAINER_READY) else Phase.STANDBY
    if home_ctx.get("expected"):
        # A home should be there and is not: never new, never an older archive.
        return Phase.ERROR
    return Phase.ARCHIVED if archive_key is not None else Phase.PENDING


def phase_of(ws: Snapshot) -> Phase:
    return decide_phase(
        conditions=ws.conditions,
        operation=ws.operation,
        deleted_at=ws.deleted_at,
        archive_key=ws.archive_key,
        home_ctx=ws.home_ctx,
        error_info=ws.error_info,
    )


def decide_looks(ws: Snapshot, seen: Observation, run: Run | None) -> frozenset[Look]:
    """What must be asked directly before this observation may be judged."""
    looks: set[Look] = set()
    in_error = ws.phase is Phase.ERROR
    volume_was = ws.status(ConditionKey.VOLUME_READY)
    if seen.volume is Sight.ABSENT and not seen.volume_direct and (volume_was or (ws.expected and not in_error)):
        looks.add(Look.VOLUME)
    container_was = ws.status(ConditionKey.CONTAINER_READY)
    if seen.container is ContainerSight.ABSENT and not seen.container_direct and container_was and ws.operation is Operation.NONE:
        looks.add(Look.CONTAINER)
    if not in_error and ws.deleted_at is None and seen.has_container and seen.volume is not Sight.UNKNOWN:
        whole = seen.volume is Sight.PRESENT and ws.whole
        if not whole and not ws.home_ctx.get("clearing"):
            looks.update(look for look, done in ((Look.CONTAINER, seen.container_direct), (Look.VOLUME, seen.volume_direct)) if not done)
    if _wants_probe(ws, seen, run):
        looks.add(Look.PROBE)
    if _wants_archive_look(ws, seen, in_error=in_error):
        looks.add(Look.ARCHIVE)
    return frozenset(looks)


def _wants_probe(ws: Snapshot, seen: Observation, run: Run | None) -> bool:
    """A listing keeps a container ready; only its port makes it ready."""
    if seen.container is not ContainerSight.RUNNING or seen.listening is not None or seen.container_generation != ws.generation:
        return False
    if ws.phase is Phase.ERROR or ws.deleted_at is not None or (run is not None and run.is_open):
        return False
    if ws.operation is Operation.STARTING:
        return True
    known = ws.status(ConditionKey.CONTAINER_READY) and seen.instance == ws.home_ctx.get("instance")
    return ws.operation is Operation.NONE and ws.desired_state is DesiredState.RUNNING and not known


def _wants_archive_look(ws: Snapshot, seen: Observation, *, in_error: bool) -> bool:
    if ws.archive_key is None or seen.archive_direct:
        return False
    about = seen.archive if seen.archive_key == ws.archive_key else ArchiveSight.UNKNOWN
    if ws.operation in (Operation.ARCHIVING, Operation.CREATE_EMPTY_ARCHIVE) and ws.committed:
        # The order that must never be reversed hangs on this answer: a listing is too old for it.
        return True
    if about not in (ArchiveSight.ABSENT, ArchiveSight.NO_META):
        return False
    lost = about is ArchiveSight.ABSENT and not ws.expected and not in_error and ws.deleted_at is None
    return ws.status(ConditionKey.ARCHIVE_READY) or lost


def decide_conditions(ws: Snapshot, seen: Observation, *, now: datetime) -> dict[str, Any]:
    """The three observed conditions; `policy.healthy` follows from them and is set last, by `judge`."""
    conditions = dict(ws.conditions)
    verdicts = {
        ConditionKey.VOLUME_READY: _volume(ws, seen),
        ConditionKey.ARCHIVE_READY: _archive(ws, seen),
        ConditionKey.CONTAINER_READY: _container(ws, seen),
    }
    for key, verdict in verdicts.items():
        if verdict is not None:
            set_condition(conditions, key, verdict, now=now)
        elif key not in conditions:
            set_condition(conditions, key, (False, "NotSeenYet", "It has not been looked at yet."), now=now)
    return conditions


def set_condition(conditions: dict[str, Any], key: ConditionKey, verdict: Verdict, *, now: datetime) -> None:
    """Replace an entry when something of it changed; its time moves only with its status."""
    status, reason, message = verdict
    old = conditions.get(key)
    if old is not None and (old["status"], old["reason"], old["message"]) == verdict:
        return
    moved = now.isoformat() if old is None or old["status"] != status else old["last_transition_time"]
    conditions[key] = {"status": status, "reason": reason, "message": message, "last_transition_time": moved}


def _volume(ws: Snapshot, seen: Observation) -> Verdict | None:
    if seen.generation != ws.generation or seen.volume is Sight.UNKNOWN:
        return None
    if seen.volume is Sight.ABSENT:
        if not seen.volume_direct and (ws.expected or ws.status(ConditionKey.VOLUME_READY)):
            return None
        return False, "NoVolume", "There is no home on disk."
    if ws.whole:
        return True, "VolumeReady", "The home is on disk."
    return False, "NotWhole", "A home is on disk, but not all of it."


def _archive(ws: Snapshot, seen: Observation) -> Verdict | None:
    if ws.archive_key is None:
        return False, "NoArchive", "There is no archive."
    if seen.archive_key != ws.archive_key or seen.archive is ArchiveSight.UNKNOWN:
        return None
    if seen.archive is ArchiveSight.PRESENT:
        return True, "ArchiveReady", "The home is packed in object storage."
    if not seen.archive_direct and ws.status(ConditionKey.ARCHIVE_READY):
        return None
    if seen.archive is ArchiveSight.NO_META:
        return False, "MetaMissing", "The archive is there, its checksum file is not."
    return False, "ArchiveMissing", "The archive is not in object storage."


def _container(ws: Snapshot, seen: Observation) -> Verdict | None:
    was_ready = ws.status(ConditionKey.CONTAINER_READY)
    if seen.container is ContainerSight.UNKNOWN:
        return None
    if seen.container is ContainerSight.ABSENT:
        if not seen.container_direct and was_ready and ws.operation is Operation.NONE:
            return None
        return False, "NoContainer", "Nothing runs."
    if seen.container is ContainerSight.STOPPED:
        return False, "ContainerStopped", "The container is there, but it does not run."
    if seen.container_generation != ws.generation:
        return False, "OtherGeneration", "A container of an older home is in the way."
    if seen.listening or (seen.listening is None and was_ready and seen.instance == ws.home_ctx.get("instance")):
        return True, "ContainerReady", "The IDE takes traffic."
    return False, "NotListening", "The container runs, but its IDE does not answer yet."


def broken_invariant(ws: Snapshot, seen: Observation) -> tuple[ErrorReason, str] | None:
    """The invariant that direct looks show to be broken, if any. Not asked for what is being deleted."""
    volume_known = seen.generation == ws.generation and seen.volume is not Sight.UNKNOWN
    volume_gone = volume_known and seen.volume is Sight.ABSENT and seen.volume_direct
    whole_here = ws.status(ConditionKey.VOLUME_READY)
    if (
        seen.has_container
        and seen.container_direct
        and volume_known
        and seen.volume_direct
        and not whole_here
        and not ws.home_ctx.get("clearing")
    ):
        return ErrorReason.CONTAINER_WITHOUT_VOLUME, "A container exists and there is no whole home under it."
    if ws.expected and volume_gone:
        return ErrorReason.DATA_LOST, "The home should be on disk and is not."
    about_this = seen.archive_key == ws.archive_key and seen.archive_direct
    if ws.archive_key is not None and not ws.expected and not whole_here and about_this and seen.archive is ArchiveSight.ABSENT:
        return ErrorReason.DATA_LOST, "The archive that holds the home is not in object storage."
    return None


def is_settled(ws: Snapshot, seen: Observation) -> bool:
    """Nothing to write and nothing to do: a cheap answer for most rows of most ticks. False only costs the full decision."""
    if ws.operation is not Operation.NONE or ws.deleted_at is not None or ws.recovery_strategy is not None or len(ws.conditions) < 4:
        return False
    in_error = ws.phase is Phase.ERROR
    if not in_error and str(ws.phase) != str(ws.desired_state):
        return False
    return _container_settled(ws, seen, in_error=in_error) and _storage_settled(ws, seen, in_error=in_error)


def _container_settled(ws: Snapshot, seen: Observation, *, in_error: bool) -> bool:
    ready = ws.conditions[ConditionKey.CONTAINER_READY]
    if seen.container is ContainerSight.UNKNOWN:
        return True
    if seen.container is ContainerSight.ABSENT:
        return bool(ready["reason"] == "NoContainer")
    if in_error or seen.listening is not None:
        # Rare enough to be decided in full.
        return False
    return (
        seen.container is ContainerSight.RUNNING
        and bool(ready["status"])
        and seen.container_generation == ws.generation
        and seen.instance == ws.home_ctx.get("instance")
        and seen.endpoint == ws.endpoint
    )


def _storage_settled(ws: Snapshot, seen: Observation, *, in_error: bool) -> bool:
    volume = ws.conditions[ConditionKey.VOLUME_READY]["reason"]
    if seen.generation != ws.generation:
        return False
    if seen.volume is Sight.PRESENT and volume != ("VolumeReady" if ws.whole else "NotWhole"):
        return False
    if seen.volume is Sight.ABSENT and (volume != "NoVolume" or (ws.expected and not in_error)):
        return False
    archive = ws.conditions[ConditionKey.ARCHIVE_READY]
    if ws.archive_key is None:
        return bool(archive["reason"] == "NoArchive")
    if seen.archive is ArchiveSight.UNKNOWN or seen.archive_key != ws.archive_key:
        return True
    return bool(archive["status"]) == (seen.archive is ArchiveSight.PRESENT) and (in_error or seen.archive is not ArchiveSight.ABSENT)
