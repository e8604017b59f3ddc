"""Pure: (workspace snapshot, observation, last run, policy, now) -> Decision. The heart of the controller.

Owns which operation comes next, how one in progress goes on, and what an operator's recovery means. The same input gives the same
decision, ids included. No Django, no I/O, no clock: `now` is the database's time.
"""

from datetime import datetime
from uuid import uuid5

from coordinator.conditions import broken_invariant, decide_conditions, decide_looks, phase_of, set_condition
from coordinator.progress import drive, endpoints_of, fail_for_good, left_volume_alone, queue_run
from coordinator.state import ArchiveSight, ContainerSight, Decision, Look, Observation, Policy, Run, Sight, Snapshot
from workspaces.phases import (
    LEVELS,
    Action,
    AttemptState,
    ConditionKey,
    DesiredState,
    ErrorReason,
    Operation,
    Phase,
    RecoveryStrategy,
)

DEATHS = 3
DEATHS_WITHIN = 600.0

FIRST_ACTION: dict[Operation, Action] = {
    Operation.PROVISIONING: Action.PROVISION,
    Operation.CREATE_EMPTY_ARCHIVE: Action.ARCHIVE,
    Operation.RESTORING: Action.RESTORE,
    Operation.STARTING: Action.START,
    Operation.STOPPING: Action.DELETE,
    Operation.ARCHIVING: Action.ARCHIVE,
    Operation.DELETING: Action.DELETE,
}


def decide(before: Snapshot, seen: Observation, run: Run | None = None, *, policy: Policy, now: datetime) -> Decision:
    """What to write and do for one workspace. With `looks` set nothing is decided: look directly and ask again."""
    if before.phase is Phase.DELETED:
        return Decision(before)
    ws = before.copy()
    decision = Decision(ws)
    looks = decide_looks(ws, seen, run) | _looks_for_commit(ws, seen, run) | _looks_for_recovery(ws, seen)
    if looks:
        return Decision(before, looks=looks)
    _absorb(ws, seen, run, now=now)
    looks = decide_looks(ws, seen, run)
    if looks:
        # A commit just moved what must be seen. It is written first, and looked at before anything follows from it.
        ws.phase = phase_of(ws)
        return decision
    was_ready = ws.status(ConditionKey.CONTAINER_READY)
    ws.conditions = decide_conditions(ws, seen, now=now)
    _record_endpoint(ws, seen)
    if ws.phase is Phase.ERROR and ws.deleted_at is None:
        _recover(ws, seen, decision, now=now)
        return decision
    broken = broken_invariant(ws, seen) if ws.deleted_at is None else None
    if broken is not None and not _removal_may_stop_itself(run):
        reason, message = broken
        detail = message if ws.archive_key is None else f"{message} Last archive: {ws.archived_at.isoformat() if ws.archived_at else '?'}."
        fail_for_good(ws, decision, reason, message, {"archive_key": ws.archive_key, "detail": detail}, now=now)
        return decision
    set_condition(ws.conditions, ConditionKey.HEALTHY, (True, "Healthy", "No invariant is broken."), now=now)
    ws.phase = phase_of(ws)
    if ws.operation is not Operation.NONE:
        drive(ws, seen, run, decision, policy=policy, now=now)
        return decision
    if _died_too_often(ws, seen, decision, was_ready=was_ready, now=now):
        return decision
    if ws.phase is not before.phase:
        decision.reason = "Observed"
    _claim_next(ws, seen, decision, policy=policy, now=now)
    return decision


def decide_next_operation(
    *, phase: Phase, desired_state: DesiredState, deleted: bool, has_container: bool, operation: Operation = Operation.NONE
) -> Operation:
    """The one step that brings the phase nearer to what is wanted, or NONE."""
    if operation is not Operation.NONE or phase is Phase.DELETED:
        return Operation.NONE
    if deleted:
        return Operation.DELETING
    if phase in (Phase.ERROR, Phase.DELETING) or desired_state is DesiredState.DELETED:
        return Operation.NONE
    if phase is Phase.STANDBY and has_container and desired_state is not DesiredState.RUNNING:
        return Operation.STOPPING
    have, want = LEVELS[phase], LEVELS[Phase(desired_state)]
    if have == want:
        return Operation.NONE
    if phase is Phase.PENDING:
        return Operation.CREATE_EMPTY_ARCHIVE if desired_state is DesiredState.ARCHIVED else Operation.PROVISIONING
    if want > have:
        return Operation.RESTORING if phase is Phase.ARCHIVED else Operation.STARTING
    return Operation.STOPPING if phase is Phase.RUNNING else Operation.ARCHIVING


def claim(ws: Snapshot, operation: Operation, decision: Decision, *, now: datetime) -> None:
    """Begin an operation and queue its first run: what must be durable before the first provider call is set here."""
    ctx = ws.home_ctx
    ctx["op_id"] = str(uuid5(ws.id, f"{operation}:{now.isoformat()}"))
    ctx["op_phase"] = ws.phase
    ws.operation = operation
    if operation is not Operation.DELETING:
        ws.error_reason, ws.error_info, ws.error_count = None, None, 0
    if operation in (Operation.STARTING, Operation.PROVISIONING, Operation.RESTORING):
        ws.archive_op_id = None
    if operation in (Operation.ARCHIVING, Operation.CREATE_EMPTY_ARCHIVE):
        ws.archive_op_id = uuid5(ws.id, f"archive:{now.isoformat()}")
    if operation is Operation.STARTING:
        ctx["expected"] = True
    queue_run(ws, FIRST_ACTION[operation], None, decision, now=now)
    decision.reason = decision.reason or "Claimed"


def _claim_next(ws: Snapshot, seen: Observation, decision: Decision, *, policy: Policy, now: datetime) -> None:
    operation = decide_next_operation(
        phase=ws.phase, desired_state=ws.desired_state, deleted=ws.deleted_at is not None, has_container=seen.has_container
    )
    if operation is Operation.NONE or seen.is_blind:
        return
    if endpoints_of(operation, FIRST_ACTION[operation]) & policy.open_breakers:
        return
    if operation is Operation.ARCHIVING and not seen.container_direct:
        decision.looks = frozenset({Look.CONTAINER})
        return
    if operation is Operation.RESTORING:
        about = seen.archive if seen.archive_key == ws.archive_key else ArchiveSight.UNKNOWN
        if about is ArchiveSight.UNKNOWN:
            if not seen.archive_direct:
                decision.looks = frozenset({Look.ARCHIVE})
            return
    claim(ws, operation, decision, now=now)


def _looks_for_commit(ws: Snapshot, seen: Observation, run: Run | None) -> frozenset[Look]:
    """A finished archive is committed only after a direct look: a container that came up meanwhile may have changed the home."""
    ready = _archive_to_commit(ws, run)
    return frozenset({Look.CONTAINER}) if ready and not seen.container_direct else frozenset()


def _removal_may_stop_itself(run: Run | None) -> bool:
    """The removal of a packed home looks for the archive itself before it begins: whether the home is lost is judged after it."""
    return run is not None and run.is_open and run.action is Action.DELETE_VOLUME and "key" in run.params


def _looks_for_recovery(ws: Snapshot, seen: Observation) -> frozenset[Look]:
    if ws.phase is not Phase.ERROR or ws.recovery_strategy is None or ws.deleted_at is not None:
        return frozenset()
    looks = {Look.CONTAINER: not seen.container_direct, Look.VOLUME: not seen.volume_direct}
    # Whoever has a whole home on disk does not wait for object storage.
    home_here = seen.volume is not Sight.ABSENT and ws.whole
    looks[Look.ARCHIVE] = ws.archive_key is not None and not seen.archive_direct and not home_here
    looks[Look.PROBE] = (
        seen.container_direct
        and seen.container is ContainerSight.RUNNING
        and seen.container_generation == ws.generation
        and seen.listening is None
    )
    return frozenset(look for look, needed in looks.items() if needed)


def _archive_to_commit(ws: Snapshot, run: Run | None) -> bool:
    return (
        run is not None
        and ws.operation in (Operation.ARCHIVING, Operation.CREATE_EMPTY_ARCHIVE)
        and run.action is Action.ARCHIVE
        and run.state is AttemptState.SUCCEEDED
        and run.params.get("key") == ws.wanted_archive_key()
        and not ws.committed
    )


def _absorb(ws: Snapshot, seen: Observation, run: Run | None, *, now: datetime) -> None:
    """Take over what a finished run proved, before anything is judged: a whole volume, a verified archive."""
    if run is not None and "key" in run.params and run.action is Action.DELETE_VOLUME and left_volume_alone(run):
        ws.home_ctx["whole"] = True
    if run is None or run.state is not AttemptState.SUCCEEDED:
        return
    ctx = ws.home_ctx
    if run.action in (Action.PROVISION, Action.RESTORE):
        here = seen.volume is Sight.PRESENT and seen.generation == ws.generation == run.params.get("generation")
        if here and not ws.whole:
            ctx["whole"] = ctx["expected"] = True
            ctx["restore_marker"] = run.params.get("key")
    elif _archive_to_commit(ws, run):
        if ws.operation is Operation.ARCHIVING and seen.container is not ContainerSight.ABSENT:
            return
        ws.archive_key = ws.wanted_archive_key()
        ws.archive_sha256 = str(run.result["sha256"])
        ws.archive_size = int(run.result["size"])
        ws.archived_at = now
        ctx["expected"] = False
        # What was known of the former archive says nothing about this one.
        ws.conditions.pop(ConditionKey.ARCHIVE_READY, None)


def _record_endpoint(ws: Snapshot, seen: Observation) -> None:
    if not ws.status(ConditionKey.CONTAINER_READY):
        ws.endpoint = ""
    elif seen.container is ContainerSight.RUNNING:
        ws.endpoint = seen.endpoint
        ws.home_ctx["instance"] = seen.instance


def _died_too_often(ws: Snapshot, seen: Observation, decision: Decision, *, was_ready: bool, now: datetime) -> bool:
    """Count a container that listened and then died while it was wanted. Three in ten minutes need a person."""
    died = was_ready and not seen.ended_in_order and seen.container in (ContainerSight.ABSENT, ContainerSight.STOPPED)
    if not died or ws.desired_state is not DesiredState.RUNNING or ws.deleted_at is not None:
        return False
    recent = [at for at in ws.home_ctx.get("deaths", []) if now.timestamp() - at < DEATHS_WITHIN]
    ws.home_ctx["deaths"] = [*recent, now.timestamp()]
    if len(recent) + 1 < DEATHS:
        return False
    context = {"action": Action.START, "exit_code": seen.exit_code, "stderr": seen.detail}
    message = f"The container died {DEATHS} times in ten minutes."
    fail_for_good(ws, decision, ErrorReason.ACTION_FAILED, message, context, now=now)
    return True


def _recover(ws: Snapshot, seen: Observation, decision: Decision, *, now: datetime) -> None:
    """Consume an operator's answer to ERROR. Waits while reality cannot be seen."""
    if ws.recovery_strategy is None or seen.is_blind:
        return
    if ws.archive_key is not None and seen.archive is ArchiveSight.UNKNOWN and not ws.status(ConditionKey.VOLUME_READY):
        return
    strategy = RecoveryStrategy(ws.recovery_strategy)
    if ws.status(ConditionKey.VOLUME_READY):
        # A whole home came back since it was asked: neither an older archive nor an empty home may hide it.
        strategy = RecoveryStrategy.REOBSERVE
    former = ws.error_reason
    ws.recovery_strategy, decision.consumed = None, True
    ws.error_reason, ws.error_info, ws.error_count = None, None, 0
    ws.home_ctx = {key: ws.home_ctx[key] for key in ("generation", "whole", "expected", "restore_marker", "instance") if key in ws.home_ctx}
    if strategy is not RecoveryStrategy.REOBSERVE:
        ws.home_ctx |= {"expected": False, "whole": False, "restore_marker": None}
        if seen.has_container:
            ws.home_ctx["clearing"] = True
    if strategy is RecoveryStrategy.START_EMPTY:
        ws.archive_key = ws.archive_sha256 = ws.archive_size = ws.archived_at = None
        set_condition(ws.conditions, ConditionKey.ARCHIVE_READY, (False, "NoArchive", "There is no archive."), now=now)
    broken = broken_invariant(ws, seen)
    if broken is not None:
        reason, message = broken
        fail_for_good(ws, decision, reason, message, {"archive_key": ws.archive_key, "detail": message}, now=now)
        decision.alert = "" if reason == former else decision.alert
        return
    set_condition(ws.conditions, ConditionKey.HEALTHY, (True, "Healthy", "An operator recovered it."), now=now)
    ws.phase = phase_of(ws)
    decision.reason = f"Recovered:{strategy}"
    if ws.home_ctx.get("clearing"):
        claim(ws, Operation.STOPPING, decision, now=now)
