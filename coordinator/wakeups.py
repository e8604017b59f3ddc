"""Reasons to look sooner: an inbox for each loop and the threads that fill it from PostgreSQL, Redis and the engine.

None of these sources is trusted: each may lose, repeat or delay. Whoever reconnects asks for a look at everything, so that
what was missed meanwhile is found at once; losing them all costs one idle interval. Nothing here decides or writes.
"""

import itertools
import json
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol
from uuid import UUID

import psycopg
import redis
import structlog
from django.db import DEFAULT_DB_ALIAS, connections
from redis.backoff import NoBackoff
from redis.retry import Retry

from coordinator.providers.base import ProviderError

log = structlog.get_logger(__name__)

_POLL = 2.0
_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 5.0


@dataclass(frozen=True, slots=True)
class Wake:
    """What was asked for since the last look."""

    ids: frozenset[UUID]
    probe: frozenset[UUID]
    """Those of them whose IDE somebody found dead."""
    everything: bool

    def __bool__(self) -> bool:
        return self.everything or bool(self.ids)


class Inbox:
    """Wake-ups of one loop. Any thread puts; the loop's thread waits and takes. A thousand for one workspace are one."""

    def __init__(self) -> None:
        self._condition = threading.Condition(threading.RLock())
        # In the order they came.
        self._wishes: dict[UUID, None] = {}
        self._ids: dict[UUID, None] = {}
        self._probe: set[UUID] = set()
        self._everything = False
        self._poked = False

    def wake(self, workspace_id: UUID, *, probe: bool = False, wish: bool = False) -> None:
        """`wish`: a person asked for something; it goes before what a thousand ended runs ask for."""
        with self._condition:
            if wish:
                self._wishes.pop(workspace_id, None)
            (self._wishes if wish else self._ids)[workspace_id] = None
            if probe:
                self._probe.add(workspace_id)
            self._condition.notify_all()

    def wake_all(self) -> None:
        with self._condition:
            self._everything = True
            self._condition.notify_all()

    def poke(self) -> None:
        """End a wait without asking for anything."""
        with self._condition:
            self._poked = True
            self._condition.notify_all()

    @property
    def everything(self) -> bool:
        """Whether a look at everything was asked for."""
        return self._everything

    def wait(self, timeout: float) -> bool:
        """Whether something was asked for, now or within so many seconds."""
        with self._condition:
            self._condition.wait_for(lambda: len(self) or self._everything or self._poked, timeout)
            self._poked = False
            return bool(len(self) or self._everything)

    def __len__(self) -> int:
        """How many were named."""
        return len(self._ids.keys() | self._wishes.keys()) if self._wishes else len(self._ids)

    def take(self) -> Wake:
        """All of it."""
        with self._condition:
            everything, self._everything = self._everything, False
            return replace(self.take_some(len(self)), everything=everything)

    def take_some(self, limit: int) -> Wake:
        """Of what was named so many, wishes first, and of those the newest: thousands at once are for a full look, and whoever
        comes after them is served meanwhile. The rest and a wish to look at everything stay."""
        with self._condition:
            return self._take_first(itertools.chain(reversed(self._wishes), self._ids), limit)

    def take_with_newest(self, limit: int) -> tuple[Wake, Wake]:
        """All of it, the newest wishes apart. In one: who comes after is still here for the next to take."""
        with self._condition:
            return self._take_first(reversed(self._wishes), limit), self.take()

    def _take_first(self, named: Iterable[UUID], limit: int) -> Wake:
        ids = frozenset(itertools.islice(dict.fromkeys(named), limit))
        probe = self._probe & ids
        for key in ids:
            self._wishes.pop(key, None)
            self._ids.pop(key, None)
        self._probe -= probe
        return Wake(ids, frozenset(probe), everything=False)


class Pause:
    """How long to wait before the next try: short at first, doubling, never the same for two processes."""

    def __init__(self, *, first: float = _FIRST_PAUSE, longest: float = _LONGEST_PAUSE) -> None:
        self._first = first
        self._longest = longest
        self._next = first

    def reset(self) -> None:
        self._next = self._first

    def next(self) -> float:
        seconds = self._next
        self._next = min(self._longest, self._next * 2)
        return seconds * random.uniform(0.7, 1.0)  # noqa: S311 - spreads retries, hides nothing


class Source(Protocol):
    """Something that can be listened to until it breaks."""

    name: str

    def listen(self, stop: threading.Event) -> None:
        """Pass on what comes. Returns when told to stop; raises when the source breaks."""


class SourceThread(threading.Thread):
    """Listens for ever: whatever breaks is opened again after a short pause."""

    def __init__(self, source: Source, *, stop: threading.Event, errors: tuple[type[Exception], ...]) -> None:
        super().__init__(name=f"wake-{source.name}", daemon=True)
        self._source = source
        self._stop_asked = stop
        self._errors = errors

    def run(self) -> None:
        pause = Pause()
        while not self._stop_asked.is_set():
            began = time.monotonic()
            try:
                self._source.listen(self._stop_asked)
            except self._errors as error:
                log.warning("wake-up source broke", source=self._source.name, error=str(error).strip())
            except Exception:
                log.exception("wake-up source failed", source=self._source.name)
            # A source that opens and breaks at once is tried less and less often: each time costs a look at everything.
            if time.monotonic() - began > _LONGEST_PAUSE:
                pause.reset()
            self._stop_asked.wait(pause.next())


class PostgresSource:
    """NOTIFY on a session of its own, in every coordinator: the leader is woken directly, whoever leads the events loop."""

    name = "postgres"
    channels = ("ws_wake", "ws_deleted")

    def __init__(self, *, wake: Callable[[UUID], None], wake_all: Callable[[], None]) -> None:
        self._wake = wake
        self._wake_all = wake_all
        self.connected = threading.Event()

    def listen(self, stop: threading.Event) -> None:
        parameters = {**connections[DEFAULT_DB_ALIAS].get_connection_params(), "autocommit": True}
        parameters.pop("pool", None)
        with psycopg.connect(**parameters) as connection:
            for channel in self.channels:
                connection.execute(f"LISTEN {channel}")
            self.connected.set()
            self._wake_all()
            try:
                while not stop.is_set():
                    for notification in connection.notifies(timeout=_POLL):
                        workspace_id = id_in(notification.payload)
                        if workspace_id is not None:
                            self._wake(workspace_id)
            finally:
                self.connected.clear()


class RedisSource:
    """Wake-ups of other processes, and requests for log lines."""

    name = "redis"

    def __init__(
        self,
        *,
        url: str,
        prefix: str,
        wake: Callable[[UUID], None],
        observe: Callable[[UUID], None],
        wake_all: Callable[[], None],
        want_logs: Callable[[UUID], None],
        told_directly: threading.Event,
        logs_channel: str,
    ) -> None:
        self._url = url
        self._wake = wake
        self._observe = observe
        self._wake_all = wake_all
        self._want_logs = want_logs
        self._told_directly = told_directly
        self._ob_channel, self._wc_channel, self._logs_channel = f"{prefix}:ob", f"{prefix}:wc", logs_channel

    def listen(self, stop: threading.Event) -> None:
        client = redis_client(self._url)
        subscription = client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
        try:
            subscription.subscribe(self._ob_channel, self._wc_channel, self._logs_channel)
            self._wake_all()
            while not stop.is_set():
                message = subscription.get_message(timeout=_POLL)
                if message is not None:
                    self._pass_on(str(message["channel"]), str(message["data"]))
        finally:
            subscription.close()
            client.close()

    def _pass_on(self, channel: str, text: str) -> None:
        workspace_id = id_in(text)
        if workspace_id is None:
            return
        if channel == self._logs_channel:
            self._want_logs(workspace_id)
        elif channel == self._ob_channel:
            self._observe(workspace_id)
        # Else the same wish has already come from PostgreSQL: looking twice would only cost.
        elif not self._told_directly.is_set():
            self._wake(workspace_id)


class EngineEvents(Protocol):
    """The part of a runtime that is listened to."""

    def events(self) -> Iterator[UUID]: ...


class EngineSource:
    """The engine's own event stream, only while this process leads: a displaced leader must not call the engine."""

    name = "engine"

    def __init__(self, engine: EngineEvents, *, leading: threading.Event, wake: Callable[[UUID], None], broke: Callable[[], None]) -> None:
        self._engine = engine
        self._leading = leading
        self._wake = wake
        self._broke = broke

    def listen(self, stop: threading.Event) -> None:
        while not self._leading.wait(_POLL):
            if stop.is_set():
                return
        try:
            for workspace_id in self._engine.events():
                if stop.is_set() or not self._leading.is_set():
                    return
                self._wake(workspace_id)
        finally:
            # What happened while nobody listened is found by a full look.
            self._broke()


REDIS_ERRORS: tuple[type[Exception], ...] = (redis.RedisError, OSError)
POSTGRES_ERRORS: tuple[type[Exception], ...] = (psycopg.Error, OSError)
ENGINE_ERRORS: tuple[type[Exception], ...] = (ProviderError, OSError)


def redis_client(url: str) -> "redis.Redis":
    """A client that never repeats or reconnects by itself: a gap must be seen, to be filled."""
    return redis.Redis.from_url(
        url,
        decode_responses=True,
        socket_connect_timeout=3,
        socket_timeout=5,
        health_check_interval=15,
        retry=Retry(NoBackoff(), 0),
    )


def id_in(text: str) -> UUID | None:
    """The workspace a message names: a bare id, or an object with one. None: not ours, ignored."""
    try:
        value = json.loads(text) if text.startswith("{") else {"id": text}
        return UUID(str(value["id"]))
    except (ValueError, KeyError, TypeError):
        return None
