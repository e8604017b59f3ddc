"""The last lines an IDE printed, fetched when somebody looks at them: the web has no engine to ask.

Owns the queue of requests and their rate. Runs beside the loops in a thread and session of its own and only while this process
leads; a failure costs one refresh of a page.
"""

import queue
import threading
import time
from collections.abc import Callable
from typing import Protocol
from uuid import UUID

import structlog
from django.db import Error, connection, connections

from coordinator.providers.base import ProviderError

log = structlog.get_logger(__name__)

WANT_CHANNEL = "codehub:logs:want"
LINES = 500
MAX_CHARACTERS = 200_000
_EVERY = 2.0
_MAX_WAITING = 200
_POLL = 1.0

_KEEP = """
    INSERT INTO workspaces_logtail (workspace_id, text, taken_at)
    SELECT id, %(text)s, now() FROM workspaces_workspace WHERE id = %(id)s
    ON CONFLICT (workspace_id) DO UPDATE SET text = EXCLUDED.text, taken_at = EXCLUDED.taken_at
    RETURNING (SELECT owner_id FROM workspaces_workspace WHERE id = %(id)s)
"""


class Printer(Protocol):
    """The part of a runtime that remembers what was printed."""

    def logs(self, workspace_id: UUID, lines: int = 200) -> str: ...


class LogTaker(threading.Thread):
    """One request at a time, the same workspace at most every two seconds."""

    def __init__(
        self,
        runtime: Printer,
        *,
        leading: threading.Event,
        stop: threading.Event,
        told: Callable[[UUID, int], None] = lambda _id, _user: None,
    ) -> None:
        super().__init__(name="log-taker", daemon=True)
        self._runtime = runtime
        self._leading = leading
        self._stop_asked = stop
        self._told = told
        self._wanted: queue.Queue[UUID] = queue.Queue(_MAX_WAITING)
        self._taken: dict[UUID, float] = {}

    def want(self, workspace_id: UUID) -> None:
        """Any thread. A full queue drops the request: the page asks again."""
        try:
            self._wanted.put_nowait(workspace_id)
        except queue.Full:
            log.info("log request dropped", workspace=str(workspace_id))

    def run(self) -> None:
        while not self._stop_asked.is_set():
            try:
                workspace_id = self._wanted.get(timeout=_POLL)
            except queue.Empty:
                continue
            now = time.monotonic()
            if not self._leading.is_set() or now - self._taken.get(workspace_id, -_EVERY) < _EVERY:
                continue
            self._taken = {key: at for key, at in self._taken.items() if now - at < _EVERY}
            self._taken[workspace_id] = now
            try:
                self.take(workspace_id)
            except (ProviderError, Error, OSError) as error:
                log.warning("logs not taken", workspace=str(workspace_id), error=str(error).strip())
                connections.close_all()
            except Exception:
                log.exception("logs not taken", workspace=str(workspace_id))
        connections.close_all()

    def take(self, workspace_id: UUID) -> None:
        # PostgreSQL's text holds no NUL; terminals print some.
        text = self._runtime.logs(workspace_id, LINES)[-MAX_CHARACTERS:].replace("\x00", "")
        with connection.cursor() as cursor:
            cursor.execute(_KEEP, {"id": workspace_id, "text": text})
            row = cursor.fetchone()
        if row is not None:
            self._told(workspace_id, row[0])
