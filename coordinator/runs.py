"""The life of an Attempt row on the side of whoever runs it: take it, keep it alive, fence it, end it.

Owns the compare-and-sets QUEUED -> RUNNING -> ended, heartbeats and saved progress. A run that was taken away finds out before its
next call outside. Knows nothing of what a run does.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID, uuid4

import structlog
from django.db import Error, InterfaceError, OperationalError, connection

from workspaces.phases import Action, AttemptState, Operation

log = structlog.get_logger(__name__)
T = TypeVar("T")

PROGRESS_SECONDS = 1.0
HEARTBEAT_SECONDS = 3.0
# A restarted PostgreSQL answers again within this; a run that still cannot check its row must stop.
DATABASE_PATIENCE = 20.0


class FencedError(Exception):
    """The run is no longer its executor's: it must make no further call outside."""


class InterruptedRunError(Exception):
    """The executor is stopping: the run gives itself up so that another takes it over at once."""


@dataclass(slots=True)
class OpenRun:
    """A run this process has taken."""

    attempt_id: UUID
    workspace_id: UUID
    operation: Operation
    action: Action
    params: Mapping[str, Any]
    executor: str
    fenced: threading.Event = field(default_factory=threading.Event)
    stopping: threading.Event = field(default_factory=threading.Event)
    step: str = ""
    done: int = 0
    total: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    log_text: str = ""
    saved: tuple[Any, ...] = ()
    step_began: float = field(default_factory=time.monotonic)

    def check(self) -> None:
        """Called before each call outside. Raises unless the row still says that this run is ours."""
        if self.stopping.is_set():
            raise InterruptedRunError
        if self.fenced.is_set() or not patiently(self._is_ours):
            self.fenced.set()
            raise FencedError

    def begin(self, step: str) -> None:
        self.step, self.done, self.total, self.step_began = step, 0, None, time.monotonic()

    def moved(self) -> dict[str, Any]:
        """What the row shows of it. How long the step has lasted is told by this process's own clock, as a length."""
        facts = {**self.facts, "step_seconds": round(time.monotonic() - self.step_began, 1)}
        return {"id": self.attempt_id, "done": self.done, "total": self.total, "step": self.step, "facts": facts}

    def progress(self, done: int, total: int | None) -> None:
        """Remembered here, saved by the keeper at most once a second."""
        self.done, self.total = done, total
        if self.fenced.is_set():
            raise FencedError
        if self.stopping.is_set():
            raise InterruptedRunError

    def _is_ours(self) -> bool:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT 1 FROM workspaces_attempt WHERE id = %s AND state = 'RUNNING' AND executor = %s", [self.attempt_id, self.executor]
            )
            return cursor.fetchone() is not None


def patiently(call: Callable[[], T], *, seconds: float = DATABASE_PATIENCE) -> T:
    """A database call that survives a restart of PostgreSQL. Only for statements that may be repeated."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return call()
        except (OperationalError, InterfaceError):
            if connection.in_atomic_block or time.monotonic() >= deadline:
                raise
            connection.close()
            time.sleep(0.25)


class RunKeeper:
    """All runs of this process. One thread keeps their rows alive; it starts with the first run."""

    def __init__(self, *, name: str = "", beating: bool = True) -> None:
        self.name = (name or f"{socket.gethostname()}:{os.getpid()}")[:150] + f":{uuid4().hex[:12]}"
        self._beating = beating
        self._runs: dict[UUID, OpenRun] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    def take(self, attempt_id: UUID) -> OpenRun | None:
        """Make a queued run ours. None: it is another's, or over; a second delivery ends here."""
        row = patiently(lambda: self._take_row(attempt_id))
        if row is None:
            return None
        params = json.loads(row[3]) if isinstance(row[3], str) else row[3]
        run = OpenRun(attempt_id, row[0], Operation(row[1]), Action(row[2]), params, self.name)
        with self._lock:
            self._runs[attempt_id] = run
            if self._closed.is_set():
                run.stopping.set()
            if self._beating and self._thread is None:
                self._thread = threading.Thread(target=self._beat_while_needed, name="run-keeper", daemon=True)
                self._thread.start()
        return run

    def _take_row(self, attempt_id: UUID) -> tuple[Any, ...] | None:
        with connection.cursor() as cursor:
            cursor.execute(
                """
                UPDATE workspaces_attempt SET state = 'RUNNING', executor = %s, backend_pid = pg_backend_pid(),
                    started_at = clock_timestamp(), heartbeat_at = clock_timestamp()
                WHERE id = %s AND state = 'QUEUED' RETURNING workspace_id, operation, action, params
                """,
                [self.name, attempt_id],
            )
            row: tuple[Any, ...] | None = cursor.fetchone()
            return row

    def end(self, run: OpenRun, state: AttemptState, *, result: Mapping[str, Any], error: Mapping[str, Any] | None = None) -> bool:
        """End the row, if it is still ours. What the run did stays true either way; only the row tells the controller."""
        with self._lock:
            self._runs.pop(run.attempt_id, None)
        values = {
            "state": state,
            "result": json.dumps({**run.facts, **result}, default=str),
            "error": None if error is None else json.dumps(error, default=str),
            "log": run.log_text[-65536:].replace("\x00", ""),
            "step": run.step,
            "done": run.done,
            "total": run.total,
            "id": run.attempt_id,
            "executor": run.executor,
        }
        return patiently(lambda: self._end_row(values))

    def forget(self, run: OpenRun) -> None:
        """Give no more signs of life for it: its row is left as it is, and found lost."""
        with self._lock:
            self._runs.pop(run.attempt_id, None)

    def _end_row(self, values: Mapping[str, Any]) -> bool:
        with connection.cursor() as cursor:
            cursor.execute(
                """
                UPDATE workspaces_attempt SET state = %(state)s, finished_at = clock_timestamp(), heartbeat_at = clock_timestamp(),
                    result = result || %(result)s::jsonb, error = %(error)s::jsonb, log = %(log)s, step = %(step)s,
                    bytes_done = %(done)s, bytes_total = %(total)s
                WHERE id = %(id)s AND state = 'RUNNING' AND executor = %(executor)s RETURNING id
                """,
                values,
            )
            return cursor.fetchone() is not None

    def interrupt(self) -> None:
        """Ask every run to give itself up at its next step."""
        self._closed.set()
        with self._lock:
            for run in self._runs.values():
                run.stopping.set()

    def beat(self) -> None:
        """Write a sign of life and progress for all runs, in one statement; what is not ours any more is fenced."""
        with self._lock:
            runs = list(self._runs.values())
        if not runs:
            return
        payload = [run.moved() for run in runs]
        with connection.cursor() as cursor:
            cursor.execute(
                """
                UPDATE workspaces_attempt a SET heartbeat_at = clock_timestamp(), backend_pid = pg_backend_pid(), step = s.step,
                    bytes_done = s.done, bytes_total = s.total, result = a.result || s.facts
                FROM jsonb_to_recordset(%s::jsonb) AS s(id uuid, done bigint, total bigint, step text, facts jsonb)
                WHERE a.id = s.id AND a.state = 'RUNNING' AND a.executor = %s RETURNING a.id
                """,
                [json.dumps(payload, default=str), self.name],
            )
            ours = {row[0] for row in cursor.fetchall()}
        for run in runs:
            if run.attempt_id not in ours:
                run.fenced.set()

    def close(self, timeout: float) -> None:
        """End the thread once no run is left for it."""
        self._closed.set()
        thread = self._thread
        if thread is not None:
            thread.join(timeout)

    def _beat_while_needed(self) -> None:
        try:
            beaten = 0.0
            while not self._is_over():
                self._closed.wait(PROGRESS_SECONDS) if not self._closed.is_set() else time.sleep(0.05)
                beaten = self._beat_if_due(beaten)
        finally:
            connection.close()

    def _is_over(self) -> bool:
        """No run is left and none will come: checked and left under one lock, so no new run finds a thread that is leaving."""
        with self._lock:
            if self._runs or not self._closed.is_set():
                return False
            self._thread = None
            return True

    def _beat_if_due(self, beaten: float) -> float:
        with self._lock:
            runs = list(self._runs.values())
            moved = any(run.saved != (run.step, run.done, run.total) for run in runs)
        since = time.monotonic() - beaten
        if since < PROGRESS_SECONDS or (not moved and since < HEARTBEAT_SECONDS):
            return beaten
        try:
            self.beat()
        except Error as error:
            # Of any kind (a standby refuses writes, too): without this thread every run here would be taken for lost.
            log.warning("heartbeat not written", error=str(error))
            connection.close()
            return beaten
        for run in runs:
            run.saved = (run.step, run.done, run.total)
        return time.monotonic()


def record_log_tail(workspace_id: UUID, text: str) -> None:
    """Keep the last lines an IDE printed, where the web can read them."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO workspaces_logtail (workspace_id, text) VALUES (%s, %s)
            ON CONFLICT (workspace_id) DO UPDATE SET text = EXCLUDED.text, taken_at = now()
            """,
            [workspace_id, text[-65536:].replace("\x00", "")],
        )
