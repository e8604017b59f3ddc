"""Cadence, wake-ups and faults of the loops, in real threads on real PostgreSQL and Redis, with a stub in the controller's place."""

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest
import redis
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection, connections

from coordinator.gc import Collector, GcWork
from coordinator.leader import Timing
from coordinator.loops import TARGETED_LIMIT, Coordinator, LoopThread, ReconcileWork, Work, run_once
from coordinator.providers.base import UnreachableError
from coordinator.reconcile import EngineMismatchError, TickReport
from coordinator.wakeups import POSTGRES_ERRORS, REDIS_ERRORS, EngineSource, Inbox, PostgresSource, RedisSource, SourceThread
from tests.fakes.runtime import FakeRuntime
from tests.fakes.store import FakeStore
from workspaces import services
from workspaces.models import LoopLease

pytestmark = pytest.mark.django_db(transaction=True)

QUICK = Timing(lock_wait=0.3, stale_after=2.0, heartbeat=0.2)
NEVER = 3600.0


class StubController:
    """Says what it was asked for."""

    def __init__(self) -> None:
        self.between: Callable[[], None] | None = None
        self.asked: queue.Queue[Any] = queue.Queue()
        self.fail_with: list[Exception] = []
        self.engine_error: Exception | None = None
        self.active = False
        self.inside: Callable[[], None] | None = None

    def check_engine(self) -> None:
        if self.engine_error:
            raise self.engine_error

    def tick(self) -> TickReport:
        self.asked.put("all")
        if self.inside:
            self.inside()
        return self._report()

    def reconcile(self, ids: Collection[UUID], *, probe: bool = False) -> TickReport:
        self.asked.put((frozenset(ids), probe))
        return self._report()

    def _report(self) -> TickReport:
        if self.fail_with:
            raise self.fail_with.pop()
        return TickReport(0, 0, 0, self.active, True)


def _work(
    controller: StubController, *, idle: float = NEVER, active: float = NEVER, duration: float = 30.0, shard: int = 0
) -> ReconcileWork:
    return ReconcileWork(controller, shard=shard, idle_interval=idle, active_interval=active, active_duration=duration)


@pytest.fixture
def running() -> Iterator[Callable[..., Coordinator]]:
    stop = threading.Event()
    started: list[Coordinator] = []
    threads: list[threading.Thread] = []

    def start(*works: Work, sources: Collection[threading.Thread] = ()) -> Coordinator:
        coordinator = Coordinator(list(works), sources=list(sources), stop=stop, timing=QUICK)
        coordinator.start()
        started.append(coordinator)
        threads.extend(sources)
        return coordinator

    start.stop = stop  # type: ignore[attr-defined]
    yield start
    stop.set()
    for coordinator in started:
        assert coordinator.stop(seconds=10)
    for thread in threads:
        thread.join(10)


def test_a_term_begins_with_a_full_look_and_a_wake_up_is_answered_with_that_workspace_alone(running: Callable[..., Coordinator]) -> None:
    controller = StubController()
    work = _work(controller)
    running(work)
    assert controller.asked.get(timeout=5) == "all"
    workspace = uuid4()
    work.inbox.wake(workspace)
    assert controller.asked.get(timeout=5) == (frozenset({workspace}), False)
    work.inbox.wake(workspace, probe=True)
    assert controller.asked.get(timeout=5) == (frozenset({workspace}), True)
    work.inbox.wake_all()
    assert controller.asked.get(timeout=5) == "all"


def test_many_wake_ups_at_once_become_one_full_look(running: Callable[..., Coordinator]) -> None:
    controller = StubController()
    work = _work(controller)
    blocked, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        blocked.set()
        go_on.wait(5)

    controller.inside = hold
    running(work)
    assert blocked.wait(5)
    for _ in range(TARGETED_LIMIT + 1):
        work.inbox.wake(uuid4())
    controller.inside = None
    go_on.set()
    assert [controller.asked.get(timeout=5) for _ in range(2)] == ["all", "all"]
    with pytest.raises(queue.Empty):
        controller.asked.get(timeout=0.2)


def test_a_full_look_begins_with_the_newest_wishes_and_leaves_who_comes_after() -> None:
    inbox = Inbox()
    wishes = [uuid4() for _ in range(5)]
    ended, later = uuid4(), uuid4()
    inbox.wake(ended)
    for wish in wishes:
        inbox.wake(wish, wish=True)
    inbox.wake_all()
    newest, rest = inbox.take_with_newest(2)
    inbox.wake(later, wish=True)
    assert newest.ids == frozenset(wishes[-2:])
    assert rest.ids == frozenset([*wishes[:3], ended])
    assert rest.everything
    assert inbox.take_some(10).ids == {later}


def test_whoever_is_woken_during_a_long_full_look_is_served_inside_it(running: Callable[..., Coordinator]) -> None:
    controller = StubController()
    work = _work(controller)
    workspace = uuid4()

    def long_tick() -> None:
        controller.inside = None
        work.inbox.wake(workspace)
        assert controller.between is not None
        controller.between()
        controller.asked.put("end of the long one")

    controller.inside = long_tick
    running(work)
    assert [controller.asked.get(timeout=5) for _ in range(3)] == ["all", (frozenset({workspace}), False), "end of the long one"]


def test_active_mode_holds_while_operations_run_and_for_a_while_after() -> None:
    controller = StubController()
    work = _work(controller, idle=15, active=1, duration=0.05)
    term: Any = None
    work.begin(term)
    assert work.interval() == 1
    time.sleep(0.06)
    assert work.interval() == 15
    controller.active = True
    work.tick(term, full=True)
    assert work.interval() == 1
    time.sleep(0.06)
    controller.active = False
    work.inbox.wake(uuid4())
    work.tick(term, full=False)
    assert work.interval() == 1


def test_an_exception_skips_the_tick_is_counted_and_the_loop_goes_on(running: Callable[..., Coordinator]) -> None:
    controller = StubController()
    controller.fail_with = [ValueError("no luck")]
    work = _work(controller)
    running(work)
    assert controller.asked.get(timeout=5) == "all"
    work.inbox.wake(uuid4())
    controller.asked.get(timeout=5)
    _until(lambda: LoopLease.objects.get(loop="reconcile").ticks == 2)
    lease = LoopLease.objects.get(loop="reconcile")
    assert (lease.failures, lease.last_error, lease.term) == (1, "", 1)


def test_one_loops_trouble_does_not_touch_another(running: Callable[..., Coordinator]) -> None:
    good, bad = StubController(), StubController()
    bad.fail_with = [RuntimeError("broken")] * 1000
    works = [_work(good, idle=0.02, active=0.02), _work(bad, idle=0.02, active=0.02, shard=1)]
    running(*works)
    for _ in range(10):
        assert good.asked.get(timeout=5) == "all"
        assert bad.asked.get(timeout=5) == "all"


def test_a_terminated_session_ends_the_term_and_the_next_one_begins_with_a_full_look(running: Callable[..., Coordinator]) -> None:
    controller = StubController()
    running(_work(controller))
    assert controller.asked.get(timeout=5) == "all"
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(backend_pid) FROM workspaces_looplease WHERE loop = 'reconcile'")
    assert controller.asked.get(timeout=5) == "all"
    assert LoopLease.objects.get(loop="reconcile").term == 2


def test_a_term_that_does_not_end_cleanly_does_not_end_the_thread(running: Callable[..., Coordinator]) -> None:
    controller = StubController()
    failures = [RuntimeError("while ending")]

    def leading(_shard: int, leads: bool) -> None:
        if not leads and failures:
            raise failures.pop()

    running(ReconcileWork(controller, idle_interval=NEVER, active_interval=NEVER, active_duration=30, leading=leading))
    assert controller.asked.get(timeout=5) == "all"
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(backend_pid) FROM workspaces_looplease WHERE loop = 'reconcile'")
    assert controller.asked.get(timeout=5) == "all"
    assert not failures


def test_another_engine_is_refused_until_the_right_one_is_back(
    running: Callable[..., Coordinator], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.loops._REFUSED_PAUSE", 0.05)
    controller = StubController()
    controller.engine_error = EngineMismatchError("the homes live on docker abc")
    running(_work(controller))
    with pytest.raises(queue.Empty):
        controller.asked.get(timeout=0.5)
    controller.engine_error = None
    assert controller.asked.get(timeout=5) == "all"


def test_a_coordinator_with_another_engine_asks_for_the_lead_less_and_less_often(
    running: Callable[..., Coordinator], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.loops._REFUSED_PAUSE", 0.02)
    controller = StubController()
    controller.engine_error = EngineMismatchError("the homes live on docker abc")
    coordinator = running(_work(controller))
    waits: list[float] = []
    stop = coordinator.loops[0]._stop_asked
    monkeypatch.setattr(stop, "wait", waits.append)
    _until(lambda: len(waits) > 8)
    assert waits[8] > 16 * waits[0]


def test_garbage_collection_with_another_engine_gives_the_lead_up(running: Callable[..., Coordinator]) -> None:
    def mismatch() -> None:
        asked.set()
        raise EngineMismatchError("another engine")

    asked = threading.Event()
    collector = Collector(runtime=FakeRuntime(), store=FakeStore(), grace_seconds=0)
    running(GcWork(collector, interval=0.01, check_engine=mismatch))
    assert asked.wait(5)
    _until(lambda: LoopLease.objects.get(loop="gc").holder == "")


def test_garbage_collection_is_left_alone_in_the_middle_of_a_listing_when_told_to_stop(running: Callable[..., Coordinator]) -> None:
    runtime, listing, go_on = FakeRuntime(), threading.Event(), threading.Event()

    def hang(*_args: object) -> None:
        listing.set()
        go_on.wait(30)

    runtime.hook("list_containers", hang)
    stop = running.stop  # type: ignore[attr-defined]
    collector = Collector(runtime=runtime, store=FakeStore(), grace_seconds=0)
    coordinator = running(GcWork(collector, interval=0.01, stop=stop))
    assert listing.wait(5)
    try:
        assert coordinator.stop(seconds=10)
    finally:
        go_on.set()


def test_an_engine_that_came_back_as_another_one_is_noticed_before_anything_is_judged(running: Callable[..., Coordinator]) -> None:
    controller = StubController()
    work = _work(controller)
    running(work)
    assert controller.asked.get(timeout=5) == "all"
    controller.engine_error = EngineMismatchError("another engine")
    work.doubt_engine()
    _until(lambda: LoopLease.objects.get(loop="reconcile").holder == "")
    assert controller.asked.empty()


def test_an_engine_that_does_not_answer_is_not_led_for(running: Callable[..., Coordinator]) -> None:
    controller = StubController()
    controller.engine_error = UnreachableError("down", endpoint="docker")
    running(_work(controller))
    with pytest.raises(queue.Empty):
        controller.asked.get(timeout=0.3)


def test_once_ticks_each_loop_and_says_what_went_wrong() -> None:
    outcome: list[list[str]] = []
    good, bad = StubController(), StubController()
    bad.fail_with = [ValueError("no")]

    def run() -> None:
        outcome.append(run_once([_work(good), _work(bad, shard=1)], timing=QUICK))
        connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(10)
    assert outcome == [["reconcile/1: the tick failed, see the log"]]
    assert (good.asked.get_nowait(), bad.asked.get_nowait()) == ("all", "all")


def test_once_does_not_act_while_another_coordinator_leads(running: Callable[..., Coordinator]) -> None:
    controller = StubController()
    running(_work(controller))
    assert controller.asked.get(timeout=5) == "all"
    outcome: list[list[str]] = []

    def run() -> None:
        outcome.append(run_once([_work(StubController())], timing=QUICK))
        connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(10)
    assert outcome == [["reconcile/0: another coordinator leads"]]


def test_a_wish_wakes_the_leader_directly_from_postgresql(running: Callable[..., Coordinator]) -> None:
    inbox = Inbox()
    source = PostgresSource(wake=inbox.wake, wake_all=inbox.wake_all)
    running(sources=[SourceThread(source, stop=running.stop, errors=POSTGRES_ERRORS)])  # type: ignore[attr-defined]
    assert inbox.wait(5)
    assert inbox.take().everything
    user = User.objects.create_user("ann")
    workspace, _ = services.request_create(user=user, name="one")
    _until(lambda: inbox.wait(0.1))
    assert workspace.pk in inbox.take().ids
    # Only the listening session is killed: it comes back, and everything is looked at once.
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN ws_%' AND datname = current_database()"
        )
        assert cursor.fetchall() == [(True,)]
    _until(lambda: inbox.wait(0.1) and inbox.take().everything)
    services.request_delete(workspace.pk, user=user)
    _until(lambda: workspace.pk in inbox.take().ids)


def test_redis_wakes_too_and_a_lost_subscription_means_a_look_at_everything(running: Callable[..., Coordinator]) -> None:
    inbox = Inbox()
    logs: queue.Queue[UUID] = queue.Queue()
    told = threading.Event()
    prefix, channel = f"test-{uuid4()}", f"test-logs-{uuid4()}"
    source = RedisSource(
        url=settings.REDIS_URL,
        prefix=prefix,
        wake=inbox.wake,
        observe=lambda one: inbox.wake(one, probe=True),
        wake_all=inbox.wake_all,
        want_logs=logs.put,
        told_directly=told,
        logs_channel=channel,
    )
    running(sources=[SourceThread(source, stop=running.stop, errors=REDIS_ERRORS)])  # type: ignore[attr-defined]
    assert inbox.wait(5)
    assert inbox.take().everything
    one, two = uuid4(), uuid4()
    with redis.Redis.from_url(settings.REDIS_URL, decode_responses=True) as client:
        _until(lambda: client.publish(f"{prefix}:wc", str(one)) > 0)
        _until(lambda: one in inbox.take().ids)
        client.publish(f"{prefix}:ob", "not an id")
        client.publish(f"{prefix}:ob", str(two))
        _until(lambda: two in inbox.take().probe)
        client.publish(channel, str(two))
        assert logs.get(timeout=5) == two
        told.set()
        client.publish(f"{prefix}:wc", str(one))
        client.publish(channel, str(one))
        assert logs.get(timeout=5) == one
        assert not inbox.take()
        for found in client.client_list():
            if int(found["sub"]) == 3:
                client.client_kill_filter(_id=found["id"])
    _until(lambda: inbox.wait(0.1) and inbox.take().everything)


def test_the_engines_stream_is_listened_to_only_while_leading_and_its_end_raises_doubt() -> None:
    class Engine:
        def __init__(self) -> None:
            self.opened = 0
            self.events_of: queue.Queue[UUID | None] = queue.Queue()

        def events(self) -> Iterator[UUID]:
            self.opened += 1
            while (one := self.events_of.get()) is not None:
                yield one

    engine, inbox, leading, doubts = Engine(), Inbox(), threading.Event(), queue.Queue[int]()
    source = EngineSource(engine, leading=leading, wake=inbox.wake, broke=lambda: doubts.put(1))
    stop = threading.Event()
    thread = SourceThread(source, stop=stop, errors=())
    thread.start()
    time.sleep(0.05)
    assert engine.opened == 0
    leading.set()
    one = uuid4()
    engine.events_of.put(one)
    _until(lambda: one in inbox.take().ids)
    leading.clear()
    engine.events_of.put(one)
    engine.events_of.put(None)
    assert doubts.get(timeout=5) == 1
    assert not inbox.take()
    assert engine.opened == 1
    stop.set()
    leading.set()
    engine.events_of.put(None)
    thread.join(5)


def test_shards_are_shared_out_with_a_coordinator_that_comes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.loops._SHARE_EVERY", 0.2)
    stop = threading.Event()

    def begin(holder: str) -> Coordinator:
        works = [_work(StubController(), shard=shard) for shard in range(4)]
        coordinator = Coordinator(works, sources=[], stop=stop, timing=QUICK, holder=holder)
        coordinator.start()
        return coordinator

    def led() -> Counter[str]:
        return Counter(LoopLease.objects.exclude(holder="").values_list("holder", flat=True))

    first = begin("one:1")
    _until(lambda: led() == {"one:1": 4})
    second = begin("two:2")
    _until(lambda: led() == {"one:1": 2, "two:2": 2})
    terms = dict(LoopLease.objects.values_list("shard", "term"))
    time.sleep(1.0)
    assert (led(), dict(LoopLease.objects.values_list("shard", "term"))) == ({"one:1": 2, "two:2": 2}, terms)
    stop.set()
    assert first.stop(seconds=9)
    assert second.stop(seconds=9)


def test_a_loop_that_waits_for_the_lock_stops_within_a_moment() -> None:
    stop = threading.Event()
    first = Coordinator([_work(StubController())], sources=[], stop=stop)
    first.start()
    _until(lambda: LoopLease.objects.filter(loop="reconcile").exclude(holder="").exists())
    waiting = LoopThread(_work(StubController()), stop=stop)
    waiting.start()
    second = Coordinator([], sources=[], stop=stop)
    second.loops.append(waiting)
    assert first.stop(seconds=9)
    assert second.stop(seconds=9)


def _until(condition: Callable[[], Any], *, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)
