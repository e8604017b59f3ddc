"""Where actuator runs happen: threads of this process, or Celery workers.

Owns lanes (a start never waits behind an archive) and delivery. Delivery may happen twice and order is not promised: the
Attempt row, taken by compare-and-set, decides who runs it. Must not decide what is run.
"""

import queue
import threading
import time
from collections.abc import Callable
from typing import Protocol
from uuid import UUID

import structlog
from django.db import DatabaseError, connection

from codehub.celery import HEAVY_QUEUE, LIGHT_QUEUE
from coordinator.actuators import Tools, run_attempt

log = structlog.get_logger(__name__)


class Executor(Protocol):
    """Takes ids of queued Attempt rows. Never blocks the caller."""

    redispatch_after: float
    """Seconds after which a row that nobody took is dispatched once more."""

    def dispatch(self, attempt_id: UUID, *, heavy: bool) -> None:
        """Run it some time soon. Dispatching what is already waiting here does nothing."""

    def stop(self, timeout: float) -> None:
        """Take nothing new, let running runs end for so long, and return."""


class _Lane:
    """A queue and its threads, started when there is work for them."""

    def __init__(self, name: str, *, workers: int, work: Callable[[UUID], None]) -> None:
        self._name, self._workers, self._work = name, workers, work
        self._queue: queue.SimpleQueue[UUID | None] = queue.SimpleQueue()
        self._waiting: set[UUID] = set()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._lock = threading.Lock()
        self._stopping = False

    def put(self, attempt_id: UUID) -> None:
        with self._lock:
            if self._stopping or attempt_id in self._waiting:
                return
            self._waiting.add(attempt_id)
            if self._idle < len(self._waiting) and len(self._threads) < self._workers:
                thread = threading.Thread(target=self._serve, name=f"{self._name}-{len(self._threads) + 1}", daemon=True)
                self._threads.append(thread)
                thread.start()
        self._queue.put(attempt_id)

    def stop(self) -> list[threading.Thread]:
        with self._lock:
            self._stopping = True
            for _ in self._threads:
                self._queue.put(None)
            return list(self._threads)

    def _serve(self) -> None:
        try:
            while (attempt_id := self._next()) is not None:
                if not self._stopping:
                    self._work(attempt_id)
        finally:
            connection.close()

    def _next(self) -> UUID | None:
        with self._lock:
            self._idle += 1
        attempt_id = self._queue.get()
        with self._lock:
            self._idle -= 1
            if attempt_id is not None:
                self._waiting.discard(attempt_id)
        return attempt_id


class ThreadExecutor:
    """Runs in daemon threads of this process: a process that must end is never held up by an archive."""

    redispatch_after = 2.0

    def __init__(self, tools: Tools, *, workers: int, transfer_workers: int, wake: Callable[[UUID], None]) -> None:
        self._tools, self._wake = tools, wake
        self._light = _Lane("run", workers=workers, work=self._run)
        self._heavy = _Lane("transfer", workers=transfer_workers, work=self._run)

    def dispatch(self, attempt_id: UUID, *, heavy: bool) -> None:
        (self._heavy if heavy else self._light).put(attempt_id)

    def stop(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        threads = self._light.stop() + self._heavy.stop()
        # Short runs get half of the time to end by themselves, long ones the rest to give themselves up.
        for thread in threads:
            thread.join(max(deadline - timeout / 2 - time.monotonic(), 0))
        self._tools.keeper.interrupt()
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0))
        self._tools.keeper.close(max(deadline - time.monotonic(), 0))

    def _run(self, attempt_id: UUID) -> None:
        try:
            workspace_id = run_attempt(attempt_id, self._tools)
        except DatabaseError as error:
            # The row is taken up again: it is still queued, or its silence shows that it was lost.
            log.warning("run not finished, the database does not answer", attempt=str(attempt_id), error=str(error))
            connection.close()
            return
        except Exception:
            log.exception("executor failed", attempt=str(attempt_id))
            return
        if workspace_id is not None:
            self._wake(workspace_id)


class CeleryExecutor:
    """Sends ids to Celery workers, from a thread of its own: a broker that does not answer must not hold up the loop."""

    redispatch_after = 30.0

    def __init__(self, send: Callable[[UUID, str], None]) -> None:
        self._send = send
        self._queue: queue.SimpleQueue[tuple[UUID, str] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="celery-sender", daemon=True)
        self._thread.start()

    def dispatch(self, attempt_id: UUID, *, heavy: bool) -> None:
        self._queue.put((attempt_id, HEAVY_QUEUE if heavy else LIGHT_QUEUE))

    def stop(self, timeout: float) -> None:
        self._queue.put(None)
        self._thread.join(timeout)

    def _serve(self) -> None:
        while (item := self._queue.get()) is not None:
            try:
                self._send(*item)
            except Exception as error:
                # Nothing is lost: a row that nobody takes is dispatched again.
                log.warning("run could not be sent to the broker", attempt=str(item[0]), error=repr(error))
