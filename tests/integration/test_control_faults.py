"""Failures, crashes, lost executors and frozen processes, one by one, on real PostgreSQL with doubles outside."""

from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from django.core import mail
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext

from coordinator.actuators import run_attempt, scrubbed
from coordinator.alerts import deliver_alert
from coordinator.breaker import BreakerState
from coordinator.providers.base import ActionFailedError, ImagePullFailedError, UnreachableError
from coordinator.reconcile import EngineMismatchError
from coordinator.runs import FencedError, RunKeeper
from tests.fakes.puppets import Fate, KilledError, Moment, Puppet
from tests.fakes.world import World
from workspaces.models import Alert, Attempt, Breaker, Installation, Workspace
from workspaces.phases import ErrorReason, Operation, Phase

pytestmark = pytest.mark.django_db(transaction=True)

AWAY = UnreachableError("no answer", endpoint="docker")
STORE_AWAY = UnreachableError("no answer", endpoint="s3")


@pytest.fixture
def world() -> World:
    return World()


def home_of(world: World, workspace: UUID) -> dict[str, bytes]:
    return world.runtime.files(workspace, world.row(workspace).home_ctx["generation"])


def pressed_on(world: World, workspace: UUID, *, rounds: int = 12) -> Workspace:
    """Time passes in steps longer than any retry wait, until the workspace rests."""
    for _ in range(rounds):
        world.settle()
        row = world.row(workspace)
        if row.operation == Operation.NONE and row.phase in (row.desired_state, Phase.ERROR):
            return row
        world.later(45)
    return world.row(workspace)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("start", "wish", "call"),
    [
        ("STANDBY", "RUNNING", "start"),
        ("RUNNING", "STANDBY", "delete"),
        ("STANDBY", "ARCHIVED", "read_volume"),
        ("STANDBY", "ARCHIVED", "delete_volume"),
        ("ARCHIVED", "STANDBY", "provision"),
        ("ARCHIVED", "STANDBY", "write_volume"),
    ],
)
def test_a_call_that_fails_before_or_after_its_effect_is_retried_and_converges(
    world: World, start: str, wish: str, call: str, when: Any
) -> None:
    workspace = world.at_rest(start)
    world.runtime.fail(call, ActionFailedError("it did not work"), when=when)
    world.ask(workspace, wish)
    row = pressed_on(world, workspace)
    assert (row.phase, row.error_info) == (wish, None)
    if wish in ("RUNNING", "STANDBY"):
        assert home_of(world, workspace) == {"notes.txt": b"precious"}


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("at", range(1, 9))
@pytest.mark.parametrize(("start", "wish"), [("STANDBY", "ARCHIVED"), ("ARCHIVED", "RUNNING"), ("RUNNING", "STANDBY")])
def test_a_worker_killed_at_any_call_loses_nothing(world: World, start: str, wish: str, at: int, moment: Moment) -> None:
    workspace = world.at_rest(start)
    world.ask(workspace, wish)
    world.tick()
    fate = Fate(kill_at=at, moment=moment)
    runtime: Any = Puppet(world.runtime, fate)
    store: Any = Puppet(world.store, fate)
    tools = replace(world.tools, runtime=runtime, store=store, keeper=RunKeeper(name="victim", beating=False))
    for _ in range(4):
        # Whatever the doomed process takes up until it is killed.
        waiting, world.executor.waiting = world.executor.waiting, []
        for attempt in waiting:
            with suppress(KilledError):
                run_attempt(attempt, tools)
        if fate.dead:
            break
        world.tick()
    world.later(20)
    row = pressed_on(world, workspace)
    assert (row.phase, row.error_info) == (wish, None)
    world.ask(workspace, "STANDBY")
    pressed_on(world, workspace)
    assert home_of(world, workspace) == {"notes.txt": b"precious"}


def test_a_lost_executor_is_noticed_by_its_silence_and_its_run_taken_up_again(world: World) -> None:
    workspace = world.create("STANDBY")
    world.tick()
    (attempt,) = world.executor.waiting
    world.executor.waiting.clear()
    RunKeeper(name="silent", beating=False).take(attempt)
    world.tick()
    assert not world.executor.waiting
    world.later(16)
    world.tick()
    assert Attempt.objects.get(pk=attempt).state == "LOST"
    world.settle()
    row = world.row(workspace)
    assert (row.phase, row.home_ctx["generation"], row.error_count) == (Phase.STANDBY, 2, 0)


def test_an_executor_whose_session_is_gone_is_noticed_sooner(world: World) -> None:
    world.create("STANDBY")
    world.tick()
    (attempt,) = world.executor.waiting
    RunKeeper(name="gone", beating=False).take(attempt)
    Attempt.objects.filter(pk=attempt).update(backend_pid=2_000_000_000)
    world.tick()
    assert Attempt.objects.get(pk=attempt).state == "RUNNING", "a restarted PostgreSQL must not cost every run"
    world.later(8)
    world.tick()
    assert Attempt.objects.get(pk=attempt).state == "LOST"


def test_a_run_that_was_taken_away_makes_no_further_call_and_cannot_end(world: World) -> None:
    world.create("STANDBY")
    world.tick()
    (attempt,) = world.executor.waiting
    keeper = RunKeeper(name="frozen", beating=False)
    run = keeper.take(attempt)
    assert run is not None
    world.later(16)
    world.tick()
    with pytest.raises(FencedError):
        run.check()
    keeper.beat()
    with pytest.raises(FencedError):
        run.progress(1, 2)
    assert keeper.end(run, run_state(), result={}) is False


def test_a_run_that_ended_because_the_database_was_away_gives_no_more_signs_of_life(world: World) -> None:
    world.create("STANDBY")
    world.tick()
    (attempt,) = world.executor.waiting
    keeper = RunKeeper(name="cut off", beating=False)
    world.runtime.fail("provision", OperationalError("the database does not answer"))
    tools = replace(world.tools, keeper=keeper)
    assert run_attempt(attempt, tools) is None
    world.later(16)
    keeper.beat()
    world.tick()
    assert Attempt.objects.get(pk=attempt).state == "LOST", "nobody works on it any more, so it must be taken up again"


def run_state() -> Any:
    from workspaces.phases import AttemptState

    return AttemptState.SUCCEEDED


def test_ten_deliveries_of_one_attempt_run_it_once(world: World) -> None:
    world.create("STANDBY")
    world.tick()
    (attempt,) = world.executor.waiting
    for _ in range(10):
        world.run(attempt)
    assert world.runtime.count("provision") == 1


def test_what_was_claimed_and_never_dispatched_is_dispatched_by_the_next_coordinator(world: World) -> None:
    workspace = world.create("RUNNING")
    world.tick()
    world.executor.waiting.clear()
    world.reconciler = world.new_reconciler()
    world.settle()
    assert world.row(workspace).phase == Phase.RUNNING


def test_a_home_that_vanishes_is_data_lost_and_nothing_papers_over_it(world: World) -> None:
    workspace = world.at_rest("STANDBY")
    world.runtime.lose_volume(workspace, 1)
    world.ask(workspace, "RUNNING")
    row = pressed_on(world, workspace)
    assert (row.phase, row.error_reason, row.previous_phase) == (Phase.ERROR, ErrorReason.DATA_LOST, Phase.STANDBY)
    assert not world.runtime.homes
    assert Alert.objects.filter(workspace_id=workspace, reason="DataLost").count() == 1
    world.recover(workspace, "reobserve")
    world.settle()
    assert world.row(workspace).error_reason == ErrorReason.DATA_LOST
    assert Alert.objects.count() == 1
    world.recover(workspace, "start_empty")
    world.settle()
    row = world.row(workspace)
    assert (row.phase, row.error_info) == (Phase.RUNNING, None)
    assert home_of(world, workspace) == {}


def test_an_operator_brings_the_last_archive_back(world: World) -> None:
    workspace = world.at_rest("ARCHIVED")
    world.ask(workspace, "STANDBY")
    world.settle()
    world.runtime.lose_volume(workspace, 2)
    world.tick()
    assert world.row(workspace).error_reason == ErrorReason.DATA_LOST
    world.recover(workspace, "restore_archive")
    world.settle()
    assert world.row(workspace).phase == Phase.STANDBY
    assert home_of(world, workspace) == {"notes.txt": b"precious"}


def test_an_archive_gone_from_storage_is_data_lost_and_a_stale_listing_is_not(world: World) -> None:
    workspace = world.at_rest("ARCHIVED")
    world.later(60)
    world.store.stale = set(world.store.objects)
    world.tick()
    assert world.row(workspace).phase == Phase.ARCHIVED
    assert world.row(workspace).conditions["storage.archive_ready"]["status"] is True
    del world.store.objects[str(world.row(workspace).archive_key)]
    world.tick()
    assert world.row(workspace).error_reason == ErrorReason.DATA_LOST


def test_a_failed_listing_is_never_an_empty_one(world: World) -> None:
    workspace = world.at_rest("RUNNING")
    before = world.row(workspace)
    for call in ("list_containers", "list_volumes"):
        world.runtime.fail(call, AWAY)
        report = world.tick()
        assert not report.observed
    after = world.row(workspace)
    assert (after.phase, after.conditions) == (before.phase, before.conditions)


def test_the_third_failure_is_terminal_and_told_once(world: World) -> None:
    workspace = world.at_rest("STANDBY")
    world.runtime.fail("start", ActionFailedError("no", exit_code=1, stderr="boom"), times=50)
    world.ask(workspace, "RUNNING")
    row = pressed_on(world, workspace)
    assert (row.phase, row.error_reason, row.error_count) == (Phase.ERROR, ErrorReason.RETRY_EXCEEDED, 3)
    assert row.error_info is not None
    assert row.error_info["context"]["last_reason"] == "ActionFailed"
    assert Attempt.objects.filter(action="start", state="FAILED").count() == 3
    assert Alert.objects.count() == 1
    world.runtime.heal()
    world.recover(workspace)
    world.settle()
    assert world.row(workspace).phase == Phase.RUNNING


def test_an_image_that_cannot_be_had_is_terminal_at_once_and_opens_no_breaker(world: World) -> None:
    workspaces = [world.at_rest("STANDBY") for _ in range(6)]
    world.runtime.fail("ensure_image", ImagePullFailedError("unknown"), times=6)
    for workspace in workspaces:
        world.ask(workspace, "RUNNING")
    world.settle()
    assert {world.row(workspace).error_reason for workspace in workspaces} == {ErrorReason.IMAGE_PULL_FAILED}
    assert not world.breakers.open_names()


def test_a_container_that_never_listens_ends_in_timeout(world: World) -> None:
    workspace = world.at_rest("STANDBY")
    world.runtime.deaf.add(workspace)
    world.ask(workspace, "RUNNING")
    world.tick()
    (attempt,) = world.executor.waiting
    Attempt.objects.filter(pk=attempt).update(state="SUCCEEDED", started_at="2000-01-01T00:00Z", finished_at="2000-01-01T00:00Z")
    world.runtime.start(workspace, 1, _spec(workspace))
    Attempt.objects.filter(pk=attempt).update(started_at=_database_now())
    world.tick()
    assert world.row(workspace).error_count == 0
    world.later(301)
    world.tick()
    assert world.row(workspace).error_reason == ErrorReason.TIMEOUT


def _spec(workspace: UUID) -> Any:
    from coordinator.specs import load_specs

    return load_specs([workspace])[workspace]


def _database_now() -> Any:
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        return cursor.fetchone()[0]


def test_a_container_that_dies_is_started_again_and_the_third_death_is_an_error(world: World) -> None:
    workspace = world.at_rest("RUNNING")
    for _ in range(2):
        world.runtime.kill(workspace)
        world.settle()
        assert world.row(workspace).phase == Phase.RUNNING
    world.runtime.lose_container(workspace)
    world.settle()
    assert (world.row(workspace).phase, world.row(workspace).error_reason) == (Phase.ERROR, ErrorReason.ACTION_FAILED)


def test_an_open_breaker_stops_calls_counts_nothing_and_closing_takes_everything_up(world: World) -> None:
    workspace = world.at_rest("STANDBY")
    world.runtime.fail("list_containers", AWAY, times=5)
    for _ in range(5):
        world.tick()
    assert world.breakers.open_names() == {"docker"}
    assert Breaker.objects.get(name="docker").state == BreakerState.OPEN
    world.ask(workspace, "RUNNING")
    calls = len(world.runtime.calls)
    world.tick()
    assert (len(world.runtime.calls), world.executor.waiting) == (calls, [])
    world.later(31)
    world.tick()
    world.settle()
    assert world.row(workspace).phase == Phase.RUNNING
    assert Breaker.objects.get(name="docker").state == BreakerState.CLOSED


def test_storage_away_for_hours_errors_nobody_and_the_home_can_be_used_meanwhile(world: World) -> None:
    workspace = world.at_rest("STANDBY")
    for call in ("put", "get", "head", "list"):
        world.store.fail(call, STORE_AWAY, times=1000)
    world.ask(workspace, "ARCHIVED")
    for _ in range(8):
        world.settle()
        world.later(40)
    row = world.row(workspace)
    assert (row.operation, row.phase) == (Operation.ARCHIVING, Phase.STANDBY)
    world.later(10_000)
    world.settle()
    assert world.row(workspace).phase == Phase.STANDBY
    world.ask(workspace, "RUNNING")
    world.settle()
    assert world.row(workspace).phase == Phase.RUNNING
    world.ask(workspace, "ARCHIVED")
    world.store.heal()
    for _ in range(6):
        world.later(40)
        world.settle()
    assert world.row(workspace).phase == Phase.ARCHIVED


def test_deletion_queued_behind_a_run_waits_for_its_end_and_then_removes_everything(world: World) -> None:
    workspace = world.at_rest("STANDBY")
    world.ask(workspace, "RUNNING")
    world.tick()
    world.delete(workspace)
    world.tick()
    assert world.row(workspace).operation == Operation.STARTING
    world.settle()
    assert world.row(workspace).phase == Phase.DELETED
    assert (world.runtime.homes, world.runtime.containers) == ({}, {})


def test_a_failing_deletion_goes_on_and_tells_operators_once(world: World) -> None:
    workspace = world.at_rest("RUNNING")
    world.runtime.fail("delete", ActionFailedError("busy"), times=6)
    world.delete(workspace)
    for _ in range(10):
        world.settle()
        world.later(1000)
    world.settle()
    assert world.row(workspace).phase == Phase.DELETED
    assert Alert.objects.filter(reason="DeletionStuck").count() == 1


def test_a_workspace_in_error_can_be_deleted(world: World) -> None:
    workspace = world.at_rest("STANDBY")
    world.runtime.lose_volume(workspace, 1)
    world.tick()
    assert world.row(workspace).phase == Phase.ERROR
    world.delete(workspace)
    world.settle()
    assert world.row(workspace).phase == Phase.DELETED


def test_a_lost_meta_is_rebuilt_by_the_restore(world: World) -> None:
    workspace = world.at_rest("ARCHIVED")
    key = str(world.row(workspace).archive_key)
    del world.store.objects[f"{key}.meta"]
    world.ask(workspace, "STANDBY")
    world.settle()
    assert world.row(workspace).phase == Phase.STANDBY
    assert f"{key}.meta" in world.store.objects


def test_a_truncated_upload_is_noticed_and_the_home_stays(world: World) -> None:
    workspace = world.at_rest("STANDBY")
    world.store.truncate_next = True
    world.ask(workspace, "ARCHIVED")
    world.settle()
    assert home_of(world, workspace) == {"notes.txt": b"precious"}
    assert pressed_on(world, workspace).phase == Phase.ARCHIVED


def test_a_flipped_byte_is_archive_corrupted_and_leaves_no_half_volume(world: World) -> None:
    workspace = world.at_rest("ARCHIVED")
    key = str(world.row(workspace).archive_key)
    data = world.store.data(key)
    world.store.tamper(key, data[:-1] + bytes([data[-1] ^ 1]))
    world.ask(workspace, "RUNNING")
    world.settle()
    assert world.row(workspace).error_reason == ErrorReason.ARCHIVE_CORRUPTED
    assert not world.runtime.homes


def test_a_wish_changed_between_load_and_write_is_not_overwritten(world: World) -> None:
    workspace = world.at_rest("STANDBY")
    world.ask(workspace, "RUNNING")
    world.interrupt("list_volumes", lambda: world.ask(workspace, "STANDBY"))
    world.tick()
    row = world.row(workspace)
    assert (row.operation, row.desired_state) == (Operation.NONE, "STANDBY")
    assert not world.executor.waiting


def test_another_engine_is_refused_and_the_first_is_remembered(world: World) -> None:
    world.reconciler.check_engine()
    assert Installation.objects.get().engine_identity == "fake-engine"
    world.runtime.engine_id = "another"
    with pytest.raises(EngineMismatchError, match="another"):
        world.reconciler.check_engine()


def test_one_workspaces_nonsense_skips_that_workspace_only(world: World) -> None:
    broken, fine = world.create("RUNNING"), world.create("RUNNING")
    Workspace.objects.filter(pk=broken).update(home_ctx={"generation": "nonsense"})
    for _ in range(6):
        world.tick()
        world.run_waiting()
    assert world.row(fine).phase == Phase.RUNNING


def test_a_tick_that_changes_nothing_costs_few_statements_and_no_write(world: World) -> None:
    for phase in ("RUNNING", "STANDBY", "ARCHIVED"):
        world.at_rest(phase)
    world.tick()
    world.later(60)
    world.tick()
    with connection.cursor() as cursor:
        cursor.execute("SELECT array_agg(xmin::text ORDER BY id) FROM workspaces_workspace")
        before = cursor.fetchone()
    with CaptureQueriesContext(
        connection,
    ) as queries:
        report = world.tick()
    assert (report.written, report.active, report.looked) == (0, False, 3)
    assert len(queries) <= 10
    with connection.cursor() as cursor:
        cursor.execute("SELECT array_agg(xmin::text ORDER BY id) FROM workspaces_workspace")
        assert cursor.fetchone() == before


def test_statements_of_a_tick_do_not_grow_with_the_number_of_wishes(world: World) -> None:
    counts = []
    for number in (5, 60):
        for _ in range(number):
            world.create("STANDBY")
        with CaptureQueriesContext(connection) as queries:
            world.tick()
        counts.append(len(queries))
        world.executor.waiting.clear()
    assert counts[1] <= counts[0] + 10


def test_alerts_are_mailed_and_written_down(world: World, settings: Any) -> None:
    settings.ADMINS = [("ops", "ops@example.org")]
    workspace = world.create("STANDBY")
    alert = Alert.objects.create(workspace_id=workspace, reason="DataLost", message="gone")
    config = world.config.model_copy(update={"admins": ["ops@example.org"], "codehub_alert_webhook_url": "http://127.0.0.1:9/hook"})
    deliver_alert(alert.pk, config)
    alert.refresh_from_db()
    assert alert.delivered["email"] == "sent"
    assert alert.delivered["webhook"].startswith("failed")
    assert "DataLost" in mail.outbox[0].subject


def test_secrets_never_reach_an_error(world: World) -> None:
    config = world.config.model_copy(update={"aws_secret_access_key": "hunter2hunter2"})
    text = {"message": "PUT failed with hunter2hunter2", "context": ["postgresql://me:pw@host/x"]}
    cleaned = scrubbed(text, config)
    assert "hunter2" not in str(cleaned)
    assert "pw@" not in str(cleaned)


def test_an_access_key_s_ordinary_name_does_not_blot_out_texts(world: World) -> None:
    config = world.config.model_copy(update={"aws_access_key_id": "codehub"})
    assert scrubbed("the image codehub/tiny cannot be pulled", config) == "the image codehub/tiny cannot be pulled"
    config = world.config.model_copy(update={"aws_access_key_id": "AKIAIOSFODNN7EXAMPLE"})
    assert "AKIA" not in scrubbed("denied for AKIAIOSFODNN7EXAMPLE", config)


def test_shards_divide_the_workspaces_and_leave_none_out(world: World) -> None:
    from coordinator.status import load_changed_rows, load_rows, shard_of

    ids = {world.create("STANDBY") for _ in range(12)}
    parts = [{row.snapshot.id for row in load_rows(shards=3, shard=shard).rows} for shard in range(3)]
    assert set().union(*parts) == ids
    assert sum(len(part) for part in parts) == len(ids)
    assert all(shard_of(key, 3) == shard for shard, part in enumerate(parts) for key in part)
    assert [{row.snapshot.id for row in load_changed_rows({}, shards=3, shard=shard).rows} for shard in range(3)] == parts
    named = load_rows(shards=3, shard=1, ids=ids).rows
    assert {row.snapshot.id for row in named} == parts[1]
