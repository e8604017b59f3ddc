"""PostgreSQL's notifications, passed on: to users' live channels and as wake-ups, both on Redis. Ids, never rows.

The session that leads is the session that listens, so a lost one cannot go unnoticed. After every gap (a new term, Redis away
for too long) `{"type": "resync"}` goes to `{prefix}:all`: whoever shows state sends it again, and the reconcile loop looks at all.
"""

import json
import time
from collections.abc import Callable

import psycopg
import redis
import structlog
from django.db import DEFAULT_DB_ALIAS, connection, connections

from coordinator.leader import LeadershipLostError, Term
from coordinator.wakeups import REDIS_ERRORS, redis_client
from workspaces.phases import Phase

log = structlog.get_logger(__name__)

KINDS = {"ws_sse": "updated", "ws_deleted": "deleted", "ws_progress": "progress", "ws_wake": "wake"}
# Above this many undelivered messages one "look at everything" says the same in fewer bytes.
MAX_PENDING = 10_000
_POLL = 1.0
_REDIS_PAUSE = 1.0


class EventsWork:
    """Collects notifications while it waits and publishes them as its tick."""

    name = "events"
    shard = 0

    def __init__(self, *, url: str, sse_prefix: str, wake_prefix: str, wake_all: Callable[[], None] = lambda: None) -> None:
        self._url = url
        self._sse_prefix = sse_prefix
        self._wake_channel = f"{wake_prefix}:wc"
        self._wake_all = wake_all
        self._client: redis.Redis | None = None
        # Keys only: in order, and each once however often it was said.
        self._pending: dict[tuple[str, int, str], None] = {}
        self._gap = True
        self._redis_down_until = 0.0

    def begin(self, term: Term) -> None:
        with connection.cursor() as cursor:
            for channel in KINDS:
                cursor.execute(f"LISTEN {channel}")
        self._pending.clear()
        self._gap = True
        self._wake_all()

    def wait(self, timeout: float) -> bool:
        if self._ready():
            timeout = 0.0
        raw = connections[DEFAULT_DB_ALIAS].connection
        if raw is None:
            raise LeadershipLostError("the session that listens is gone")
        try:
            for notification in raw.notifies(timeout=min(timeout, _POLL), stop_after=1):
                self._take(notification.channel, notification.payload)
        except psycopg.Error as error:
            raise LeadershipLostError("the session that listens is gone") from error
        return self._ready()

    def tick(self, term: Term, *, full: bool) -> None:
        if not self._pending and not self._gap:
            return
        try:
            self._publish()
        except REDIS_ERRORS as error:
            self._redis_down_until = time.monotonic() + _REDIS_PAUSE
            log.warning("live events wait for redis", waiting=len(self._pending), error=str(error))
            self._close()

    def interval(self) -> float:
        return 30.0

    def first_delay(self) -> float:
        return 0.0

    def end(self) -> None:
        self._close()

    def poke(self) -> None:
        """It never waits longer than a second."""

    def _ready(self) -> bool:
        return (self._gap or bool(self._pending)) and time.monotonic() >= self._redis_down_until

    def _take(self, channel: str, payload: str) -> None:
        try:
            body = json.loads(payload)
            key = (KINDS[channel], int(body["user"]), str(body["id"]))
        except (ValueError, KeyError, TypeError):
            log.warning("notification not understood", channel=channel, payload=payload[:200])
            return
        self._pending[key] = None
        if len(self._pending) > MAX_PENDING:
            self._pending.clear()
            self._gap = True

    def _publish(self) -> None:
        if self._client is None:
            self._client = redis_client(self._url)
        pipeline = self._client.pipeline(transaction=False)
        if self._gap:
            pipeline.publish(f"{self._sse_prefix}:all", json.dumps({"type": "resync"}))
        gone = self._deleted_for_good()
        for kind, user, workspace in self._pending:
            if kind == "wake":
                pipeline.publish(self._wake_channel, workspace)
                continue
            told = "deleted" if kind == "updated" and workspace in gone else kind
            pipeline.publish(f"{self._sse_prefix}:{user}", json.dumps({"type": told, "id": workspace}))
            if kind == "deleted":
                pipeline.publish(self._wake_channel, workspace)
        pipeline.execute()
        self._pending.clear()
        self._gap = False

    def _deleted_for_good(self) -> set[str]:
        """Rows whose last change was to DELETED: nobody can read them any more, so "updated" would say nothing."""
        ids = [workspace for kind, _user, workspace in self._pending if kind == "updated"]
        if not ids:
            return set()
        with connection.cursor() as cursor:
            cursor.execute("SELECT id::text FROM workspaces_workspace WHERE id = ANY(%s::uuid[]) AND phase = %s", [ids, Phase.DELETED])
            return {row[0] for row in cursor.fetchall()}

    def _close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()
