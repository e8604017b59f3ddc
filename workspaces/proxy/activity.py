"""What counts as use of a workspace, and how it is remembered: a dict in memory, copied to Redis every few seconds.

`counts` and `Meter` are pure. An open tab that nobody touches must not count, although its IDE talks all the time: a tab is
judged by what a person did in it (the page's script says so) and by traffic above the idle floor; any other client by all it does.
"""

import asyncio
import time
from collections.abc import Callable
from uuid import UUID

import structlog
from django.conf import settings
from redis.asyncio import Redis
from redis.exceptions import RedisError

from workspaces.proxy.vscode import Watch

log = structlog.get_logger(__name__)

ACTIVITY_KEY = "codehub:activity"
ACTIVITY_KIND_KEY = "codehub:activity:kind"

INPUT_KINDS = frozenset({"typing", "pointer", "touch"})
"""What the page's script may report."""
REQUEST = "request"
CLIENT = "script"
TRAFFIC = "traffic"
TERMINAL = "terminal"
OUTPUT = "output"


def counts(*, is_tab: bool, is_navigation: bool) -> str | None:
    """The kind of use an HTTP request is, or None.

    In a tab only a visit counts: an idle IDE polls, saves its own state and reports to itself with any method.
    """
    if not is_tab:
        return CLIENT
    return REQUEST if is_navigation else None


class Meter:
    """Judges one WebSocket of a tab by its bytes, both ways together. `now` is an argument; no clock in here.

    An IDE that nobody touches moves up to 8.5 KB in five seconds, somebody who types more than 20 (docs/proxy.md has the table).
    One busy window may be the IDE's own doing (a page that loads, a fetch of its own); two in a row are use.
    """

    __slots__ = ("_busy_before", "_bytes", "_until")

    WINDOW_SECONDS = 5.0
    FLOOR_BYTES = 16_000

    def __init__(self) -> None:
        self._until = 0.0
        self._bytes = 0
        self._busy_before = False

    def add(self, size: int, now: float) -> bool:
        """Whether this message makes it use."""
        if now >= self._until:
            # A window that passed in silence lies between: the row is broken.
            self._busy_before = self._bytes > self.FLOOR_BYTES and now < self._until + self.WINDOW_SECONDS
            self._until = now + self.WINDOW_SECONDS
            self._bytes = 0
        self._bytes += size
        return self._busy_before and self._bytes > self.FLOOR_BYTES


class Recorder:
    """The last use of each workspace, not yet in Redis. One per process; runs on the event loop."""

    def __init__(self) -> None:
        self._seen: dict[UUID, tuple[float, str]] = {}

    def record(self, workspace_id: UUID, kind: str) -> None:
        self._seen[workspace_id] = (time.monotonic(), kind)

    async def flush(self, redis: "Redis") -> None:
        """Copy to Redis. What cannot be copied stays for the next time; newer signals are never overwritten by older ones."""
        if not self._seen:
            return
        batch, self._seen = self._seen, {}
        try:
            # Redis's clock, so that a wrong clock on a web machine shortens or lengthens nobody's day.
            seconds, microseconds = await redis.time()
            now, monotonic = seconds + microseconds / 1e6, time.monotonic()
            pipeline = redis.pipeline(transaction=False)
            pipeline.zadd(ACTIVITY_KEY, {str(key): now - (monotonic - at) for key, (at, _) in batch.items()}, gt=True)
            pipeline.hset(ACTIVITY_KIND_KEY, mapping={str(key): kind for key, (_, kind) in batch.items()})
            await pipeline.execute()
        except (RedisError, OSError) as error:
            log.warning("activity not copied", error=type(error).__name__, workspaces=len(batch))
            self._seen = {**batch, **self._seen}

    async def flush_forever(self, redis: "Redis") -> None:
        while True:
            await asyncio.sleep(settings.CONFIG.activity_flush_interval)
            await self.flush(redis)


Listener = Callable[[bytes | str, bool], None]
"""Hears one message of a WebSocket, and whether the server sent it."""


def listener(record: Callable[[UUID, str], None], workspace_id: UUID, *, is_tab: bool, path: bytes, query: bytes) -> Listener:
    """Who judges one WebSocket, by where it leads."""
    if not is_tab:
        return lambda _data, _from_server: record(workspace_id, CLIENT)
    if b"/terminals/websocket/" in path:
        return lambda _data, from_server: record(workspace_id, TERMINAL) if from_server else None
    if b"/api/kernels/" in path:
        return lambda _data, from_server: record(workspace_id, OUTPUT) if from_server else None
    return _IdeListener(workspace_id, record, Watch() if b"reconnectionToken=" in query else None)


class _IdeListener:
    __slots__ = ("_meter", "_record", "_watch", "_workspace_id")

    def __init__(self, workspace_id: UUID, record: Callable[[UUID, str], None], watch: Watch | None) -> None:
        self._workspace_id = workspace_id
        self._record = record
        self._watch = watch
        self._meter = Meter()

    def __call__(self, data: bytes | str, from_server: bool) -> None:
        if from_server and self._watch is not None and isinstance(data, bytes) and self._watch.hears_output(data):
            self._record(self._workspace_id, TERMINAL)
        if self._meter.add(len(data), time.monotonic()):
            self._record(self._workspace_id, TRAFFIC)
