"""Many at once: containers all gone, more wishes than workers, archives beside starts. Work is bounded and nobody is kept waiting."""

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from coordinator import reconcile
from coordinator.actuators import Tools
from coordinator.executor import ThreadExecutor
from coordinator.loops import AT_ONCE, ReconcileWork
from coordinator.reconcile import Reconciler
from coordinator.runs import RunKeeper
from coordinator.wakeups import Inbox
from tests.fakes.world import World
from workspaces.models import Attempt, Workspace
from workspaces.phases import Operation, Phase

pytestmark = pytest.mark.django_db(transaction=True)

WORKERS = 4


@pytest.fixture
def world() -> World:
    return World()


def sample(world: World, phase: str) -> UUID:
    workspace = world.create(phase)
    world.settle()
    return workspace


def test_containers_that_all_vanish_are_looked_for_a_few_at_a_time_and_all_come_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile, "CHUNK", 10)
    monkeypatch.setattr(reconcile, "LOOKS_PER_TICK", 20)
    standing_by = sample(world, "STANDBY")
    crowd = [first := sample(world, "RUNNING"), *world.copies(first, 119)]
    for key in crowd:
        world.runtime.lose_container(key)
    served: list[bool] = []

    def between() -> None:
        """Somebody else's wish comes in the middle of the long look."""
        if not served:
            world.ask(standing_by, "RUNNING")
            world.reconciler.reconcile([standing_by])
            served.append(world.row(standing_by).operation == Operation.STARTING)

    world.reconciler.between = between
    for number in range(1, 12):
        world.runtime.calls.clear()
        with CaptureQueriesContext(connection) as queries:
            world.tick()
        # Those who moved on are looked at once more, for their next step.
        assert world.runtime.count("get_container") <= 20 + 20 + 2
        assert len(queries) < 60
        found = Workspace.objects.filter(pk__in=crowd, operation=Operation.STARTING).count()
        assert found == min(20 * number, 120)
    assert served == [True]
    world.reconciler.between = None
    world.settle()
    assert set(Workspace.objects.values_list("phase", "operation")) == {(Phase.RUNNING, Operation.NONE)}
    assert set(world.runtime.containers) == {*crowd, standing_by}
    assert Attempt.objects.filter(workspace_id__in=crowd, action="start").count() == 120 + 1


class Lanes:
    """A thread executor on doubles whose starts and archives end when the test says so."""

    def __init__(self, world: World) -> None:
        self.begun: queue.SimpleQueue[UUID] = queue.SimpleQueue()
        self.woken: queue.SimpleQueue[UUID] = queue.SimpleQueue()
        self.starts, self.archives = threading.Semaphore(0), threading.Semaphore(0)
        self._lock, self.running, self.most = threading.Lock(), 0, 0
        world.runtime.hook("start", self._start)
        world.runtime.hook("read_volume", self._archive)
        tools = Tools(world.runtime, world.store, world.config, RunKeeper())
        self.executor = ThreadExecutor(tools, workers=WORKERS, transfer_workers=2, wake=self.woken.put)
        self.reconciler = Reconciler(
            runtime=world.runtime,
            store=world.store,
            executor=self.executor,
            config=world.config,
            breakers=world.breakers,
            background=False,
        )

    def _start(self, workspace_id: UUID, *_args: Any) -> None:
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
        self.begun.put(workspace_id)
        self.starts.acquire()
        with self._lock:
            self.running -= 1

    def _archive(self, *_args: Any) -> None:
        self.archives.acquire()

    def drive(self, arrived: Callable[[], bool]) -> None:
        """Wake-ups of ended runs, as the loop gets them, until everybody arrived."""
        while not arrived():
            self.reconciler.reconcile({self.woken.get(timeout=30)})

    def close(self) -> None:
        for gate in (self.starts, self.archives):
            gate.release(1000)
        self.executor.stop(10)
        self.reconciler.close()


@pytest.fixture
def lanes(world: World) -> Iterator[Lanes]:
    made = Lanes(world)
    yield made
    made.close()


def test_more_wishes_than_workers_all_arrive_and_no_tick_waits_for_a_run(world: World, lanes: Lanes) -> None:
    crowd = [first := sample(world, "STANDBY"), *world.copies(first, 39)]
    Workspace.objects.update(desired_state="RUNNING")
    lanes.reconciler.tick()
    assert Attempt.objects.filter(action="start").count() == 40
    for _ in range(WORKERS):
        lanes.begun.get(timeout=30)
    # Every worker stands still in its call; the loop goes on.
    for _ in range(3):
        assert lanes.reconciler.tick().looked == 40
    assert (lanes.running, lanes.begun.empty()) == (WORKERS, True)
    lanes.starts.release(1000)
    lanes.drive(lambda: not Workspace.objects.exclude(phase=Phase.RUNNING, operation=Operation.NONE).exists())
    assert lanes.most == WORKERS
    assert set(world.runtime.containers) == set(crowd)


def test_a_start_does_not_wait_for_archives_that_fill_their_lane(world: World, lanes: Lanes) -> None:
    packed = [first := sample(world, "STANDBY"), *world.copies(first, 7)]
    Workspace.objects.update(desired_state="ARCHIVED")
    lanes.reconciler.tick()
    quick = sample_on(lanes, world)
    assert world.row(quick).phase == Phase.RUNNING
    assert Workspace.objects.filter(pk__in=packed, operation=Operation.ARCHIVING).count() == len(packed)


def sample_on(lanes: Lanes, world: World) -> UUID:
    lanes.starts.release(1)
    workspace = world.create("RUNNING")
    lanes.reconciler.reconcile([workspace])
    lanes.drive(lambda: bool(world.row(workspace).phase == Phase.RUNNING))
    return workspace


def test_a_wish_goes_before_what_ended_runs_ask_for() -> None:
    inbox, ended = Inbox(), [UUID(int=number) for number in range(1, 101)]
    for key in ended:
        inbox.wake(key)
    inbox.wake(ended[70], wish=True)
    wish = UUID(int=500)
    inbox.wake(wish, wish=True, probe=True)
    inbox.wake_all()
    assert len(inbox) == 101
    first = inbox.take_some(3)
    assert (set(first.ids), set(first.probe), first.everything) == ({ended[70], wish, ended[0]}, {wish}, False)
    for key in ended[:50]:
        inbox.wake(key, wish=True)
    assert inbox.take_some(2).ids == {ended[49], ended[48]}
    rest = inbox.take()
    assert (len(rest.ids), rest.probe, rest.everything) == (97, frozenset[UUID](), True)
    assert not inbox.take()


def test_a_crowd_of_ended_runs_is_looked_at_in_parts_with_room_for_others_between() -> None:
    class Controller:
        between: Callable[[], None] | None = None

        def __init__(self) -> None:
            self.asked: list[int] = []

        def check_engine(self) -> None: ...

        def tick(self) -> reconcile.TickReport:
            assert self.between
            for _ in range(4):
                self.between()
            return self.reconcile([])

        def reconcile(self, ids: Any, *, probe: bool = False) -> reconcile.TickReport:
            self.asked.append(len(ids))
            return reconcile.TickReport(0, 0, 0, False, True)

    class Term:
        def verify(self) -> None: ...

    term: Any = Term()
    controller = Controller()
    work = ReconcileWork(controller, idle_interval=1, active_interval=1, active_duration=1)
    work.begin(term)
    for number in range(AT_ONCE + 10):
        work.inbox.wake(UUID(int=number))
    work.tick(term, full=False)
    assert controller.asked == [AT_ONCE]
    work.tick(term, full=False)
    assert controller.asked == [AT_ONCE, 10]
    work.tick(term, full=True)
    assert controller.asked == [AT_ONCE, 10, 0]
