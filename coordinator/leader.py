"""Who acts on a loop: a PostgreSQL session advisory lock, held by the very connection the loop writes with.

Owns candidacy, terms, heartbeats and the displacement of frozen holders, all on the database's clock. A session that is lost
ends the term: the connection is pinned, so Django cannot quietly open another one and let a stale leader write.
"""

import os
import socket
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import psycopg
import structlog
from django.db import DEFAULT_DB_ALIAS, Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper

log = structlog.get_logger(__name__)
T = TypeVar("T")

# First half of the coordinator's advisory locks; the service layer's use another.
LOCK_SPACE = 0x43_48_02

_LOCK_NOT_AVAILABLE = "55P03"
_QUERY_CANCELED = "57014"
_POOLER_ROUNDS = 8

# The lock as pg_locks shows it, in this database.
_IS_LOCK = """
    l.locktype = 'advisory' AND l.classid = %(space)s AND l.objid = %(key)s AND l.objsubid = 2 AND l.granted
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
_BEGIN_TERM = """
    INSERT INTO workspaces_looplease AS lease
        (loop, shard, holder, backend_pid, term, acquired_at, heartbeat_at, ticks, failures, last_error)
    VALUES (%(loop)s, %(shard)s, %(holder)s, pg_backend_pid(), 1, clock_timestamp(), clock_timestamp(), 0, 0, '')
    ON CONFLICT (loop, shard) DO UPDATE SET holder = EXCLUDED.holder, backend_pid = EXCLUDED.backend_pid, term = lease.term + 1,
        acquired_at = EXCLUDED.acquired_at, heartbeat_at = EXCLUDED.heartbeat_at
    RETURNING term
"""
# One statement proves three things: the session lives, it is the one that took the lock, and it still holds it.
_STILL_LEADING = f"""
    WHERE loop = %(loop)s AND shard = %(shard)s AND term = %(term)s AND backend_pid = pg_backend_pid()
        AND EXISTS (SELECT 1 FROM pg_locks l WHERE l.pid = pg_backend_pid() AND {_IS_LOCK})
"""  # noqa: S608 - joined from constants
_HEARTBEAT = f"UPDATE workspaces_looplease SET heartbeat_at = clock_timestamp() {_STILL_LEADING}"  # noqa: S608
_RECORD_TICK = f"""
    UPDATE workspaces_looplease SET heartbeat_at = clock_timestamp(), last_tick_at = clock_timestamp(), last_tick_ms = %(ms)s,
        ticks = ticks + 1, failures = failures + %(failed)s, last_error = %(error)s {_STILL_LEADING}
"""  # noqa: S608
_END_TERM = """
    UPDATE workspaces_looplease SET holder = '', backend_pid = NULL, acquired_at = NULL
    WHERE loop = %(loop)s AND shard = %(shard)s AND term = %(term)s AND backend_pid = pg_backend_pid()
"""
# Any statement of the holder is a sign of life as good as the heartbeat it writes: a long tick does not look dead. A session
# that took the lock and froze before it wrote its lease has no heartbeat, only that sign.
_DISPLACE = f"""
    SELECT l.pid, pg_terminate_backend(l.pid)
    FROM pg_locks l
    LEFT JOIN pg_stat_activity a ON a.pid = l.pid
    LEFT JOIN workspaces_looplease lease ON lease.loop = %(loop)s AND lease.shard = %(shard)s AND lease.backend_pid = l.pid
    WHERE {_IS_LOCK} AND l.pid <> pg_backend_pid()
        AND GREATEST(lease.heartbeat_at, a.state_change) < clock_timestamp() - make_interval(secs => %(stale)s)
"""  # noqa: S608

# A rival waits for this lock that leads at least two fewer, and this is the highest one its holder leads: so of many that could
# be given up, one is.
_SHOULD_YIELD = """
    WITH held AS (SELECT holder, count(*) AS number, max(shard) AS highest FROM workspaces_looplease
                  WHERE loop = %(loop)s AND holder <> '' GROUP BY holder)
    SELECT 1 FROM held mine, pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
    LEFT JOIN held theirs ON a.application_name = left(%(label)s || theirs.holder, 63)
    WHERE mine.holder = %(holder)s AND mine.highest = %(shard)s AND COALESCE(theirs.number, 0) + 2 <= mine.number
        AND a.application_name <> left(%(label)s || mine.holder, 63)
        AND l.locktype = 'advisory' AND l.classid = %(space)s AND l.objid = %(key)s AND l.objsubid = 2 AND NOT l.granted
        AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    LIMIT 1
"""


class LeadershipLostError(Exception):
    """The session that held the lock is gone, or no longer holds it. Nothing may be written or begun in this term."""


class SessionsNotKeptError(Exception):
    """Between us and PostgreSQL stands something that does not keep sessions: an advisory lock would mean nothing."""


class AsideTimeoutError(Exception):
    """A call run beside the loop took longer than it may."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. A frozen holder is displaced after at most `stale_after + lock_wait`, which must stay below 30."""

    lock_wait: float = 10.0
    stale_after: float = 15.0
    heartbeat: float = 4.0


def holder_name() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


def lock_key(loop: str, shard: int) -> int:
    """Second half of the lock; positive, because pg_locks shows it unsigned."""
    return zlib.crc32(f"{loop}/{shard}".encode()) & 0x7FFF_FFFF


class Term:
    """One unbroken time of leading. Ends when the session does; `verify` says so before anything is begun."""

    def __init__(self, connection: BaseDatabaseWrapper, *, loop: str, shard: int, number: int) -> None:
        self.number = number
        self._connection = connection
        self._facts: dict[str, Any] = {"loop": loop, "shard": shard, "term": number, "space": LOCK_SPACE, "key": lock_key(loop, shard)}

    def verify(self) -> None:
        """Heartbeat and proof of the lock in one statement. Raises LeadershipLostError."""
        self._write(_HEARTBEAT, {})

    def record_tick(self, *, ms: float, error: str = "") -> None:
        self._write(_RECORD_TICK, {"ms": ms, "failed": int(bool(error)), "error": error[:500]})

    def alive(self) -> bool:
        """Whether the session still stands as far as this side can tell without asking."""
        raw = self._connection.connection
        return raw is not None and not raw.closed

    def end(self) -> None:
        """Leave the lease without a holder, for people who look. The lock goes with the session."""
        if self.alive():
            try:
                with self._connection.cursor() as cursor:
                    cursor.execute(_END_TERM, self._facts)
            except Error as error:
                log.info("lease not cleared", error=str(error).strip(), **self._names())

    def _write(self, statement: str, facts: dict[str, Any]) -> None:
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(statement, {**self._facts, **facts})
                held = cursor.rowcount == 1
        except Error as error:
            if self.alive():
                raise
            raise LeadershipLostError("the session that held the lock is gone") from error
        if not held:
            raise LeadershipLostError("the lock is no longer held by this session")

    def _names(self) -> dict[str, Any]:
        return {name: self._facts[name] for name in ("loop", "shard", "term")}


class Leadership:
    """One loop's candidacy. Belongs to the thread that runs the loop; only `interrupt` may be called from another."""

    def __init__(self, loop: str, *, shard: int = 0, timing: Timing | None = None, holder: str = "") -> None:
        self.loop = loop
        self.shard = shard
        self.timing = timing or Timing()
        self.holder = holder or holder_name()
        self._connection: BaseDatabaseWrapper | None = None
        self._term: Term | None = None
        self._waiting = False

    def campaign(self, stop: threading.Event, *, tries: int | None = None) -> Term | None:
        """Wait until this loop is ours. None: told to stop, or `tries` waits ended without it."""
        connection = connections[DEFAULT_DB_ALIAS]
        if connection.settings_dict.get("OPTIONS", {}).get("pool"):
            raise SessionsNotKeptError("the coordinator's database connections must not come from a pool")
        connection.close()
        connection.ensure_connection()
        self._connection = connection
        # It stays on for the term: a tick that waits for a row longer than this is skipped, not taken for frozen.
        self._execute("SELECT set_config('lock_timeout', %(wait)s, false)", wait=f"{int(self.timing.lock_wait * 1000)}ms")
        self._execute("SELECT set_config('application_name', %(name)s, false)", name=(self._label() + self.holder)[:63])
        # The server, too, notices a peer that is gone without a word.
        for name, value in (("idle", "10"), ("interval", "5"), ("count", "3")):
            self._execute("SELECT set_config(%(name)s, %(value)s, false)", name=f"tcp_keepalives_{name}", value=value)
        waits = 0
        while not stop.is_set() and (tries is None or waits < tries):
            waits += 1
            if self._wait_for_lock(stop):
                return self._begin(connection)
            self._displace_frozen_holder()
        return None

    def should_yield(self) -> bool:
        """Whether a rival with less to do waits for this one: shards are shared out, not hoarded by who came first."""
        facts = {"loop": self.loop, "shard": self.shard, "holder": self.holder, "label": self._label()}
        return bool(self._execute(_SHOULD_YIELD, space=LOCK_SPACE, key=lock_key(self.loop, self.shard), **facts))

    def interrupt(self) -> None:
        """Cut a wait for the lock short. Called again and again while stopping, so a cancel that came too early does no harm."""
        raw = self._connection.connection if self._connection is not None else None
        if self._waiting and raw is not None and not raw.closed:
            try:
                raw.cancel_safe(timeout=1.0)
            except psycopg.Error as error:
                log.info("wait not cancelled", loop=self.loop, shard=self.shard, error=str(error).strip())

    def resign(self) -> None:
        """Close the session, which frees the lock, and let Django connect again in this thread."""
        if self._term is not None:
            self._term.end()
            self._term = None
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            connection.close()
        except Error as error:
            log.info("session not closed cleanly", loop=self.loop, shard=self.shard, error=str(error).strip())
            connection.connection = None
        vars(connection).pop("connect", None)

    def _label(self) -> str:
        return f"codehub {self.loop}/{self.shard} "

    def _begin(self, connection: BaseDatabaseWrapper) -> Term:
        def refuse() -> NoReturn:
            raise LeadershipLostError("the session that held the lock is gone")

        connection.connect = refuse  # type: ignore[method-assign]
        [(number,)] = self._execute(_BEGIN_TERM, loop=self.loop, shard=self.shard, holder=self.holder)
        self._term = Term(connection, loop=self.loop, shard=self.shard, number=number)
        return self._term

    def _wait_for_lock(self, stop: threading.Event) -> bool:
        self._waiting = True
        try:
            self._execute("SELECT pg_advisory_lock(%(space)s, %(key)s)", space=LOCK_SPACE, key=lock_key(self.loop, self.shard))
        except Error as error:
            state = getattr(error.__cause__, "sqlstate", None)
            if state == _LOCK_NOT_AVAILABLE or (state == _QUERY_CANCELED and stop.is_set()):
                return False
            raise
        finally:
            self._waiting = False
        return True

    def _displace_frozen_holder(self) -> None:
        gone = self._execute(
            _DISPLACE,
            loop=self.loop,
            shard=self.shard,
            space=LOCK_SPACE,
            key=lock_key(self.loop, self.shard),
            stale=self.timing.stale_after,
        )
        for pid, ended in gone:
            log.warning("frozen leader displaced", loop=self.loop, shard=self.shard, backend_pid=pid, ended=ended)

    def _execute(self, statement: str, **facts: Any) -> list[tuple[Any, ...]]:
        if self._connection is None:
            raise LeadershipLostError("there is no session")
        with self._connection.cursor() as cursor:
            cursor.execute(statement, facts)
            return cursor.fetchall() if cursor.description else []


def aside(call: Callable[[], T], *, beat: Callable[[], None], every: float, timeout: float) -> T:
    """Run a slow call in a thread of its own and go on giving signs of life meanwhile. What it raises comes out here.

    Past `timeout` the call is left alone (its thread ends with it) and AsideTimeoutError raised.
    """
    done = threading.Event()
    outcome: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(call())
        except BaseException as error:
            failure.append(error)
        finally:
            connections.close_all()
            done.set()

    threading.Thread(target=run, name="aside", daemon=True).start()
    deadline = time.monotonic() + timeout
    while not done.wait(min(every, max(0.0, deadline - time.monotonic()))):
        beat()
        if time.monotonic() >= deadline:
            raise AsideTimeoutError(f"no answer within {timeout:.0f} s")
    if failure:
        raise failure[0]
    return outcome[0]


def check_sessions_are_kept() -> None:
    """Raise SessionsNotKeptError behind a pooler that hands one server session to several clients in turn.

    A server tells its own process id when a client connects; a pooler makes one up. If the two agree nothing stands between us.
    Else two clients at once show whether sessions are shared: one sees the other's server process, or its own change.
    """
    wrapper = connections[DEFAULT_DB_ALIAS]
    parameters = {**wrapper.get_connection_params(), "autocommit": True}
    if parameters.pop("pool", None):
        raise SessionsNotKeptError("the coordinator's database connections must not come from a pool")
    with psycopg.connect(**parameters) as first:
        own = _server_pid(first)
        if first.info.backend_pid == own:
            return
        with psycopg.connect(**parameters) as second:
            for _ in range(_POOLER_ROUNDS):
                try:
                    with second.transaction():
                        shared = _server_pid(second) == own or _server_pid(first) != own
                except psycopg.errors.Error as error:
                    raise SessionsNotKeptError(f"DATABASE_URL leads to a pooler that refuses transactions: {error}") from error
                if shared:
                    raise SessionsNotKeptError(
                        "DATABASE_URL leads to a pooler that does not keep sessions (transaction pooling): the locks by which one "
                        "coordinator leads would be lost. Give the coordinator a direct address or a pooler in session mode."
                    )


def _server_pid(connection: "psycopg.Connection[Any]") -> int:
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    return int(row[0]) if row else 0
