"""PostgreSQL and Redis restarted, flushed and away under a running coordinator: it leads and tells again by itself.

The services are this module's own, so that killing them hurts nobody else. Asked with plain clients: no Django of this process.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
import redis

from codehub.embedded.postgres import Postgres
from codehub.embedded.process import Child
from codehub.embedded.redis import Redis
from codehub.embedded.service import EmbeddedError, Service
from coordinator.leader import Timing
from tests.fault.processes import ROOT, Process, until


class Own:
    """A PostgreSQL and a Redis that may be killed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.services: dict[str, Service] = {
            # Durable: what was committed before a kill is there after it, as for every user.
            "postgres": Postgres(directory / "postgres"),
            "redis": Redis(directory / "redis", durable=False),
        }
        self.children: dict[str, Child] = {}
        self.env = dict(os.environ)
        for name, service in self.services.items():
            service.prepare()
            self.begin(name)
            self.env |= service.env()

    def begin(self, name: str) -> None:
        """After an immediate shutdown the last backends may still hold the shared memory: a server that finds them leaves again."""
        service = self.services[name]
        for _ in range(20):
            child = Child(name, service.command(), on_line=lambda _line: None)
            self.children[name] = child
            while True:
                try:
                    service.wait_ready(seconds=1)
                    return
                except EmbeddedError:
                    if child.poll() is not None:
                        break
        pytest.fail(f"{name} does not start: {child.last_lines}")

    def end(self, name: str, number: signal.Signals) -> None:
        child = self.children[name]
        pid = int((self.directory / "postgres/data/postmaster.pid").read_text().split()[0]) if name == "postgres" else child.pid
        os.kill(pid, number)
        assert child.wait(20)

    def sql(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.env["DATABASE_URL"], autocommit=True) as connection:
            cursor = connection.execute(statement, values)
            return cursor.fetchall() if cursor.description else []

    def term(self, loop: str, process: Process) -> int:
        """The term in which this process leads; a killed one leaves its name in the lease."""
        found = self.sql("SELECT term FROM workspaces_looplease WHERE loop = %s AND holder LIKE %s", loop, f"%:{process.pid}")
        return int(found[0][0]) if found else 0


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Own]:
    directory = tmp_path_factory.mktemp("own")
    for step in (directory, *directory.parents):
        if step.stat().st_uid == os.getuid() and step != Path("/"):
            step.chmod(step.stat().st_mode | 0o111)
    made = Own(directory)
    subprocess.run([sys.executable, "manage.py", "migrate", "-v0"], cwd=ROOT, env=made.env, check=True)
    made.sql(
        "INSERT INTO auth_user (id, username, password, is_superuser, first_name, last_name, email, is_staff, is_active, date_joined) "
        "VALUES (1, 'ann', '', false, '', '', '', false, true, now())"
    )
    yield made
    for child in made.children.values():
        child.stop()


@pytest.fixture
def start(own: Own, tmp_path: Path) -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def begin(**options: Any) -> Process:
        started.append(Process(own.env, trace=tmp_path / "trace", **options))
        return started[-1]

    yield begin
    for process in started:
        process.end()


def _insert_workspace(own: Own) -> str:
    workspace = str(uuid4())
    own.sql(
        """
        INSERT INTO workspaces_workspace (id, owner_id, image_id, name, description, memo, desired_state, conditions, phase, operation,
            error_count, home_ctx, endpoint)
        SELECT %s, 1, min(id), 'one', '', '', 'STANDBY', '{}', 'PENDING', 'NONE', 0, '{}', '' FROM workspaces_image
        """,
        workspace,
    )
    return workspace


@contextmanager
def _listening(own: Own) -> Iterator[Any]:
    """A subscription. Its client lives as long: a collected one closes the connections of what it made."""
    prefix = own.env.get("REDIS_CHANNEL_SSE_PREFIX", "codehub:sse")
    with redis.Redis.from_url(own.env["REDIS_URL"], decode_responses=True) as client:
        subscription = client.pubsub(ignore_subscribe_messages=True)
        subscription.subscribe(f"{prefix}:1", f"{prefix}:all")
        yield subscription


def _hear(subscription: Any, wanted: dict[str, str]) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        message = subscription.get_message(timeout=0.5)
        if message and json.loads(message["data"]) == wanted:
            return
    pytest.fail(f"{wanted} was never told")


def _told(own: Own, subscription: Any) -> None:
    """A change made now reaches its owner's channel."""
    _hear(subscription, {"type": "updated", "id": _insert_workspace(own)})


def test_after_an_immediate_restart_of_postgresql_every_loop_leads_again_and_events_flow(own: Own, start: Callable[..., Process]) -> None:
    with _listening(own) as subscription:
        process = start()
        process.wait_acts()
        _hear(subscription, {"type": "resync"})
        terms = {loop: own.term(loop, process) for loop in ("events", "reconcile")}
        assert all(terms.values())
        own.end("postgres", signal.SIGQUIT)
        own.begin("postgres")
        # Far less than it would take to find a stale heartbeat: the thread that lost its session is the one that leads again.
        until(lambda: all(own.term(loop, process) > term for loop, term in terms.items()), seconds=Timing().stale_after)
        process.wait_acts()
        # Who watches is told that something may have been missed, and from then on hears every change.
        _hear(subscription, {"type": "resync"})
        _told(own, subscription)
    assert process.popen.poll() is None


def test_a_coordinator_started_before_its_database_leads_when_it_comes(own: Own, start: Callable[..., Process]) -> None:
    own.end("postgres", signal.SIGINT)
    process = start()
    time.sleep(0.5)
    assert process.popen.poll() is None
    own.begin("postgres")
    process.wait_acts()


def test_redis_restarted_and_flushed_costs_nothing_but_a_resync(own: Own, start: Callable[..., Process]) -> None:
    process = start()
    process.wait_acts()
    term = until(lambda: own.term("events", process))
    own.end("redis", signal.SIGKILL)
    process.wait_acts()
    waiting = _insert_workspace(own)
    own.begin("redis")
    with _listening(own) as subscription:
        _told(own, subscription)
        with redis.Redis.from_url(own.env["REDIS_URL"]) as client:
            client.flushall()
        _told(own, subscription)
    process.wait_acts()
    assert own.term("events", process) == term
    assert own.sql("SELECT count(*) FROM workspaces_workspace WHERE id = %s", waiting) == [(1,)]
