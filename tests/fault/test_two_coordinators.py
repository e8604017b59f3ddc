"""Two real coordinator processes: killed, frozen, cut off, told to stop. Exactly one acts, and a displaced one does nothing."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from coordinator.leader import Timing
from tests.fault.processes import QUICK, Process, until
from workspaces.models import AuditEvent, LoopLease

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def start(subprocess_env: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def begin(**options: Any) -> Process:
        started.append(Process(subprocess_env, trace=tmp_path / "trace", **options))
        return started[-1]

    yield begin
    for process in started:
        process.end()


def _waits(process: Process, loop: str = "reconcile") -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE %s AND wait_event_type = 'Lock' AND datname = current_database()",
            [f"codehub {loop}/0 %:{process.pid}"],
        )
        return bool(cursor.fetchone()[0])


def _session(loop: str = "reconcile") -> int:
    return int(LoopLease.objects.get(loop=loop).backend_pid or 0)


def _pair(start: Callable[..., Process], **options: Any) -> tuple[Process, Process]:
    """A leader that acts and a rival that waits for it."""
    leader = start(**options)
    leader.wait_acts()
    rival = start(**options)
    until(lambda: _waits(rival))
    return leader, rival


def test_only_one_of_two_acts_and_the_other_takes_over_when_it_is_killed(start: Callable[..., Process]) -> None:
    leader, rival = _pair(start)
    leader.wait_acts()
    assert not rival.traces("call")
    leader.kill()
    # Handed over by PostgreSQL: a wait that only looked every `lock_wait` seconds, or for a stale heartbeat, would be later.
    rival.wait_acts(seconds=Timing().lock_wait * 0.8)
    assert rival.traces("call")[0]["at"] > max(line["at"] for line in leader.traces("call"))
    third = start()
    until(lambda: _waits(third))
    rival.kill()
    third.wait_acts(seconds=Timing().lock_wait * 0.8)
    assert LoopLease.objects.get(loop="reconcile").term == 3


def test_a_frozen_leader_is_replaced_and_does_nothing_when_it_wakes(start: Callable[..., Process]) -> None:
    leader, rival = _pair(start, timing=QUICK)
    leader.signal(signal.SIGSTOP)
    rival.wait_acts()
    calls, rows = len(leader.traces("call")), leader.rows()
    leader.signal(signal.SIGCONT)
    until(lambda: _waits(leader))
    rival.wait_acts()
    assert (len(leader.traces("call")), leader.rows()) == (calls, rows)
    # It is a candidate like any other now.
    rival.kill()
    leader.wait_acts()


def test_a_leader_frozen_inside_a_transaction_leaves_nothing_of_it(start: Callable[..., Process]) -> None:
    leader = start(timing=QUICK, INSIDE="0.5")
    leader.wait_acts()
    rival = start(timing=QUICK)
    until(lambda: _waits(rival))
    seen = len(leader.traces("inside"))
    until(lambda: len(leader.traces("inside")) > seen)
    leader.signal(signal.SIGSTOP)
    rows = leader.rows()
    rival.wait_acts()
    calls, wrote = len(leader.traces("call")), len(leader.traces("wrote"))
    leader.signal(signal.SIGCONT)
    until(lambda: _waits(leader))
    assert (len(leader.traces("call")), len(leader.traces("wrote")), leader.rows()) == (calls, wrote, rows)
    assert leader.rows() % 2 == 0


def test_a_leader_whose_session_is_terminated_makes_no_write_in_that_term(start: Callable[..., Process]) -> None:
    leader, rival = _pair(start)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [_session()])
    rows = leader.rows()
    rival.wait_acts()
    until(lambda: _waits(leader))
    assert leader.rows() == rows
    assert LoopLease.objects.get(loop="reconcile").term == 2


def test_told_to_stop_the_leader_finishes_its_step_and_a_waiter_leaves_at_once(start: Callable[..., Process]) -> None:
    leader = start(INSIDE="1.0")
    until(lambda: leader.traces("inside"))
    rival = start()
    until(lambda: _waits(rival))
    for process in (rival, leader):
        process.signal(signal.SIGTERM)
    assert (leader.popen.wait(10), rival.popen.wait(10)) == (0, 0)
    assert len(leader.traces("inside")) == len(leader.traces("wrote"))
    assert leader.rows() == 2 * len(leader.traces("wrote"))
    assert not rival.traces("call")
    assert LoopLease.objects.get(loop="reconcile").holder == ""


def test_every_loop_has_a_leader_of_its_own_and_losing_one_session_costs_that_loop_only(start: Callable[..., Process]) -> None:
    process = start()
    process.wait_acts()
    until(lambda: LoopLease.objects.filter(loop="events").exclude(holder="").exists())
    reconcile = _session()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [_session("events")])
    until(lambda: LoopLease.objects.get(loop="events").term == 2)
    process.wait_acts()
    assert _session() == reconcile
    assert AuditEvent.objects.filter(actor_name=str(process.pid)).exists()
