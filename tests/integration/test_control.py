"""The control path on real PostgreSQL with doubles of engine and storage: whole lives of workspaces, and what goes wrong in them."""

import queue
from uuid import UUID

import pytest

from coordinator.actuators import Tools
from coordinator.executor import ThreadExecutor
from coordinator.reconcile import Reconciler
from coordinator.runs import RunKeeper
from tests.fakes.world import World
from workspaces.models import Attempt, Transition
from workspaces.phases import Operation, Phase

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def world() -> World:
    return World()


def test_a_workspace_lives_its_whole_life(world: World) -> None:
    workspace = world.create()
    world.settle()
    row = world.row(workspace)
    assert (row.phase, row.operation, row.endpoint) == (Phase.RUNNING, Operation.NONE, world.runtime.containers[workspace].endpoint)
    world.runtime.put_file(workspace, 1, "notes.txt", b"precious")
    world.ask(workspace, "STANDBY")
    world.settle()
    assert world.row(workspace).phase == Phase.STANDBY
    assert world.row(workspace).endpoint == ""
    world.ask(workspace, "ARCHIVED")
    world.settle()
    row = world.row(workspace)
    assert row.phase == Phase.ARCHIVED
    assert not world.runtime.homes
    assert row.archive_key in world.store.objects
    world.ask(workspace, "RUNNING")
    world.settle()
    row = world.row(workspace)
    assert (row.phase, row.home_ctx["generation"]) == (Phase.RUNNING, 2)
    assert world.runtime.files(workspace, 2) == {"notes.txt": b"precious"}
    world.delete(workspace)
    world.settle()
    assert world.row(workspace).phase == Phase.DELETED
    assert not world.runtime.homes
    assert not world.runtime.containers
    assert not Attempt.objects.exclude(state="SUCCEEDED").exists()
    moves = list(Transition.objects.order_by("id").values_list("to_phase", "to_operation"))
    assert moves[:5] == [
        ("PENDING", "PROVISIONING"),
        ("STANDBY", "NONE"),
        ("STANDBY", "STARTING"),
        ("RUNNING", "NONE"),
        ("RUNNING", "STOPPING"),
    ]


def test_the_thread_executor_brings_a_workspace_up_and_wakes_the_loop_for_it(world: World) -> None:
    woken: queue.SimpleQueue[UUID] = queue.SimpleQueue()
    executor = ThreadExecutor(Tools(world.runtime, world.store, world.config, RunKeeper()), workers=2, transfer_workers=1, wake=woken.put)
    reconciler = Reconciler(
        runtime=world.runtime, store=world.store, executor=executor, config=world.config, breakers=world.breakers, background=False
    )
    workspace = world.create()
    try:
        reconciler.reconcile([workspace])
        while world.row(workspace).phase != Phase.RUNNING:
            reconciler.reconcile([woken.get(timeout=20)])
    finally:
        executor.stop(5)
    assert Attempt.objects.filter(state="SUCCEEDED").count() == 2
