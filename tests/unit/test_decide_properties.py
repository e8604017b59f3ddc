"""Properties of the state core over generated states: levels, directions, ends, and what may never be deleted."""

import itertools
from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.decide import decide
from coordinator.state import ArchiveSight, ContainerSight, Observation, Policy, Run, Sight, Snapshot
from tests.unit.test_decide import KEY, NOW, POLICY, workspace
from workspaces.phases import LEVELS, Action, AttemptState, ConditionKey, DesiredState, Operation, Phase

LIVE = [Phase.PENDING, Phase.ARCHIVED, Phase.STANDBY, Phase.RUNNING]
wanted = st.sampled_from([DesiredState.RUNNING, DesiredState.STANDBY, DesiredState.ARCHIVED])


class Reality:
    """What is outside, changed by runs exactly as their actuators would."""

    def __init__(self, ws: Snapshot) -> None:
        self.container = ws.generation if ws.phase is Phase.RUNNING else 0
        self.volumes = {ws.generation} if ws.whole else set()
        self.archives = {ws.archive_key} if ws.archive_key else set()

    def seen(self, ws: Snapshot) -> Observation:
        runs = self.container > 0
        here = ws.generation in self.volumes
        archive = ArchiveSight.PRESENT if ws.archive_key in self.archives else ArchiveSight.ABSENT
        return Observation(
            container=ContainerSight.RUNNING if runs else ContainerSight.ABSENT,
            container_direct=True,
            container_generation=self.container,
            instance="i" if runs else "",
            endpoint="http://e" if runs else "",
            listening=True if runs else None,
            volume=Sight.PRESENT if here else Sight.ABSENT,
            volume_direct=True,
            generation=ws.generation,
            any_volume=Sight.PRESENT if self.volumes else Sight.ABSENT,
            archive=archive if ws.archive_key else ArchiveSight.UNKNOWN,
            archive_direct=True,
            archive_key=ws.archive_key,
        )

    def perform(self, action: Action, params: dict[str, Any]) -> None:
        match action:
            case Action.PROVISION | Action.RESTORE:
                self.volumes.add(params["generation"])
            case Action.START:
                self.container = params["generation"]
            case Action.DELETE:
                self.container = 0
            case Action.ARCHIVE:
                self.archives.add(params["key"])
            case Action.DELETE_VOLUME:
                self.volumes = set() if params["all"] else self.volumes - {params["generation"]}


def lives(ws: Snapshot, *, fail: list[bool]) -> list[Snapshot]:
    """Every state on the way until nothing is left to do. Runs fail as told, and then work."""
    reality, states, run = Reality(ws), [ws], None
    now, failures = NOW, list(fail)
    for _ in range(300):
        now += timedelta(seconds=1)
        decision = decide(ws, reality.seen(ws), run, policy=POLICY, now=now)
        assert not decision.looks
        if decision.after.operation is Operation.NONE:
            run = None
        if decision.queue is not None:
            if decision.queue.action is Action.DELETE_VOLUME and decision.after.operation is not Operation.DELETING:
                assert decision.after.archive_key in reality.archives
                assert decision.after.status(ConditionKey.ARCHIVE_READY)
            failed = failures.pop(0) if failures else False
            if not failed:
                reality.perform(decision.queue.action, decision.queue.params)
            state = AttemptState.FAILED if failed else AttemptState.SUCCEEDED
            error = {"reason": "ActionFailed", "message": "x", "context": {}} if failed else None
            queue = decision.queue
            result = {"sha256": "a" * 64, "size": 1}
            run = Run(queue.id, queue.action, queue.number, state, queue.params, result, error, now, now, now)
        if decision.after == ws and decision.queue is None:
            if ws.operation is Operation.NONE:
                return states
            now += timedelta(seconds=45)
        ws = decision.after
        states.append(ws)
    raise AssertionError("it does not end")


@settings(deadline=None)
@given(phase=st.sampled_from(LIVE), desired=wanted, archive=st.booleans())
def test_every_state_reaches_what_is_wanted_in_a_few_steps(phase: Phase, desired: DesiredState, archive: bool) -> None:
    ws = workspace(phase, desired, archive=True if phase is Phase.ARCHIVED else archive and phase is not Phase.PENDING)
    states = lives(ws, fail=[])
    # A new workspace cannot be packed without ever having had a home but as an empty archive: every other wish is reached as it is.
    assert str(states[-1].phase) == str(desired)
    assert states[-1].operation is Operation.NONE


@settings(deadline=None)
@given(phase=st.sampled_from(LIVE), desired=wanted, fail=st.lists(st.booleans(), max_size=6))
def test_no_level_is_skipped_and_no_path_mixes_up_and_down(phase: Phase, desired: DesiredState, fail: list[bool]) -> None:
    states = lives(workspace(phase, desired), fail=fail)
    levels = [LEVELS[state.phase] for state in states if state.phase in LEVELS]
    moves = [(before, after) for before, after in itertools.pairwise(levels) if before != after]
    order = sorted(LEVELS.values())
    for before, after in moves:
        new = before == 0 and after in (5, 10)
        assert new or abs(order.index(before) - order.index(after)) == 1
    assert all(after > before for before, after in moves) or all(after < before for before, after in moves)


@settings(deadline=None)
@given(phase=st.sampled_from(LIVE), desired=wanted, fail=st.lists(st.booleans(), min_size=3, max_size=8))
def test_error_always_carries_no_operation_and_a_terminal_error(phase: Phase, desired: DesiredState, fail: list[bool]) -> None:
    for state in lives(workspace(phase, desired), fail=fail):
        if state.phase is Phase.ERROR:
            assert state.operation is Operation.NONE
            assert (state.error_info or {})["is_terminal"]
            assert state.status(ConditionKey.HEALTHY) is False


@settings(deadline=None)
@given(phase=st.sampled_from(LIVE), fail=st.lists(st.booleans(), max_size=12))
def test_deletion_always_ends_whatever_fails(phase: Phase, fail: list[bool]) -> None:
    states = lives(workspace(phase, DesiredState.DELETED, deleted_at=NOW), fail=fail[:6])
    assert states[-1].phase is Phase.DELETED
    assert all(state.phase in (Phase.DELETING, Phase.DELETED) for state in states[1:])


states_of_rows = st.builds(
    lambda phase, desired, operation, whole, expected, key, opening, deleted: replace(
        workspace(phase, desired),
        operation=operation if phase is not Phase.ERROR else Operation.NONE,
        deleted_at=NOW if deleted else None,
        desired_state=DesiredState.DELETED if deleted else desired,
        archive_key=KEY if key else None,
        archive_op_id=workspace(phase).id if opening else None,
        home_ctx={"generation": 1, "whole": whole, "expected": expected and whole, "restore_marker": None, "op_phase": str(phase)},
        error_info={"is_terminal": True, "reason": "Timeout", "context": {}} if phase is Phase.ERROR else None,
    ),
    st.sampled_from([*LIVE, Phase.ERROR]),
    wanted,
    st.sampled_from(Operation),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
sights = st.builds(
    Observation,
    container=st.sampled_from(ContainerSight),
    container_direct=st.booleans(),
    container_generation=st.integers(0, 2),
    instance=st.sampled_from(["i", "j"]),
    endpoint=st.just("http://e"),
    listening=st.sampled_from([None, True, False]),
    volume=st.sampled_from(Sight),
    volume_direct=st.booleans(),
    generation=st.just(1),
    any_volume=st.sampled_from(Sight),
    archive=st.sampled_from(ArchiveSight),
    archive_direct=st.booleans(),
    archive_key=st.sampled_from([KEY, None]),
)
runs = st.one_of(
    st.none(),
    st.builds(
        lambda action, state, number: Run(
            workspace(Phase.PENDING).id,
            action,
            number,
            state,
            {"generation": 1, "key": f"{workspace(Phase.PENDING).id}/{workspace(Phase.PENDING).id}/home.tar.zst", "all": False},
            {"sha256": "a" * 64, "size": 1},
            {"reason": "ActionFailed", "message": "x", "context": {}} if state is AttemptState.FAILED else None,
            NOW,
            NOW,
            NOW,
        ),
        st.sampled_from(Action),
        st.sampled_from(AttemptState),
        st.integers(1, 3),
    ),
)


@settings(max_examples=600, deadline=None)
@given(
    ws=states_of_rows,
    seen=sights,
    run=runs,
    seconds=st.integers(0, 4000),
    away=st.sampled_from([frozenset(), frozenset({"docker"}), frozenset({"s3"})]),
)
def test_any_row_under_any_sight_gives_one_lawful_decision(
    ws: Snapshot, seen: Observation, run: Run | None, seconds: int, away: frozenset[str]
) -> None:
    policy, now = Policy(open_breakers=away), NOW + timedelta(seconds=seconds)
    copy = ws.copy()
    run = run if ws.operation is not Operation.NONE else None
    decision = decide(ws, seen, run, policy=policy, now=now)
    assert ws == copy
    assert decision == decide(ws, seen, run, policy=policy, now=now)
    after = decision.after
    assert after.phase is not Phase.ERROR or after.operation is Operation.NONE
    if decision.looks:
        return
    if ws.operation is not Operation.NONE:
        assert after.operation in (ws.operation, Operation.NONE)
    if decision.queue is None:
        return
    assert not seen.is_blind
    assert run is None or not run.is_open
    if decision.queue.action is Action.DELETE_VOLUME and after.operation is not Operation.DELETING:
        assert after.status(ConditionKey.ARCHIVE_READY)
        assert after.committed
        assert seen.archive is ArchiveSight.PRESENT
        assert seen.archive_direct
    if decision.queue.action in (Action.PROVISION, Action.RESTORE):
        assert decision.queue.params["generation"] == after.generation == ws.generation + 1
    if decision.queue.action is Action.ARCHIVE and not decision.queue.params.get("repair") and not decision.queue.params.get("empty"):
        assert after.whole
