"""The state core, row by row of its tables, and over the whole matrix."""

import itertools
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid5

import pytest

from coordinator.conditions import decide_conditions, decide_phase, is_settled
from coordinator.decide import decide, decide_next_operation
from coordinator.progress import backoff
from coordinator.state import ArchiveSight, ContainerSight, Decision, Look, Observation, Policy, Run, Sight, Snapshot
from workspaces.phases import Action, AttemptState, ConditionKey, DesiredState, ErrorReason, Operation, Phase

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ID = UUID("11111111-2222-3333-4444-555555555555")
KEY = f"{ID}/old/home.tar.zst"
POLICY = Policy()


def condition(status: bool, reason: str = "X") -> dict[str, Any]:
    return {"status": status, "reason": reason, "message": "", "last_transition_time": NOW.isoformat()}


def conditions(*, volume: bool = False, archive: bool = False, container: bool = False, healthy: bool = True) -> dict[str, Any]:
    return {
        ConditionKey.VOLUME_READY: condition(volume),
        ConditionKey.ARCHIVE_READY: condition(archive),
        ConditionKey.CONTAINER_READY: condition(container),
        ConditionKey.HEALTHY: condition(healthy),
    }


def workspace(phase: Phase, desired: DesiredState = DesiredState.RUNNING, *, archive: bool | None = None, **changes: Any) -> Snapshot:
    """A settled row of that phase, with everything it stands for in place."""
    has_volume = phase in (Phase.STANDBY, Phase.RUNNING)
    has_archive = phase is Phase.ARCHIVED if archive is None else archive
    ws = Snapshot(
        id=ID,
        phase=phase,
        desired_state=desired,
        conditions=conditions(volume=has_volume, archive=has_archive, container=phase is Phase.RUNNING),
        home_ctx={
            "generation": 1 if has_volume else 0,
            "whole": has_volume,
            "expected": has_volume,
            "restore_marker": None,
            "instance": "i",
        },
        archive_key=KEY if has_archive else None,
        archive_sha256="0" * 64 if has_archive else None,
        archived_at=NOW - timedelta(days=1) if has_archive else None,
        endpoint="http://e" if phase is Phase.RUNNING else "",
    )
    return replace(ws, **changes)


def seen_of(ws: Snapshot, **changes: Any) -> Observation:
    """What a direct look at a world in order shows of this row."""
    running = ws.status(ConditionKey.CONTAINER_READY)
    seen = Observation(
        container=ContainerSight.RUNNING if running else ContainerSight.ABSENT,
        container_direct=True,
        container_generation=ws.generation if running else 0,
        instance="i" if running else "",
        endpoint="http://e" if running else "",
        volume=Sight.PRESENT if ws.whole else Sight.ABSENT,
        volume_direct=True,
        any_volume=Sight.PRESENT if ws.whole else Sight.ABSENT,
        generation=ws.generation,
        archive=ArchiveSight.PRESENT if ws.archive_key else ArchiveSight.UNKNOWN,
        archive_direct=True,
        archive_key=ws.archive_key,
    )
    return replace(seen, **changes)


def claimed(ws: Snapshot, operation: Operation | None = None) -> tuple[Snapshot, Run]:
    """The row after its next claim, and the run as an executor has taken it."""
    decision = decide(ws, seen_of(ws), policy=POLICY, now=NOW)
    assert decision.queue is not None
    assert operation is None or decision.after.operation is operation
    return decision.after, taken(decision)


def taken(decision: Decision) -> Run:
    assert decision.queue is not None
    queue = decision.queue
    return Run(queue.id, queue.action, queue.number, AttemptState.RUNNING, params=queue.params, queued_at=NOW, started_at=NOW)


def ended(run: Run, state: AttemptState = AttemptState.SUCCEEDED, *, error: dict[str, Any] | None = None, **result: Any) -> Run:
    return replace(run, state=state, result=result, error=error, finished_at=NOW)


def failure(reason: ErrorReason = ErrorReason.ACTION_FAILED, **context: Any) -> dict[str, Any]:
    return {"reason": reason, "message": "broken", "context": context}


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


# --- 1.1 phase
def phase_for(**given: Any) -> Phase:
    values: dict[str, Any] = {
        "conditions": conditions(),
        "operation": Operation.NONE,
        "deleted_at": None,
        "archive_key": None,
        "home_ctx": {},
        "error_info": None,
    }
    return decide_phase(**{**values, **given})


@pytest.mark.parametrize(
    ("given", "phase"),
    [
        ({}, Phase.PENDING),
        ({"conditions": {}}, Phase.PENDING),
        ({"conditions": conditions(archive=True), "archive_key": KEY}, Phase.ARCHIVED),
        ({"conditions": conditions(archive=False), "archive_key": KEY}, Phase.ARCHIVED),
        ({"conditions": conditions(volume=True)}, Phase.STANDBY),
        ({"conditions": conditions(volume=True, archive=True), "archive_key": KEY}, Phase.STANDBY),
        ({"conditions": conditions(volume=True, container=True)}, Phase.RUNNING),
        ({"conditions": conditions(container=True)}, Phase.PENDING),
        ({"conditions": conditions(volume=True, container=True, healthy=False)}, Phase.ERROR),
        ({"conditions": conditions(volume=True), "error_info": {"is_terminal": True}}, Phase.ERROR),
        ({"conditions": conditions(volume=True), "error_info": {"is_terminal": False}}, Phase.STANDBY),
        ({"home_ctx": {"expected": True}}, Phase.ERROR),
        ({"home_ctx": {"expected": True}, "archive_key": KEY, "conditions": conditions(archive=True)}, Phase.ERROR),
        ({"deleted_at": NOW, "conditions": conditions(volume=True, container=True, healthy=False)}, Phase.DELETING),
        ({"deleted_at": NOW, "home_ctx": {"gone": True}}, Phase.DELETED),
        ({"operation": Operation.RESTORING, "home_ctx": {"op_phase": "ARCHIVED"}, "conditions": conditions(volume=True)}, Phase.ARCHIVED),
        ({"operation": Operation.ARCHIVING, "home_ctx": {"op_phase": "STANDBY"}, "archive_key": KEY}, Phase.STANDBY),
        ({"operation": Operation.STARTING, "home_ctx": {"op_phase": "STANDBY"}, "conditions": conditions(healthy=False)}, Phase.ERROR),
        ({"operation": Operation.STARTING, "home_ctx": {"op_phase": "STANDBY"}, "deleted_at": NOW}, Phase.DELETING),
    ],
)
def test_the_phase_follows_the_order_of_judgement(given: dict[str, Any], phase: Phase) -> None:
    assert phase_for(**given) is phase


# --- 1.2 conditions
def test_conditions_move_their_time_only_with_their_status() -> None:
    ws = workspace(Phase.STANDBY, DesiredState.STANDBY)
    before = NOW - timedelta(hours=1)
    ws.conditions[ConditionKey.VOLUME_READY] = {**condition(True, "Other"), "last_transition_time": before.isoformat()}
    after = decide_conditions(ws, seen_of(ws), now=NOW)
    assert after[ConditionKey.VOLUME_READY]["reason"] == "VolumeReady"
    assert after[ConditionKey.VOLUME_READY]["last_transition_time"] == before.isoformat()
    gone = decide_conditions(ws, seen_of(ws, volume=Sight.ABSENT), now=NOW)
    assert gone[ConditionKey.VOLUME_READY]["last_transition_time"] == NOW.isoformat()


@pytest.mark.parametrize("phase", [Phase.PENDING, Phase.ARCHIVED, Phase.STANDBY, Phase.RUNNING])
@pytest.mark.parametrize("desired", [DesiredState.RUNNING, DesiredState.STANDBY, DesiredState.ARCHIVED])
def test_what_cannot_be_seen_changes_nothing_and_plans_nothing(phase: Phase, desired: DesiredState) -> None:
    ws = workspace(phase, desired)
    unseen = Observation(
        container_direct=True, volume_direct=True, archive_direct=True, generation=ws.generation, archive_key=ws.archive_key
    )
    decision = decide(ws, unseen, policy=POLICY, now=NOW)
    assert decision.queue is None
    assert decision.after.phase is phase
    for key in (ConditionKey.VOLUME_READY, ConditionKey.ARCHIVE_READY, ConditionKey.CONTAINER_READY):
        assert decision.after.status(key) == ws.status(key)


def test_a_half_restored_volume_is_not_ready() -> None:
    ws = workspace(Phase.ARCHIVED, home_ctx={"generation": 2, "whole": False, "expected": False, "restore_marker": None})
    after = decide_conditions(ws, seen_of(ws, volume=Sight.PRESENT), now=NOW)
    assert after[ConditionKey.VOLUME_READY]["status"] is False


def test_an_archive_without_its_meta_is_not_ready_and_not_lost() -> None:
    ws = workspace(Phase.ARCHIVED, DesiredState.ARCHIVED)
    decision = decide(ws, seen_of(ws, archive=ArchiveSight.NO_META), policy=POLICY, now=NOW)
    assert decision.after.status(ConditionKey.ARCHIVE_READY) is False
    assert decision.after.phase is Phase.ARCHIVED


def test_a_running_container_becomes_ready_only_when_its_port_answers() -> None:
    ws = workspace(Phase.STANDBY)
    here = {"container": ContainerSight.RUNNING, "container_generation": 1, "instance": "new", "endpoint": "http://n"}
    assert decide(ws, seen_of(ws, **here), policy=POLICY, now=NOW).looks == {Look.PROBE}
    deaf = decide(ws, seen_of(ws, **here, listening=False), policy=POLICY, now=NOW)
    assert deaf.after.operation is Operation.STARTING
    ready = decide(ws, seen_of(ws, **here, listening=True), policy=POLICY, now=NOW)
    assert (ready.after.phase, ready.after.endpoint) == (Phase.RUNNING, "http://n")


def test_a_listing_keeps_a_running_container_ready() -> None:
    ws = workspace(Phase.RUNNING)
    decision = decide(ws, seen_of(ws, container_direct=False, volume_direct=False), policy=POLICY, now=NOW)
    assert not decision.looks
    assert decision.after.phase is Phase.RUNNING


# --- 1.3 invariants
def test_a_home_missing_from_a_listing_is_looked_for_before_it_counts() -> None:
    ws = workspace(Phase.STANDBY, DesiredState.STANDBY)
    listed = decide(ws, seen_of(ws, volume=Sight.ABSENT, volume_direct=False), policy=POLICY, now=NOW)
    assert listed.looks == {Look.VOLUME}
    assert listed.after == ws
    sure = decide(ws, seen_of(ws, volume=Sight.ABSENT), policy=POLICY, now=NOW)
    assert (sure.after.phase, sure.after.error_reason) == (Phase.ERROR, ErrorReason.DATA_LOST)
    assert sure.alert == "DataLost"


def test_a_vanished_home_is_never_rolled_back_to_an_older_archive() -> None:
    ws = workspace(Phase.STANDBY, DesiredState.RUNNING, archive=True)
    decision = decide(ws, seen_of(ws, volume=Sight.ABSENT), policy=POLICY, now=NOW)
    assert decision.after.error_reason is ErrorReason.DATA_LOST
    assert decision.queue is None


def test_a_vanished_archive_is_data_lost_after_a_direct_look() -> None:
    ws = workspace(Phase.ARCHIVED, DesiredState.RUNNING)
    assert decide(ws, seen_of(ws, archive=ArchiveSight.ABSENT, archive_direct=False), policy=POLICY, now=NOW).looks == {Look.ARCHIVE}
    sure = decide(ws, seen_of(ws, archive=ArchiveSight.ABSENT), policy=POLICY, now=NOW)
    assert sure.after.error_reason is ErrorReason.DATA_LOST
    assert (sure.after.error_info or {})["context"]["archive_key"] == KEY


def test_an_old_archive_that_vanishes_under_a_home_on_disk_is_no_loss() -> None:
    ws = workspace(Phase.STANDBY, DesiredState.STANDBY, archive=True)
    decision = decide(ws, seen_of(ws, archive=ArchiveSight.ABSENT), policy=POLICY, now=NOW)
    assert decision.after.phase is Phase.STANDBY


def test_a_container_without_a_whole_volume_is_an_error() -> None:
    ws = workspace(Phase.ARCHIVED, DesiredState.ARCHIVED)
    here = {"container": ContainerSight.RUNNING, "container_generation": 0, "instance": "x"}
    assert decide(ws, seen_of(ws, **here, container_direct=False), policy=POLICY, now=NOW).looks
    decision = decide(ws, seen_of(ws, **here), policy=POLICY, now=NOW)
    assert decision.after.error_reason is ErrorReason.CONTAINER_WITHOUT_VOLUME


def test_invariants_are_not_judged_on_what_is_being_deleted() -> None:
    ws = workspace(Phase.STANDBY, DesiredState.DELETED, deleted_at=NOW)
    decision = decide(ws, seen_of(ws, volume=Sight.ABSENT), policy=POLICY, now=NOW)
    assert decision.after.operation is Operation.DELETING
    assert decision.after.phase is Phase.DELETING


# --- 1.4 choosing
@pytest.mark.parametrize(
    ("phase", "desired", "operation"),
    [
        (Phase.ERROR, DesiredState.RUNNING, Operation.NONE),
        (Phase.PENDING, DesiredState.ARCHIVED, Operation.CREATE_EMPTY_ARCHIVE),
        (Phase.PENDING, DesiredState.STANDBY, Operation.PROVISIONING),
        (Phase.PENDING, DesiredState.RUNNING, Operation.PROVISIONING),
        (Phase.ARCHIVED, DesiredState.STANDBY, Operation.RESTORING),
        (Phase.ARCHIVED, DesiredState.RUNNING, Operation.RESTORING),
        (Phase.STANDBY, DesiredState.RUNNING, Operation.STARTING),
        (Phase.STANDBY, DesiredState.ARCHIVED, Operation.ARCHIVING),
        (Phase.RUNNING, DesiredState.STANDBY, Operation.STOPPING),
        (Phase.RUNNING, DesiredState.ARCHIVED, Operation.STOPPING),
        (Phase.ARCHIVED, DesiredState.ARCHIVED, Operation.NONE),
        (Phase.STANDBY, DesiredState.STANDBY, Operation.NONE),
        (Phase.RUNNING, DesiredState.RUNNING, Operation.NONE),
    ],
)
def test_the_next_operation_is_the_one_of_the_table(phase: Phase, desired: DesiredState, operation: Operation) -> None:
    assert decide_next_operation(phase=phase, desired_state=desired, deleted=False, has_container=phase is Phase.RUNNING) is operation


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.DELETED])
def test_deletion_comes_first_in_every_phase(phase: Phase) -> None:
    assert decide_next_operation(phase=phase, desired_state=DesiredState.DELETED, deleted=True, has_container=False) is Operation.DELETING


@pytest.mark.parametrize("desired", [DesiredState.STANDBY, DesiredState.ARCHIVED])
def test_a_container_left_in_standby_is_stopped_before_anything_else(desired: DesiredState) -> None:
    assert decide_next_operation(phase=Phase.STANDBY, desired_state=desired, deleted=False, has_container=True) is Operation.STOPPING


@pytest.mark.parametrize("operation", [operation for operation in Operation if operation is not Operation.NONE])
@pytest.mark.parametrize("phase", list(Phase))
def test_no_operation_starts_while_another_runs(phase: Phase, operation: Operation) -> None:
    chosen = decide_next_operation(phase=phase, desired_state=DesiredState.RUNNING, deleted=False, has_container=False, operation=operation)
    assert chosen is Operation.NONE


def test_claiming_takes_a_new_generation_before_the_first_call() -> None:
    ws, run = claimed(workspace(Phase.PENDING), Operation.PROVISIONING)
    assert (ws.generation, run.params["generation"], run.action) == (1, 1, Action.PROVISION)
    ws, run = claimed(workspace(Phase.ARCHIVED), Operation.RESTORING)
    assert (ws.generation, run.params["generation"], run.params["key"]) == (1, 1, KEY)
    assert ws.phase is Phase.ARCHIVED


@pytest.mark.parametrize(("phase", "desired"), [(Phase.STANDBY, "RUNNING"), (Phase.PENDING, "RUNNING"), (Phase.ARCHIVED, "RUNNING")])
def test_claiming_a_way_up_forgets_the_archive_in_the_making(phase: Phase, desired: str) -> None:
    ws, _ = claimed(workspace(phase, DesiredState(desired), archive_op_id=ID))
    assert ws.archive_op_id is None


def test_claiming_starting_expects_the_home_again() -> None:
    ctx = {"generation": 1, "whole": True, "expected": False, "restore_marker": None}
    ws, _ = claimed(workspace(Phase.STANDBY, archive=True, home_ctx=ctx), Operation.STARTING)
    assert ws.expected


def test_archiving_is_claimed_only_after_a_direct_look_for_containers() -> None:
    ws = workspace(Phase.STANDBY, DesiredState.ARCHIVED)
    assert decide(ws, seen_of(ws, container_direct=False), policy=POLICY, now=NOW).looks == {Look.CONTAINER}


# --- 1.4 completing
def test_provisioning_completes_when_its_volume_is_seen() -> None:
    ws, run = claimed(workspace(Phase.PENDING), Operation.PROVISIONING)
    done = ended(run)
    early = decide(ws, seen_of(ws, volume=Sight.PRESENT), run, policy=POLICY, now=NOW)
    assert early.after.operation is Operation.PROVISIONING
    decision = decide(ws, seen_of(ws, volume=Sight.PRESENT), done, policy=POLICY, now=NOW)
    assert (decision.after.phase, decision.after.operation, decision.after.expected) == (Phase.STANDBY, Operation.NONE, True)


def test_an_actuator_that_returned_is_not_a_completion() -> None:
    ws, run = claimed(workspace(Phase.PENDING), Operation.PROVISIONING)
    decision = decide(ws, seen_of(ws, volume=Sight.ABSENT), ended(run), policy=POLICY, now=NOW)
    assert decision.after.operation is Operation.PROVISIONING
    assert (decision.after.error_info or {})["reason"] == ErrorReason.MISMATCH
    again = decide(decision.after, seen_of(ws, volume=Sight.ABSENT), ended(run), policy=POLICY, now=later(5))
    assert again.after.error_count == 1


def test_restoring_completes_with_the_marker_of_its_archive() -> None:
    ws, run = claimed(workspace(Phase.ARCHIVED), Operation.RESTORING)
    decision = decide(ws, seen_of(ws, volume=Sight.PRESENT), ended(run), policy=POLICY, now=NOW)
    assert decision.after.phase is Phase.STANDBY
    assert decision.after.home_ctx["restore_marker"] == KEY


def test_starting_completes_when_the_port_answers_and_waits_while_it_does_not() -> None:
    ws, run = claimed(workspace(Phase.STANDBY), Operation.STARTING)
    here = {"container": ContainerSight.RUNNING, "container_generation": 1, "instance": "n", "endpoint": "http://n"}
    slow = decide(ws, seen_of(ws, **here, listening=False), ended(run), policy=POLICY, now=later(100))
    assert (slow.after.operation, slow.after.error_count) == (Operation.STARTING, 0)
    ready = decide(ws, seen_of(ws, **here, listening=True), ended(run), policy=POLICY, now=NOW)
    assert (ready.after.phase, ready.after.endpoint) == (Phase.RUNNING, "http://n")


def test_stopping_completes_when_no_container_exists() -> None:
    ws, run = claimed(workspace(Phase.RUNNING, DesiredState.STANDBY), Operation.STOPPING)
    still = {"container": ContainerSight.STOPPED, "container_generation": 1}
    assert decide(ws, seen_of(ws, **still), ended(run), policy=POLICY, now=NOW).after.operation is Operation.STOPPING
    gone = decide(ws, seen_of(ws, container=ContainerSight.ABSENT), ended(run), policy=POLICY, now=NOW)
    assert (gone.after.phase, gone.after.endpoint) == (Phase.STANDBY, "")


def archived_run(ws: Snapshot, run: Run) -> Run:
    return ended(run, sha256="a" * 64, size=7)


def test_archiving_commits_then_looks_then_deletes_the_volume_then_completes() -> None:
    ws, run = claimed(workspace(Phase.STANDBY, DesiredState.ARCHIVED), Operation.ARCHIVING)
    key = f"{ID}/{ws.archive_op_id}/home.tar.zst"
    assert run.params["key"] == key
    done = archived_run(ws, run)
    assert decide(ws, seen_of(ws, container_direct=False), done, policy=POLICY, now=NOW).looks == {Look.CONTAINER}
    committed = decide(ws, seen_of(ws, archive_direct=False), done, policy=POLICY, now=NOW)
    assert committed.queue is None
    assert (committed.after.archive_key, committed.after.archive_sha256, committed.after.expected) == (key, "a" * 64, False)
    assert committed.after.phase is Phase.STANDBY
    deleting = decide(committed.after, seen_of(committed.after), done, policy=POLICY, now=NOW)
    assert deleting.queue is not None
    assert (deleting.queue.action, deleting.queue.params["generation"]) == (Action.DELETE_VOLUME, 1)
    assert not deleting.after.whole
    gone = seen_of(deleting.after, volume=Sight.ABSENT)
    complete = decide(deleting.after, gone, ended(taken(deleting)), policy=POLICY, now=NOW)
    assert (complete.after.phase, complete.after.operation, complete.after.archive_op_id) == (Phase.ARCHIVED, Operation.NONE, None)


def test_an_archive_that_cannot_be_seen_after_its_commit_deletes_nothing() -> None:
    ws, run = claimed(workspace(Phase.STANDBY, DesiredState.ARCHIVED))
    done = archived_run(ws, run)
    committed = decide(ws, seen_of(ws, archive_direct=False), done, policy=POLICY, now=NOW).after
    unseen = decide(committed, seen_of(committed, archive=ArchiveSight.UNKNOWN), done, policy=POLICY, now=NOW)
    assert unseen.queue is None
    lost = decide(committed, seen_of(committed, archive=ArchiveSight.ABSENT), done, policy=POLICY, now=NOW)
    assert lost.queue is None
    assert lost.after.phase is Phase.STANDBY
    again = decide(lost.after, seen_of(committed, archive=ArchiveSight.ABSENT), done, policy=POLICY, now=later(60))
    assert again.queue is not None
    assert (again.queue.action, again.after.expected) == (Action.ARCHIVE, True)
    assert again.after.archive_op_id != committed.archive_op_id


def test_a_meta_lost_after_the_removal_began_is_rebuilt_without_reading_the_volume() -> None:
    ws, run = claimed(workspace(Phase.STANDBY, DesiredState.ARCHIVED))
    done = archived_run(ws, run)
    committed = decide(ws, seen_of(ws, archive_direct=False), done, policy=POLICY, now=NOW).after
    deleting = decide(committed, seen_of(committed), done, policy=POLICY, now=NOW)
    lost = replace(taken(deleting), state=AttemptState.LOST)
    repair = decide(
        deleting.after, seen_of(deleting.after, archive=ArchiveSight.NO_META, volume=Sight.PRESENT), lost, policy=POLICY, now=NOW
    )
    assert repair.queue is not None
    assert (repair.queue.action, repair.queue.params.get("repair"), repair.queue.params["sha256"]) == (Action.ARCHIVE, True, "a" * 64)


def test_archiving_what_is_not_whole_and_was_never_packed_needs_a_person() -> None:
    ws, run = claimed(workspace(Phase.STANDBY, DesiredState.ARCHIVED))
    ws = replace(ws, home_ctx={**ws.home_ctx, "whole": False, "expected": False})
    decision = decide(ws, seen_of(ws), replace(run, state=AttemptState.LOST), policy=POLICY, now=NOW)
    assert (decision.after.phase, decision.after.error_reason) == (Phase.ERROR, ErrorReason.DATA_LOST)


def test_a_container_that_came_up_while_archiving_spoils_the_archive() -> None:
    ws, run = claimed(workspace(Phase.STANDBY, DesiredState.ARCHIVED))
    here = {"container": ContainerSight.RUNNING, "container_generation": 1, "instance": "x"}
    decision = decide(ws, seen_of(ws, **here), archived_run(ws, run), policy=POLICY, now=NOW)
    assert (decision.after.operation, decision.after.archive_key, decision.after.expected) == (Operation.NONE, None, True)


def test_a_verified_archive_is_committed_before_the_missing_volume_is_judged() -> None:
    ws, run = claimed(workspace(Phase.STANDBY, DesiredState.ARCHIVED))
    done = archived_run(ws, run)
    gone = seen_of(ws, volume=Sight.ABSENT, archive_direct=False)
    committed = decide(ws, gone, done, policy=POLICY, now=NOW)
    assert committed.after.phase is not Phase.ERROR
    complete = decide(committed.after, seen_of(committed.after, volume=Sight.ABSENT), done, policy=POLICY, now=NOW)
    assert complete.after.phase is Phase.ARCHIVED


def test_an_empty_archive_makes_a_new_workspace_archived() -> None:
    ws, run = claimed(workspace(Phase.PENDING, DesiredState.ARCHIVED), Operation.CREATE_EMPTY_ARCHIVE)
    assert run.params["empty"] is True
    committed = decide(ws, seen_of(ws, archive_direct=False), archived_run(ws, run), policy=POLICY, now=NOW).after
    complete = decide(committed, seen_of(committed), archived_run(ws, run), policy=POLICY, now=NOW)
    assert (complete.after.phase, complete.after.archive_op_id) == (Phase.ARCHIVED, None)


def test_deleting_removes_the_container_then_every_volume() -> None:
    ws = workspace(Phase.RUNNING, DesiredState.DELETED, deleted_at=NOW)
    first = decide(ws, seen_of(ws), policy=POLICY, now=NOW)
    assert first.queue is not None
    assert first.queue.action is Action.DELETE
    no_container = seen_of(first.after, container=ContainerSight.ABSENT)
    second = decide(first.after, no_container, ended(taken(first)), policy=POLICY, now=NOW)
    assert second.queue is not None
    assert (second.queue.action, second.queue.params["all"]) == (Action.DELETE_VOLUME, True)
    old_left = replace(no_container, volume=Sight.ABSENT, any_volume=Sight.PRESENT)
    assert decide(second.after, old_left, ended(taken(second)), policy=POLICY, now=NOW).after.phase is Phase.DELETING
    clean = replace(no_container, volume=Sight.ABSENT, any_volume=Sight.ABSENT)
    assert decide(second.after, clean, ended(taken(second)), policy=POLICY, now=NOW).after.phase is Phase.DELETED


# --- 1.4 deaths
def test_a_container_that_dies_is_started_again_and_the_third_death_is_an_error() -> None:
    ws = workspace(Phase.RUNNING)
    died = seen_of(ws, container=ContainerSight.STOPPED, exit_code=137)
    for count in (1, 2):
        decision = decide(ws, died, policy=POLICY, now=later(count))
        assert decision.after.operation is Operation.STARTING
        ws = workspace(Phase.RUNNING)
        ws.home_ctx["deaths"] = decision.after.home_ctx["deaths"]
    third = decide(ws, died, policy=POLICY, now=later(3))
    assert (third.after.phase, third.after.error_reason) == (Phase.ERROR, ErrorReason.ACTION_FAILED)
    assert (third.after.error_info or {})["context"]["exit_code"] == 137
    much_later = decide(ws, died, policy=POLICY, now=later(700))
    assert much_later.after.operation is Operation.STARTING


def test_a_container_ended_together_with_codehub_is_started_again_and_no_death() -> None:
    ws = workspace(Phase.RUNNING)
    decision = decide(ws, seen_of(ws, container=ContainerSight.STOPPED, ended_in_order=True), policy=POLICY, now=NOW)
    assert decision.after.operation is Operation.STARTING
    assert "deaths" not in decision.after.home_ctx


# --- 6 errors
def failing(ws: Snapshot, run: Run, reason: ErrorReason = ErrorReason.ACTION_FAILED, **context: Any) -> Run:
    return ended(run, AttemptState.FAILED, error=failure(reason, **context))


def test_the_third_failure_is_retry_exceeded_with_the_last_error() -> None:
    ws, run = claimed(workspace(Phase.STANDBY), Operation.STARTING)
    at = NOW
    for count in (1, 2):
        counted = decide(ws, seen_of(ws), failing(ws, run), policy=POLICY, now=at)
        assert counted.queue is None
        assert (counted.after.error_count, (counted.after.error_info or {})["is_terminal"]) == (count, False)
        too_early = decide(counted.after, seen_of(ws), failing(ws, run), policy=POLICY, now=at + timedelta(seconds=20))
        assert too_early.queue is None
        at += timedelta(seconds=80)
        retry = decide(counted.after, seen_of(ws), failing(ws, run), policy=POLICY, now=at)
        assert retry.queue is not None
        ws, run = retry.after, taken(retry)
    final = decide(ws, seen_of(ws), failing(ws, run), policy=POLICY, now=at)
    assert (final.after.phase, final.after.error_reason, final.after.error_count) == (Phase.ERROR, ErrorReason.RETRY_EXCEEDED, 3)
    info = final.after.error_info or {}
    assert (info["context"]["last_reason"], info["context"]["max_retries"], info["context"]["last_error"]) == ("ActionFailed", 3, "broken")
    assert (final.after.previous_phase, final.after.operation) == (Phase.STANDBY, Operation.NONE)


@pytest.mark.parametrize(
    "reason", [ErrorReason.DATA_LOST, ErrorReason.ARCHIVE_CORRUPTED, ErrorReason.IMAGE_PULL_FAILED, ErrorReason.CONTAINER_WITHOUT_VOLUME]
)
def test_what_cannot_heal_is_terminal_at_once(reason: ErrorReason) -> None:
    ws, run = claimed(workspace(Phase.STANDBY))
    decision = decide(ws, seen_of(ws), failing(ws, run, reason), policy=POLICY, now=NOW)
    assert (decision.after.phase, decision.after.error_reason) == (Phase.ERROR, reason)
    assert decision.after.status(ConditionKey.HEALTHY) is False


def test_waiting_doubles_with_jitter_and_ends_at_a_quarter_of_an_hour() -> None:
    first, second = backoff(ID, 1, base=30), backoff(ID, 2, base=30)
    assert 30 <= first <= 37.5
    assert 60 <= second <= 75
    assert backoff(ID, 1, base=30) == first
    assert backoff(uuid5(ID, "x"), 1, base=30) != first
    assert backoff(ID, 50, base=30) == 900


def test_a_time_limit_counts_from_the_first_run_and_ends_in_timeout() -> None:
    ws, run = claimed(workspace(Phase.STANDBY))
    queued = replace(run, state=AttemptState.QUEUED, started_at=None)
    assert decide(ws, seen_of(ws), queued, policy=POLICY, now=later(5000)).after.phase is Phase.STANDBY
    late = decide(ws, seen_of(ws), run, policy=POLICY, now=later(301))
    assert (late.after.error_reason, late.end_runs) == (ErrorReason.TIMEOUT, AttemptState.LOST)
    context = (late.after.error_info or {})["context"]
    assert (context["operation"], context["elapsed_seconds"], context["limit_seconds"]) == ("STARTING", 301, 300)


def test_complete_comes_before_the_time_limit() -> None:
    ws, run = claimed(workspace(Phase.RUNNING, DesiredState.STANDBY))
    late = decide(ws, seen_of(ws, container=ContainerSight.ABSENT), run, policy=POLICY, now=later(5000))
    assert late.after.phase is Phase.STANDBY


def test_time_without_sight_does_not_count_towards_the_limit() -> None:
    ws, run = claimed(workspace(Phase.STANDBY))
    ws = decide(ws, seen_of(ws), run, policy=POLICY, now=later(1)).after
    blind = Observation(container_direct=True, volume_direct=True, generation=1)
    paused = decide(ws, blind, run, policy=POLICY, now=later(100)).after
    back = decide(paused, seen_of(ws), run, policy=POLICY, now=later(1000))
    assert back.after.operation is Operation.STARTING
    assert decide(back.after, seen_of(ws), run, policy=POLICY, now=later(1201)).after.error_reason is ErrorReason.TIMEOUT


def test_a_pull_that_moves_does_not_count_towards_the_limit() -> None:
    ws, run = claimed(workspace(Phase.STANDBY))
    pulling = replace(run, result={"pull_seconds": 400.0})
    assert decide(ws, seen_of(ws), pulling, policy=POLICY, now=later(600)).after.operation is Operation.STARTING


def test_an_open_breaker_counts_nothing_and_closing_makes_retries_due_at_once() -> None:
    ws, run = claimed(workspace(Phase.STANDBY))
    lost = failing(ws, run, ErrorReason.UNREACHABLE, endpoint="docker")
    is_open = Policy(open_breakers=frozenset({"docker"}))
    waiting = decide(ws, seen_of(ws), lost, policy=is_open, now=later(1))
    assert (waiting.queue, waiting.after.error_count) == (None, 0)
    assert decide(waiting.after, seen_of(ws), lost, policy=is_open, now=later(4000)).after.phase is Phase.STANDBY
    closed = Policy(closed_at={"docker": later(5).timestamp()})
    assert decide(waiting.after, seen_of(ws), lost, policy=closed, now=later(6)).queue is not None


def test_nothing_is_claimed_while_its_system_is_away() -> None:
    is_open = Policy(open_breakers=frozenset({"s3"}))
    for phase, desired, claims in (
        (Phase.STANDBY, "ARCHIVED", False),
        (Phase.ARCHIVED, "RUNNING", False),
        (Phase.STANDBY, "RUNNING", True),
    ):
        ws = workspace(phase, DesiredState(desired))
        assert (decide(ws, seen_of(ws), policy=is_open, now=NOW).queue is not None) is claims


def test_a_lost_run_is_taken_again_without_counting_as_an_error() -> None:
    ws, run = claimed(workspace(Phase.PENDING))
    again = decide(ws, seen_of(ws), replace(run, state=AttemptState.LOST), policy=POLICY, now=NOW)
    assert again.queue is not None
    assert (again.queue.number, again.after.error_count, again.after.generation) == (2, 0, 2)


def test_an_archive_retry_reuses_its_key_only_when_the_run_ended_by_itself() -> None:
    ws, run = claimed(workspace(Phase.STANDBY, DesiredState.ARCHIVED))
    lost = decide(ws, seen_of(ws), replace(run, state=AttemptState.LOST), policy=POLICY, now=later(1))
    assert lost.queue is not None
    assert lost.queue.params["key"] != run.params["key"]
    counted = decide(ws, seen_of(ws), failing(ws, run), policy=POLICY, now=NOW).after
    retry = decide(counted, seen_of(ws), failing(ws, run), policy=POLICY, now=later(60))
    assert retry.queue is not None
    assert retry.queue.params["key"] == run.params["key"]


def test_a_failing_deletion_never_becomes_an_error_and_alerts_once() -> None:
    ws, run = claimed(workspace(Phase.STANDBY, DesiredState.DELETED, deleted_at=NOW), Operation.DELETING)
    at, alerts = NOW, 0
    for _ in range(8):
        counted = decide(ws, seen_of(ws, container=ContainerSight.STOPPED), failing(ws, run), policy=POLICY, now=at)
        assert counted.after.phase is Phase.DELETING
        assert counted.after.error_info is not None
        alerts += bool(counted.alert)
        at += timedelta(seconds=1000)
        retry = decide(counted.after, seen_of(ws, container=ContainerSight.STOPPED), failing(ws, run), policy=POLICY, now=at)
        alerts += bool(retry.alert)
        assert retry.queue is not None
        ws, run = retry.after, taken(retry)
    assert alerts == 1


def test_deletion_does_not_wait_for_the_retries_of_another_operation() -> None:
    ws, run = claimed(workspace(Phase.STANDBY))
    ws = replace(ws, deleted_at=NOW, desired_state=DesiredState.DELETED)
    running = decide(ws, seen_of(ws), run, policy=POLICY, now=NOW)
    assert running.after.operation is Operation.STARTING
    failed = decide(ws, seen_of(ws), failing(ws, run), policy=POLICY, now=NOW)
    assert (failed.after.operation, failed.after.phase) == (Operation.NONE, Phase.DELETING)


# --- 6.4 recovery
def broken(reason: ErrorReason = ErrorReason.DATA_LOST, strategy: str | None = "reobserve", **changes: Any) -> Snapshot:
    ws = workspace(Phase.STANDBY, DesiredState.RUNNING, archive=True)
    ws.phase, ws.error_reason, ws.error_count, ws.recovery_strategy = Phase.ERROR, reason, 1, strategy
    ws.error_info = {"reason": str(reason), "is_terminal": True, "context": {}}
    ws.conditions = conditions(archive=True, healthy=False)
    return replace(ws, **changes)


def test_reobserve_clears_the_error_and_goes_on_from_reality() -> None:
    ws = broken(ErrorReason.TIMEOUT)
    decision = decide(ws, seen_of(ws), policy=POLICY, now=NOW)
    assert (decision.after.phase, decision.after.error_info, decision.after.error_count) == (Phase.STANDBY, None, 0)
    assert decision.consumed


def test_reobserve_of_a_home_still_lost_stays_in_error_without_telling_again() -> None:
    ws = broken()
    decision = decide(ws, seen_of(ws, volume=Sight.ABSENT), policy=POLICY, now=NOW)
    assert (decision.after.phase, decision.after.error_reason, decision.alert) == (Phase.ERROR, ErrorReason.DATA_LOST, "")
    assert decision.consumed


def test_recovery_waits_until_reality_can_be_seen() -> None:
    ws = broken()
    assert decide(ws, seen_of(ws, volume_direct=False), policy=POLICY, now=NOW).looks
    blind = decide(ws, seen_of(ws, volume=Sight.UNKNOWN), policy=POLICY, now=NOW)
    assert not blind.consumed
    assert blind.after.phase is Phase.ERROR


def test_restore_archive_goes_back_to_the_last_archive() -> None:
    ws = broken(strategy="restore_archive")
    decision = decide(ws, seen_of(ws, volume=Sight.ABSENT), policy=POLICY, now=NOW)
    assert (decision.after.phase, decision.after.archive_key) == (Phase.ARCHIVED, KEY)
    assert decide(decision.after, seen_of(decision.after), policy=POLICY, now=NOW).after.operation is Operation.RESTORING


def test_start_empty_forgets_the_archive() -> None:
    ws = broken(strategy="start_empty")
    decision = decide(ws, seen_of(ws, volume=Sight.ABSENT), policy=POLICY, now=NOW)
    assert (decision.after.phase, decision.after.archive_key) == (Phase.PENDING, None)


@pytest.mark.parametrize(("strategy", "phase"), [("restore_archive", Phase.ARCHIVED), ("start_empty", Phase.PENDING)])
def test_recovery_removes_a_container_in_the_way_first(strategy: str, phase: Phase) -> None:
    ws = broken(ErrorReason.CONTAINER_WITHOUT_VOLUME, strategy)
    here = {"container": ContainerSight.RUNNING, "container_generation": 1, "instance": "x", "listening": True}
    decision = decide(ws, seen_of(ws, volume=Sight.ABSENT, **here), policy=POLICY, now=NOW)
    assert (decision.after.operation, decision.after.phase) == (Operation.STOPPING, phase)
    assert decision.queue is not None
    gone = seen_of(decision.after, volume=Sight.ABSENT, container=ContainerSight.ABSENT)
    after = decide(decision.after, gone, ended(taken(decision)), policy=POLICY, now=NOW).after
    assert (after.phase, after.operation) == (phase, Operation.NONE)


@pytest.mark.parametrize("strategy", ["restore_archive", "start_empty"])
def test_a_home_that_came_back_is_never_hidden_by_a_recovery(strategy: str) -> None:
    ws = broken(strategy=strategy)
    decision = decide(ws, seen_of(ws), policy=POLICY, now=NOW)
    assert (decision.after.phase, decision.after.archive_key) == (Phase.STANDBY, KEY)


def test_error_waits_for_a_person_and_for_deletion() -> None:
    ws = broken(ErrorReason.TIMEOUT, None)
    assert decide(ws, seen_of(ws), policy=POLICY, now=NOW).queue is None
    ws = broken(ErrorReason.TIMEOUT, None, deleted_at=NOW, desired_state=DesiredState.DELETED)
    assert decide(ws, seen_of(ws), policy=POLICY, now=NOW).after.operation is Operation.DELETING


# --- the matrix
def every_case() -> Any:
    phases = [Phase.PENDING, Phase.ARCHIVED, Phase.STANDBY, Phase.RUNNING, Phase.ERROR]
    for phase, desired, operation, container, volume, archive, deleted, key, whole in itertools.product(
        phases,
        [DesiredState.RUNNING, DesiredState.STANDBY, DesiredState.ARCHIVED],
        Operation,
        ContainerSight,
        Sight,
        ArchiveSight,
        [False, True],
        [False, True],
        [False, True],
    ):
        if phase is Phase.ERROR and operation is not Operation.NONE:
            continue
        ws = workspace(phase if phase is not Phase.ERROR else Phase.STANDBY, desired, archive=key)
        ws.home_ctx |= {"generation": 1, "whole": whole, "expected": whole and phase is not Phase.ARCHIVED}
        ws.phase, ws.operation = phase, operation
        if phase is Phase.ERROR:
            ws.error_info = {"is_terminal": True, "reason": "Timeout", "context": {}}
            ws.conditions[ConditionKey.HEALTHY] = condition(False)
        if deleted:
            ws.deleted_at, ws.desired_state = NOW, DesiredState.DELETED
        if operation is not Operation.NONE:
            ws.home_ctx |= {"op_id": str(ID), "op_phase": str(phase)}
            ws.archive_op_id = ID if operation in (Operation.ARCHIVING, Operation.CREATE_EMPTY_ARCHIVE) else None
        seen = Observation(container, True, 1, "i", "http://e", None, "", True, volume, True, 1, volume, archive, True, ws.archive_key)
        yield ws, seen


def test_every_case_gives_a_lawful_decision() -> None:
    count = 0
    for ws, seen in every_case():
        count += 1
        before = ws.copy()
        decision = decide(ws, seen, policy=POLICY, now=NOW)
        assert ws == before, "the input must not be changed"
        assert decision == decide(ws, seen, policy=POLICY, now=NOW), "the same input gives the same decision"
        after = decision.after
        assert after.phase is not Phase.ERROR or after.operation is Operation.NONE
        if decision.looks:
            continue
        if ws.operation is not Operation.NONE:
            assert after.operation in (ws.operation, Operation.NONE)
        if ws.deleted_at is not None:
            assert after.phase in (Phase.DELETING, Phase.DELETED)
            assert after.operation in (ws.operation, Operation.DELETING, Operation.NONE)
        if decision.queue is not None and decision.queue.action is Action.DELETE_VOLUME:
            ready = after.archive_key is not None and after.status(ConditionKey.ARCHIVE_READY) and archive_is(seen)
            assert after.operation is Operation.DELETING or ready
        if seen.is_blind:
            assert decision.queue is None
        if is_settled(ws, seen):
            assert after.phase is ws.phase
            assert decision.queue is None
    assert count > 10_000


def archive_is(seen: Observation) -> bool:
    return seen.archive is ArchiveSight.PRESENT
