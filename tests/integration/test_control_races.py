"""What comes between a decision and its run, or after it: frozen removals, archives that vanish, wishes to delete, on real PostgreSQL."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
import structlog
from django.db import connection

from coordinator.actuators import run_attempt
from coordinator.alerts import deliver_alert
from coordinator.providers.base import ActionFailedError, UnreachableError
from coordinator.runs import FencedError, RunKeeper
from tests.fakes.puppets import Fate, KilledError, Puppet, run_until_frozen
from tests.fakes.world import World
from workspaces.models import Alert, Attempt
from workspaces.phases import ErrorReason, Operation, Phase

pytestmark = pytest.mark.django_db(transaction=True)

STORE_AWAY = UnreachableError("no answer", endpoint="s3")


@pytest.fixture
def world() -> World:
    return World()


def press_on(world: World, workspace: UUID) -> None:
    """Time passes in steps longer than any retry wait, until the workspace rests."""
    for _ in range(12):
        world.settle()
        row = world.row(workspace)
        if row.operation == Operation.NONE and row.phase in (row.desired_state, Phase.ERROR):
            return
        world.later(70)


def until_queued(world: World, action: str) -> UUID:
    """Run everything up to the first run of that kind, which stays in the queue."""
    for _ in range(10):
        world.tick()
        waiting, world.executor.waiting = world.executor.waiting, []
        for attempt in waiting:
            if Attempt.objects.get(pk=attempt).action == action:
                return attempt
            workspace = world.run(attempt)
            world.reconciler.reconcile([workspace] if workspace else [])
    raise AssertionError(f"{action} was never queued")


@pytest.mark.parametrize("at", range(1, 6))
def test_a_removal_that_froze_before_its_call_leaves_a_newer_container_alone(world: World, at: int) -> None:
    workspace = world.at_rest("RUNNING")
    world.ask(workspace, "STANDBY")
    attempt = until_queued(world, "delete")
    fate = Fate(freeze_at=at)
    runtime: Any = Puppet(world.runtime, fate)
    tools = replace(world.tools, runtime=runtime, keeper=RunKeeper(name="frozen", beating=False))

    thread = run_until_frozen(attempt, tools, fate)
    world.later(20)
    press_on(world, workspace)
    world.ask(workspace, "RUNNING")
    press_on(world, workspace)
    newer = world.runtime.containers[workspace]
    fate.thawed.set()
    thread.join(30)
    assert world.runtime.containers[workspace] == newer


@pytest.mark.parametrize(("start", "wish", "action"), [("STANDBY", "ARCHIVED", "archive"), ("ARCHIVED", "STANDBY", "restore")])
@pytest.mark.parametrize("taken", [True, False])
def test_a_wish_to_delete_ends_an_archive_or_restore_under_way(world: World, start: str, wish: str, action: str, taken: bool) -> None:
    workspace = world.at_rest(start)
    world.ask(workspace, wish)
    attempt = until_queued(world, action)
    run = RunKeeper(name="busy", beating=False).take(attempt) if taken else None
    world.delete(workspace)
    world.tick()
    assert Attempt.objects.get(pk=attempt).state == "LOST"
    if run is not None:
        with pytest.raises(FencedError):
            run.check()
    world.settle()
    assert world.row(workspace).phase == Phase.DELETED
    assert (world.runtime.homes, world.runtime.containers) == ({}, {})


@pytest.mark.parametrize("lost", ["", ".meta"])
@pytest.mark.parametrize("looked", [True, False])
def test_an_archive_that_vanishes_before_the_home_is_removed_keeps_the_home(world: World, lost: str, looked: bool) -> None:
    workspace = world.at_rest("STANDBY")
    world.ask(workspace, "ARCHIVED")
    attempt = until_queued(world, "delete_volume")
    first = str(world.row(workspace).archive_key)
    del world.store.objects[first + lost]
    if looked:
        world.tick()
        assert world.row(workspace).phase == Phase.STANDBY
    world.run(attempt)
    assert world.runtime.files(workspace, 1) == {"notes.txt": b"precious"}
    press_on(world, workspace)
    assert world.row(workspace).phase == Phase.ARCHIVED
    assert not world.runtime.homes
    world.ask(workspace, "STANDBY")
    press_on(world, workspace)
    assert world.runtime.files(workspace, 2) == {"notes.txt": b"precious"}


def test_a_removal_that_was_cut_short_never_makes_its_home_whole_again(world: World) -> None:
    workspace = world.at_rest("STANDBY")
    world.ask(workspace, "ARCHIVED")
    attempt = until_queued(world, "delete_volume")
    fate = Fate(kill_at=1, moment="before")
    runtime: Any = Puppet(world.runtime, fate)
    with pytest.raises(KilledError):
        run_attempt(attempt, replace(world.tools, runtime=runtime, keeper=RunKeeper(name="victim", beating=False)))
    world.later(20)
    again = until_queued(world, "delete_volume")
    del world.store.objects[str(world.row(workspace).archive_key)]
    world.run(again)
    press_on(world, workspace)
    row = world.row(workspace)
    assert (row.phase, row.error_reason, row.home_ctx["whole"]) == (Phase.ERROR, ErrorReason.DATA_LOST, False)


def test_a_removal_that_failed_after_it_began_is_not_taken_for_one_that_never_did(world: World) -> None:
    workspace = world.at_rest("STANDBY")
    world.ask(workspace, "ARCHIVED")
    attempt = until_queued(world, "delete_volume")
    # A sign of life is written while it still looks for the archive; then the removal itself fails.
    world.store.hook("head", lambda *_args: world.keeper.beat())
    world.runtime.fail("delete_volume", ActionFailedError("half of it is gone"))
    world.run(attempt)
    world.store.hook("head", lambda *_args: None)
    assert Attempt.objects.get(pk=attempt).state == "FAILED"
    del world.store.objects[str(world.row(workspace).archive_key)]
    press_on(world, workspace)
    row = world.row(workspace)
    assert (row.phase, row.error_reason, row.home_ctx["whole"]) == (Phase.ERROR, ErrorReason.DATA_LOST, False)


def test_recovery_of_a_home_on_disk_does_not_wait_for_object_storage(world: World) -> None:
    workspace = world.at_rest("ARCHIVED")
    world.ask(workspace, "RUNNING")
    world.settle()
    world.runtime.lose_container(workspace)
    for _ in range(3):
        world.runtime.fail("start", UnreachableError("no", endpoint="docker"), times=9)
        world.settle()
        world.later(300)
    world.runtime.heal()
    world.clock.time += 100
    assert world.row(workspace).phase == Phase.ERROR
    world.store.fail("head", STORE_AWAY, times=1000)
    world.store.fail("list", STORE_AWAY, times=1000)
    world.recover(workspace)
    press_on(world, workspace)
    assert world.row(workspace).phase == Phase.RUNNING


def test_an_alert_its_coordinator_could_not_send_is_sent_by_the_next(world: World) -> None:
    workspace = world.create("STANDBY")
    old = Alert.objects.create(workspace_id=workspace, reason="DataLost", message="gone")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE workspaces_alert SET at = at - interval '2 minutes'")
    Alert.objects.create(workspace_id=workspace, reason="DataLost", message="being sent by its coordinator")
    told: list[int] = []
    reconciler = world.new_reconciler()
    reconciler._tell = lambda alerts, config: told.extend(alerts)
    reconciler.tick()
    reconciler.close()
    assert told == [old.pk]
    deliver_alert(old.pk, world.config)
    world.reconciler._tell = lambda alerts, config: told.extend(alerts)
    world.tick()
    assert told == [old.pk]


def test_what_cannot_be_observed_is_said_once_and_its_return_once(world: World) -> None:
    world.at_rest("STANDBY")
    world.runtime.fail("list_containers", UnreachableError("no answer", endpoint="docker"), times=3)
    with structlog.testing.capture_logs() as logs:
        for _ in range(5):
            world.tick()
    said = [line["event"] for line in logs if line["event"] in ("cannot be observed", "observed again")]
    assert said == ["cannot be observed", "observed again"]
