"""One leader for each loop, on real sessions: hand-over, displacement, and a lost session that cannot come back."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from django.db import Error, connection, connections, transaction

from coordinator.leader import (
    AsideTimeoutError,
    Leadership,
    LeadershipLostError,
    Term,
    Timing,
    aside,
    check_sessions_are_kept,
    lock_key,
)
from workspaces.models import LoopLease

pytestmark = pytest.mark.django_db(transaction=True)

QUICK = Timing(lock_wait=0.2, stale_after=0.6, heartbeat=0.1)


class Candidate:
    """A leadership in a thread of its own, which does what it is told, one thing at a time."""

    def __init__(self, loop: str, *, timing: Timing = QUICK, holder: str = "") -> None:
        self.leadership = Leadership(loop, timing=timing, holder=holder)
        self.stop = threading.Event()
        self.leads = threading.Event()
        self.term: Term | None = None
        self.ended_with: BaseException | None = None
        self._do = threading.Event()
        self._done = threading.Event()
        self._call: Callable[[Term], Any] | None = None
        self.result: Any = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.term = self.leadership.campaign(self.stop)
            if self.term is None:
                return
            self.leads.set()
            while not self.stop.is_set():
                if self._do.wait(0.01) and self._call is not None:
                    self._do.clear()
                    try:
                        self.result = self._call(self.term)
                    except BaseException as error:
                        self.result = error
                    self._done.set()
        except BaseException as error:
            self.ended_with = error
        finally:
            self.leadership.resign()
            connections.close_all()

    def do(self, call: Callable[[Term], Any]) -> Any:
        self._done.clear()
        self._call = call
        self._do.set()
        assert self._done.wait(10)
        return self.result

    def end(self) -> None:
        self.stop.set()
        while self.thread.is_alive():
            self.leadership.interrupt()
            self.thread.join(0.05)


@pytest.fixture
def candidate() -> Iterator[Callable[..., Candidate]]:
    made: list[Candidate] = []

    def make(*args: Any, **kwargs: Any) -> Candidate:
        made.append(Candidate(*args, **kwargs))
        return made[-1]

    yield make
    for one in made:
        one.end()


def _backend(loop: str) -> int:
    lease = LoopLease.objects.get(loop=loop, shard=0)
    assert lease.backend_pid is not None
    return lease.backend_pid


def _kill(pid: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])


def _kill_from_outside(pid: int) -> None:
    """In a thread, and so through a session, of its own."""

    def run() -> None:
        _kill(pid)
        connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


def test_the_leader_is_named_in_its_lease_and_proves_its_lock_with_each_heartbeat(candidate: Callable[..., Candidate]) -> None:
    one = candidate("events", holder="here:1")
    assert one.leads.wait(5)
    lease = LoopLease.objects.get(loop="events")
    assert (lease.holder, lease.term) == ("here:1", 1)
    assert lease.acquired_at is not None
    before = lease.heartbeat_at
    one.do(lambda term: term.verify())
    one.do(lambda term: term.record_tick(ms=3.5, error="ValueError: no"))
    lease.refresh_from_db()
    assert lease.heartbeat_at > before  # type: ignore[operator]
    assert (lease.ticks, lease.failures, lease.last_error, lease.last_tick_ms) == (1, 1, "ValueError: no", 3.5)


def test_loops_and_shards_have_locks_of_their_own() -> None:
    keys = {lock_key(loop, shard) for loop in ("events", "reconcile", "ttl", "gc") for shard in range(256)}
    assert len(keys) == 4 * 256


def test_a_waiter_takes_over_when_the_leader_resigns_and_the_term_counts_on(candidate: Callable[..., Candidate]) -> None:
    one, other = candidate("ttl"), None
    assert one.leads.wait(5)
    other = candidate("ttl", holder="other:2")
    assert not other.leads.wait(0.5)
    one.end()
    assert other.leads.wait(5)
    lease = LoopLease.objects.get(loop="ttl")
    assert (lease.term, lease.holder) == (2, "other:2")


def test_a_leader_that_heartbeats_is_never_displaced_and_one_that_does_not_is(candidate: Callable[..., Candidate]) -> None:
    one = candidate("gc")
    assert one.leads.wait(5)
    other = candidate("gc")
    for _ in range(8):
        one.do(lambda term: term.verify())
        assert not other.leads.wait(0.15)
    assert other.leads.wait(5)
    assert isinstance(one.do(lambda term: term.verify()), LeadershipLostError)


def test_statements_are_signs_of_life_as_good_as_heartbeats(candidate: Callable[..., Candidate]) -> None:
    one = candidate("gc")
    assert one.leads.wait(5)
    other = candidate("gc")
    for _ in range(8):
        one.do(lambda _term: LoopLease.objects.count())
        assert not other.leads.wait(0.15)


def test_a_session_that_took_the_lock_and_froze_before_it_wrote_its_lease_is_displaced_too(candidate: Callable[..., Candidate]) -> None:
    LoopLease.objects.create(loop="gc", backend_pid=1, term=7)
    parameters = {**connection.get_connection_params(), "autocommit": True}
    with psycopg.connect(**parameters) as frozen:
        frozen.execute("SELECT pg_advisory_lock(%s, %s)", [0x434802, lock_key("gc", 0)])
        other = candidate("gc")
        assert other.leads.wait(5)
        with pytest.raises(psycopg.OperationalError):
            frozen.execute("SELECT 1")
    assert LoopLease.objects.get(loop="gc").term == 8


def test_a_lost_session_ends_the_term_and_django_never_opens_another_one_for_it(candidate: Callable[..., Candidate]) -> None:
    one = candidate("reconcile")
    assert one.leads.wait(5)
    _kill(_backend("reconcile"))

    def write(_term: Term) -> None:
        LoopLease.objects.filter(loop="reconcile").update(last_error="written by the dead")

    assert isinstance(one.do(write), LeadershipLostError | Error)
    assert isinstance(one.do(write), LeadershipLostError | Error)
    assert isinstance(one.do(lambda term: term.verify()), LeadershipLostError)
    assert LoopLease.objects.get(loop="reconcile").last_error == ""


def test_a_session_lost_inside_a_transaction_stays_lost_after_it(candidate: Callable[..., Candidate]) -> None:
    one = candidate("reconcile")
    assert one.leads.wait(5)
    pid = _backend("reconcile")

    def die_inside(_term: Term) -> None:
        with transaction.atomic():
            LoopLease.objects.filter(loop="reconcile").update(last_error="inside")
            _kill_from_outside(pid)
            LoopLease.objects.filter(loop="reconcile").update(last_error="inside again")

    def write_after(_term: Term) -> None:
        with transaction.atomic():
            LoopLease.objects.filter(loop="reconcile").update(last_error="after")

    assert isinstance(one.do(die_inside), LeadershipLostError | Error)
    assert isinstance(one.do(write_after), LeadershipLostError)
    assert LoopLease.objects.get(loop="reconcile").last_error == ""


def test_a_lock_that_slipped_away_while_the_session_lives_ends_the_term(candidate: Callable[..., Candidate]) -> None:
    one = candidate("ttl")
    assert one.leads.wait(5)

    def unlock(_term: Term) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_unlock(%s, %s)", [0x434802, lock_key("ttl", 0)])

    one.do(unlock)
    assert isinstance(one.do(lambda term: term.verify()), LeadershipLostError)


def test_after_a_lost_term_the_same_thread_leads_again_on_a_new_session() -> None:
    outcome: list[Any] = []

    def run() -> None:
        leadership = Leadership("ttl", timing=QUICK)
        stop = threading.Event()
        first = leadership.campaign(stop)
        assert first is not None
        outcome.append(first.number)
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            _kill_from_outside(cursor.fetchone()[0])
        try:
            first.verify()
        except LeadershipLostError:
            leadership.resign()
        second = leadership.campaign(stop)
        assert second is not None
        second.verify()
        outcome.append(second.number)
        leadership.resign()
        connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(10)
    assert outcome == [1, 2]


def test_a_waiter_stops_at_once_when_told_to(candidate: Callable[..., Candidate]) -> None:
    one = candidate("ttl")
    assert one.leads.wait(5)
    other = candidate("ttl", timing=Timing(lock_wait=10, stale_after=15))
    while not _waiters():
        time.sleep(0.01)
    began = time.monotonic()
    other.end()
    assert other.ended_with is None
    # Far below the ten seconds it would have waited for the lock.
    assert time.monotonic() - began < 5


def _waiters() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
        return int(cursor.fetchone()[0])


def test_the_defaults_displace_a_frozen_leader_within_thirty_seconds() -> None:
    timing = Timing()
    assert timing.lock_wait <= 10
    assert timing.stale_after == 15
    assert timing.stale_after + timing.lock_wait < 30
    assert timing.heartbeat * 3 < timing.stale_after


def test_a_direct_connection_keeps_its_session() -> None:
    check_sessions_are_kept()


def test_what_runs_aside_is_accompanied_by_signs_of_life_and_hands_back_its_outcome() -> None:
    beats: list[int] = []
    enough = threading.Event()

    def beat() -> None:
        beats.append(1)
        if len(beats) == 3:
            enough.set()

    assert aside(lambda: enough.wait(5), beat=beat, every=0.01, timeout=10) is True
    with pytest.raises(KeyError):
        aside(lambda: dict[str, int]()["no"], beat=beat, every=1, timeout=10)
    with pytest.raises(AsideTimeoutError):
        aside(lambda: threading.Event().wait(1), beat=beat, every=0.01, timeout=0.05)
