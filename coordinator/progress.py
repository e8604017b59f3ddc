"""Pure: how an operation in progress goes on: complete? past its time limit? due for a retry?

Owns completion, time limits, retries with backoff, and what a failure means (section 6). No Django, no I/O, no clock.
"""

import hashlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID, uuid5

from coordinator.conditions import phase_of, set_condition
from coordinator.state import ArchiveSight, ContainerSight, Decision, Observation, Policy, QueuedRun, Run, Sight, Snapshot
from workspaces.phases import (
    RETRYABLE_REASONS,
    Action,
    AttemptState,
    ConditionKey,
    DesiredState,
    ErrorReason,
    Operation,
    Phase,
)

LONGEST_WAIT = 900.0
LONG = frozenset({Action.ARCHIVE, Action.RESTORE})
"""Runs that move a whole home."""

# What an operation keeps in `home_ctx` while it lasts.
OPERATION_KEYS = (
    "op_id",
    "op_phase",
    "seen",
    "retry_at",
    "first_started",
    "paused",
    "pause_since",
    "pulled",
    "clearing",
    "alerted",
)

_DOCKER, _S3 = "docker", "s3"


def drive(ws: Snapshot, seen: Observation, run: Run | None, decision: Decision, *, policy: Policy, now: datetime) -> None:
    """One look at a running operation, in the order the state model gives."""
    wanted = next_action(ws, seen, run)
    blind = _is_blind(ws, seen)
    _track_time(ws, run, blocked=blind or bool(endpoints_of(ws.operation, wanted) & policy.open_breakers), now=now)
    over = ws.operation is not Operation.DELETING and elapsed(ws, run, now=now) > policy.limit(ws.operation)
    running = run is not None and run.state is AttemptState.RUNNING
    if ws.deleted_at is not None and ws.operation is not Operation.DELETING and run is not None and run.is_open and run.action in LONG:
        # What is to be deleted does not wait for its archive. The run that ends here is fenced; short ones end by themselves.
        abandon(ws, decision, now=now)
        return
    if is_complete(ws, seen):
        # A run that is still under way would overlap with the next operation's; its end wakes us.
        if not running or over:
            complete(ws, decision, now=now)
        return
    if over and ws.deleted_at is not None:
        abandon(ws, decision, now=now)
        return
    if over:
        limit, spent = policy.limit(ws.operation), elapsed(ws, run, now=now)
        context = {"operation": ws.operation, "elapsed_seconds": round(spent), "limit_seconds": round(limit)}
        fail_for_good(ws, decision, ErrorReason.TIMEOUT, f"{ws.operation} took longer than {limit:.0f} seconds.", context, now=now)
        return
    if ws.operation is Operation.DELETING:
        _alert_slow_deletion(ws, run, decision, policy=policy, now=now)
    if (run is not None and run.is_open) or blind:
        return
    if ws.operation is Operation.ARCHIVING and ws.deleted_at is None and not (ws.whole or ws.committed):
        # No path of ours leads here. If one ever does, a person must look: the next step down would be an empty home.
        message = "The home is not whole and no archive of it was committed."
        fail_for_good(ws, decision, ErrorReason.DATA_LOST, message, {"archive_key": ws.archive_key, "detail": message}, now=now)
        return
    if _is_pointless(ws, seen, run):
        abandon(ws, decision, now=now)
        return
    _go_on(ws, seen, run, wanted, decision, policy=policy, now=now)


def _go_on(ws: Snapshot, seen: Observation, run: Run | None, wanted: Action, decision: Decision, *, policy: Policy, now: datetime) -> None:
    """No run is open: queue the next one, count a failure, or wait."""
    if endpoints_of(ws.operation, wanted) & policy.open_breakers and (run is None or run.state is not AttemptState.FAILED):
        return
    if run is None or run.state is AttemptState.LOST:
        # Nobody knows how far a lost run came: the step is simply taken again. The time limit ends what is lost for ever.
        queue_run(ws, wanted, run, decision, now=now)
        return
    accounted = ws.home_ctx.get("seen", 0) >= run.number
    if run.state is AttemptState.SUCCEEDED and wanted is not run.action:
        queue_run(ws, wanted, run, decision, now=now)
    elif run.state is AttemptState.SUCCEEDED and seen.container is ContainerSight.RUNNING and ws.operation is Operation.STARTING:
        return
    elif not accounted:
        _count_failure(ws, seen, run, decision, policy=policy, now=now)
    elif _is_due(ws, run, policy=policy, now=now) and not endpoints_of(ws.operation, wanted) & policy.open_breakers:
        queue_run(ws, wanted, run, decision, now=now)


def next_action(ws: Snapshot, seen: Observation, run: Run | None) -> Action:
    """The step this operation needs now, from what is seen: never from what ran before."""
    match ws.operation:
        case Operation.PROVISIONING:
            return Action.PROVISION
        case Operation.RESTORING:
            return Action.RESTORE
        case Operation.STARTING:
            return Action.START
        case Operation.STOPPING:
            return Action.DELETE
        case Operation.DELETING:
            return Action.DELETE if run is None or seen.container is not ContainerSight.ABSENT else Action.DELETE_VOLUME
        case Operation.ARCHIVING:
            safe = ws.committed and ws.status(ConditionKey.ARCHIVE_READY) and seen.container is ContainerSight.ABSENT
            return Action.DELETE_VOLUME if safe else Action.ARCHIVE
        case _:
            return Action.ARCHIVE


def is_complete(ws: Snapshot, seen: Observation) -> bool:
    """Whether what this operation must give has been observed."""
    archived = ws.committed and ws.status(ConditionKey.ARCHIVE_READY)
    match ws.operation:
        case Operation.PROVISIONING:
            return ws.status(ConditionKey.VOLUME_READY)
        case Operation.RESTORING:
            return ws.status(ConditionKey.VOLUME_READY) and ws.home_ctx.get("restore_marker") == ws.archive_key
        case Operation.STARTING:
            return ws.status(ConditionKey.CONTAINER_READY)
        case Operation.STOPPING:
            return seen.container is ContainerSight.ABSENT
        case Operation.ARCHIVING:
            return archived and seen.volume is Sight.ABSENT and seen.generation == ws.generation
        case Operation.CREATE_EMPTY_ARCHIVE:
            return archived
        case Operation.DELETING:
            return seen.container is ContainerSight.ABSENT and seen.any_volume is Sight.ABSENT
        case _:
            return False


def _is_pointless(ws: Snapshot, seen: Observation, run: Run | None) -> bool:
    """The operation should end between two runs: its owner wants everything gone, or the archive would miss changes."""
    if ws.operation is Operation.DELETING:
        return False
    if ws.deleted_at is not None:
        return True
    if ws.operation not in (Operation.ARCHIVING, Operation.CREATE_EMPTY_ARCHIVE) or (ws.committed and not ws.whole):
        return False
    if ws.operation is Operation.ARCHIVING and seen.has_container:
        return True
    # Nothing was packed yet and it is not wanted any more: while storage is away nobody waits for it with the home on disk.
    failed = run is not None and run.state is AttemptState.FAILED
    return failed and not ws.committed and ws.desired_state in (DesiredState.STANDBY, DesiredState.RUNNING)


def complete(ws: Snapshot, decision: Decision, *, now: datetime) -> None:
    """The condition was observed: the operation ends and the phase becomes what is real."""
    operation = ws.operation
    if operation in (Operation.ARCHIVING, Operation.CREATE_EMPTY_ARCHIVE):
        ws.archive_op_id = None
    if operation is Operation.ARCHIVING:
        ws.home_ctx |= {"whole": False, "expected": False}
    if operation is Operation.STOPPING and ws.desired_state is not DesiredState.RUNNING:
        ws.home_ctx.pop("deaths", None)
    if operation is Operation.DELETING:
        ws.home_ctx["gone"] = True
    _end(ws, decision, AttemptState.SUCCEEDED)
    ws.error_reason, ws.error_info, ws.error_count = None, None, 0
    ws.phase = phase_of(ws)
    decision.reason = "Completed"


def abandon(ws: Snapshot, decision: Decision, *, now: datetime) -> None:
    """End an operation that is no longer wanted, between two runs."""
    if ws.whole:
        ws.home_ctx["expected"] = True
    _end(ws, decision, AttemptState.LOST)
    ws.error_reason, ws.error_info, ws.error_count = None, None, 0
    ws.phase = phase_of(ws)
    decision.reason = "GivenUp"


def fail_for_good(
    ws: Snapshot, decision: Decision, reason: ErrorReason, message: str, context: Mapping[str, Any], *, now: datetime
) -> None:
    """To ERROR, all in one write. `archive_op_id` stays: it protects a half-made archive."""
    operation, before = ws.operation, ws.phase
    count = ws.error_count + 1
    ws.error_reason, ws.error_count = reason, count
    ws.error_info = _info(ws, reason, message, context, terminal=True, count=count, now=now)
    _end(ws, decision, AttemptState.LOST)
    set_condition(ws.conditions, ConditionKey.HEALTHY, (False, str(reason), message), now=now)
    ws.previous_phase = ws.previous_phase if before is Phase.ERROR else before
    decision.alert = str(reason)
    ws.phase = phase_of(ws)
    decision.reason, decision.message = str(reason), message if operation is Operation.NONE else f"{operation}: {message}"


def queue_run(ws: Snapshot, action: Action, former: Run | None, decision: Decision, *, now: datetime) -> None:
    """The next run of the operation, with everything that must be in the database before it makes its first call."""
    ctx = ws.home_ctx
    ctx.pop("retry_at", None)
    params: dict[str, Any] = {}
    if action in (Action.PROVISION, Action.RESTORE):
        # A late call of an earlier run can then only ever hit an old volume.
        ctx |= {"generation": ws.generation + 1, "whole": False, "expected": False, "restore_marker": None}
    if action is Action.RESTORE:
        params = {"key": ws.archive_key, "sha256": ws.archive_sha256}
    if action is Action.ARCHIVE:
        params = _archive_params(ws, former, now=now)
    if action is Action.DELETE_VOLUME:
        params = {"all": ws.operation is Operation.DELETING}
    if action is Action.DELETE_VOLUME and ws.operation is Operation.ARCHIVING:
        ctx |= {"whole": False, "expected": False}
        # `touched`: an earlier run may have removed a part of the home. Nothing makes it whole again.
        touched = former is not None and former.action is Action.DELETE_VOLUME and not left_volume_alone(former)
        params |= {"key": ws.archive_key, "touched": touched}
    params["generation"] = ws.generation
    number = former.number + 1 if former is not None else 1
    op_id = UUID(ctx.setdefault("op_id", str(uuid5(ws.id, f"{ws.operation}:{now.isoformat()}"))))
    decision.queue = QueuedRun(uuid5(op_id, str(number)), ws.operation, op_id, action, number, params)


def left_volume_alone(run: Run) -> bool:
    """A removal that ended and cannot have begun: never taken by an executor, or it found no archive and said so."""
    if run.params.get("touched"):
        return False
    if run.state is AttemptState.FAILED:
        return bool(run.result.get("kept"))
    return run.state is AttemptState.LOST and run.started_at is None


def _archive_params(ws: Snapshot, former: Run | None, *, now: datetime) -> dict[str, Any]:
    """Which archive a run makes. The key of an earlier run is taken again only if that run ended by itself."""
    if ws.committed and (ws.conditions.get(ConditionKey.ARCHIVE_READY) or {}).get("reason") == "MetaMissing":
        # The archive is there and its digest is in the row. The volume is not read again: its removal may have begun.
        return {"key": ws.archive_key, "repair": True, "sha256": ws.archive_sha256}
    empty = ws.operation is Operation.CREATE_EMPTY_ARCHIVE
    if not empty and not ws.whole:
        raise ValueError("a home that is not whole must never be archived")
    reuse = (
        former is not None
        and former.state in (AttemptState.FAILED, AttemptState.SUCCEEDED)
        and former.params.get("key") == ws.wanted_archive_key()
        and not ws.committed
    )
    if former is not None and not reuse:
        ws.archive_op_id = uuid5(ws.id, f"archive:{now.isoformat()}")
        ws.home_ctx["expected"] = ws.whole
    return {"key": ws.wanted_archive_key(), "reuse": reuse, "empty": empty}


def _count_failure(ws: Snapshot, seen: Observation, run: Run, decision: Decision, *, policy: Policy, now: datetime) -> None:
    ctx = ws.home_ctx
    ctx["seen"] = run.number
    reason, message, context = _failure_of(ws, seen, run)
    endpoint = str(context.get("endpoint", ""))
    waited_only = reason is ErrorReason.UNREACHABLE and endpoint in policy.open_breakers
    count = ws.error_count if waited_only else ws.error_count + 1
    deleting = ws.operation is Operation.DELETING
    if not deleting and not waited_only:
        if reason not in RETRYABLE_REASONS:
            fail_for_good(ws, decision, reason, message, context, now=now)
            return
        if count >= policy.max_retries:
            last = {"max_retries": policy.max_retries, "last_error": message, "last_reason": reason, "last_context": context}
            text = f"{run.action} failed {count} times. Last: {message}"
            fail_for_good(ws, decision, ErrorReason.RETRY_EXCEEDED, text, last, now=now)
            return
    ws.error_count = count
    ws.error_info = _info(ws, reason, message, context, terminal=False, count=count, now=now)
    ctx["retry_at"] = now.timestamp() + backoff(ws.id, max(count, 1), base=policy.backoff)
    decision.reason, decision.message = "Retrying", f"{run.action}: {message}"
    if deleting:
        _alert_slow_deletion(ws, run, decision, policy=policy, now=now)


def _failure_of(ws: Snapshot, seen: Observation, run: Run) -> tuple[ErrorReason, str, dict[str, Any]]:
    if run.state is AttemptState.FAILED and run.error is not None:
        error = run.error
        return ErrorReason(error["reason"]), str(error.get("message", "")), dict(error.get("context") or {})
    actual = f"container {seen.container}, volume {seen.volume}, archive {seen.archive}"
    message = f"{run.action} said it succeeded, and what was seen differs."
    return ErrorReason.MISMATCH, message, {"expected": _EXPECTED[run.action], "actual": actual}


_EXPECTED: dict[Action, str] = {
    Action.PROVISION: "the new volume",
    Action.RESTORE: "the restored volume",
    Action.ARCHIVE: "the archive and its checksum file",
    Action.DELETE_VOLUME: "no volume",
    Action.START: "a running container",
    Action.DELETE: "no container",
}


def backoff(workspace_id: UUID, count: int, *, base: float) -> float:
    """Seconds to wait after the count-th failure: doubling, up to a quarter more so that neighbours do not come together."""
    digest = hashlib.sha256(f"{workspace_id}:{count}".encode()).digest()
    jitter = int.from_bytes(digest[:4], "big") / 2**32
    return min(base * 2.0 ** min(count - 1, 20) * (1 + jitter / 4), LONGEST_WAIT)


def _is_due(ws: Snapshot, run: Run, *, policy: Policy, now: datetime) -> bool:
    if now.timestamp() >= ws.home_ctx.get("retry_at", 0.0):
        return True
    endpoint = str(((ws.error_info or {}).get("context") or {}).get("endpoint", ""))
    closed, failed = policy.closed_at.get(endpoint), run.finished_at
    return closed is not None and failed is not None and closed >= failed.timestamp()


def endpoints_of(operation: Operation, action: Action) -> frozenset[str]:
    """Which systems a run would call."""
    if operation is Operation.CREATE_EMPTY_ARCHIVE:
        return frozenset({_S3})
    both = action in (Action.ARCHIVE, Action.RESTORE) or operation is Operation.ARCHIVING
    return frozenset({_DOCKER, _S3}) if both else frozenset({_DOCKER})


def _is_blind(ws: Snapshot, seen: Observation) -> bool:
    """What this operation goes by could not be seen: nothing is planned, and the time does not count."""
    if seen.is_blind or (ws.operation is Operation.DELETING and seen.any_volume is Sight.UNKNOWN):
        return True
    unseen = seen.archive is ArchiveSight.UNKNOWN or seen.archive_key != ws.archive_key
    return ws.operation in (Operation.ARCHIVING, Operation.CREATE_EMPTY_ARCHIVE) and ws.committed and unseen


def elapsed(ws: Snapshot, run: Run | None, *, now: datetime) -> float:
    """Seconds that count towards the limit: from the first run's start, without pauses and pulls that moved."""
    ctx = ws.home_ctx
    if "first_started" not in ctx:
        return 0.0
    paused = ctx.get("paused", 0.0) + (now.timestamp() - ctx["pause_since"] if "pause_since" in ctx else 0.0)
    pulled = ctx.get("pulled", {})
    current = {str(run.number): float(run.result.get("pull_seconds", 0.0))} if run is not None else {}
    return float(now.timestamp() - ctx["first_started"] - paused - sum({**pulled, **current}.values()))


def _track_time(ws: Snapshot, run: Run | None, *, blocked: bool, now: datetime) -> None:
    ctx = ws.home_ctx
    if "first_started" not in ctx:
        if run is None or run.started_at is None:
            return
        ctx["first_started"] = run.started_at.timestamp()
    if run is not None and not run.is_open and run.result.get("pull_seconds"):
        ctx["pulled"] = {**ctx.get("pulled", {}), str(run.number): float(run.result["pull_seconds"])}
    if blocked and "pause_since" not in ctx:
        ctx["pause_since"] = now.timestamp()
    elif not blocked and "pause_since" in ctx:
        ctx["paused"] = ctx.get("paused", 0.0) + now.timestamp() - ctx.pop("pause_since")


def _alert_slow_deletion(ws: Snapshot, run: Run | None, decision: Decision, *, policy: Policy, now: datetime) -> None:
    slow = elapsed(ws, run, now=now) > policy.limit(Operation.DELETING) or ws.error_count >= policy.max_retries
    if slow and not ws.home_ctx.get("alerted"):
        ws.home_ctx["alerted"] = True
        decision.alert = "DeletionStuck"
        decision.message = decision.message or "The workspace cannot be deleted; it is tried again and again."


def _end(ws: Snapshot, decision: Decision, state: AttemptState) -> None:
    ws.operation = Operation.NONE
    ws.home_ctx = {key: value for key, value in ws.home_ctx.items() if key not in OPERATION_KEYS}
    decision.end_runs = state
    decision.queue = None


def _info(
    ws: Snapshot, reason: ErrorReason, message: str, context: Mapping[str, Any], *, terminal: bool, count: int, now: datetime
) -> dict[str, Any]:
    return {
        "reason": str(reason),
        "message": message,
        "is_terminal": terminal,
        "operation": str(ws.operation),
        "error_count": count,
        "context": dict(context),
        "occurred_at": now.isoformat(),
    }
