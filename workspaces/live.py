"""Live changes inside one web process: one Redis connection, any number of subscribers.

    async with live.subscribe(user_id) as changes:
        ...send the current state...
        async for change in changes:      # or: await changes.next(timeout=15) -> Change | None
            ...

A subscriber that was confirmed misses nothing: what it could not be told (its queue ran over, Redis was away) comes as
`resync`, and `access` means "look again whether the caller may still listen". Carries ids, never rows; no database in here.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, Literal
from weakref import WeakKeyDictionary

import structlog
from django.conf import settings
from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from workspaces.access import access_channel

log = structlog.get_logger(__name__)

Kind = Literal["updated", "deleted", "progress", "resync", "access"]
_WORKSPACE_KINDS: Final = frozenset({"updated", "deleted", "progress"})

MAX_PENDING = 256
_SUBSCRIBE_TIMEOUT = 5.0
_SILENCE_BEFORE_PING = 15.0
_RECONNECT_MAX = 2.0


@dataclass(frozen=True, slots=True)
class Change:
    """Something about one workspace moved, or (`workspace` empty) everything may have.

    `serial` is the same for every subscriber that is told of the same message: what was rendered for one may be shared.
    """

    kind: Kind
    workspace: str
    serial: int


class Subscription:
    """The changes one subscriber has not taken yet; at most one for each workspace, the newest."""

    __slots__ = ("_event", "_pending", "user_id")

    def __init__(self, user_id: int) -> None:
        self.user_id = user_id
        self._pending: dict[str, Change] = {}
        self._event = asyncio.Event()

    def put(self, change: Change) -> None:
        pending = self._pending
        if change.kind == "resync":
            pending.clear()
            pending["resync"] = change
        elif change.kind == "access":
            # Also taken before a resync that waits: whoever may not listen any more gets no state either.
            self._pending = {"access": change, **pending}
        elif "resync" not in pending:
            earlier = pending.get(change.workspace)
            if earlier is not None and change.kind == "progress":
                change = Change(earlier.kind, change.workspace, change.serial)
            pending[change.workspace] = change
            if len(pending) > MAX_PENDING:
                pending.clear()
                pending["resync"] = Change("resync", "", change.serial)
        self._event.set()

    async def next(self, timeout: float | None = None) -> Change | None:
        """The next change, or None when there was none for `timeout` seconds."""
        while not self._pending:
            self._event.clear()
            if timeout is None:
                await self._event.wait()
            else:
                try:
                    async with asyncio.timeout(timeout):
                        await self._event.wait()
                except TimeoutError:
                    return None
        return self._pending.pop(next(iter(self._pending)))

    def __aiter__(self) -> AsyncIterator[Change]:
        return self

    async def __anext__(self) -> Change:
        change = await self.next()
        assert change is not None  # noqa: S101 - without a timeout `next` only returns changes
        return change


class Hub:
    """Owns the process's subscriptions and the one connection that feeds them. Lives in one event loop."""

    def __init__(self) -> None:
        self._subscribers: dict[int, set[Subscription]] = {}
        self._confirmed: dict[int, asyncio.Event] = {}
        self._serials = count(1)
        self._pubsub: PubSub | None = None
        self._reader: asyncio.Task[None] | None = None

    def all_channel(self) -> str:
        return f"{settings.CONFIG.redis_channel_sse_prefix}:all"

    async def join(self, subscription: Subscription) -> None:
        user_id = subscription.user_id
        newcomer = user_id not in self._subscribers
        self._subscribers.setdefault(user_id, set()).add(subscription)
        if newcomer:
            self._confirmed[user_id] = asyncio.Event()
            if self._reader is None:
                self._reader = asyncio.create_task(self._read())
            elif self._pubsub is not None:
                # A failure here ends the reader's connection too, and it subscribes to everybody again.
                with suppress(RedisError, OSError):
                    await self._pubsub.subscribe(*self._channels(user_id))
        # Without Redis the subscriber goes ahead: it is told to resync when the connection is back.
        with suppress(TimeoutError):
            async with asyncio.timeout(_SUBSCRIBE_TIMEOUT):
                await self._confirmed[user_id].wait()

    async def leave(self, subscription: Subscription) -> None:
        user_id = subscription.user_id
        members = self._subscribers.get(user_id, set())
        members.discard(subscription)
        if members:
            return
        self._subscribers.pop(user_id, None)
        self._confirmed.pop(user_id, None)
        if not self._subscribers and self._reader is not None:
            reader, self._reader = self._reader, None
            reader.cancel()
            with suppress(asyncio.CancelledError):
                await reader
        elif self._pubsub is not None:
            with suppress(RedisError, OSError):
                await self._pubsub.unsubscribe(*self._channels(user_id))

    def _channels(self, user_id: int) -> tuple[str, str]:
        return f"{settings.CONFIG.redis_channel_sse_prefix}:{user_id}", access_channel(user_id)

    async def _read(self) -> None:
        wait = 0.1
        first = True
        while True:
            client = Redis.from_url(settings.REDIS_URL, retry=Retry(NoBackoff(), 0), socket_connect_timeout=3, socket_keepalive=True)
            pubsub = client.pubsub()
            try:
                await self._listen(pubsub, resync=not first)
            except (RedisError, OSError) as error:
                log.warning("live events connection lost", error=str(error))
                first = False
            finally:
                self._pubsub = None
                with suppress(RedisError, OSError):
                    await pubsub.aclose()  # type: ignore[no-untyped-call]
                    await client.aclose()
            await asyncio.sleep(wait)
            wait = min(wait * 2, _RECONNECT_MAX)

    async def _listen(self, pubsub: PubSub, *, resync: bool) -> None:
        await pubsub.subscribe(self.all_channel(), *(channel for user_id in self._subscribers for channel in self._channels(user_id)))
        self._pubsub = pubsub
        # Who joined while the first command was under way saw no connection to subscribe on.
        await pubsub.subscribe(*(channel for user_id in [*self._subscribers] for channel in self._channels(user_id)))
        if resync:
            self._tell_everyone("resync")
        pinged = False
        while True:
            message = await pubsub.get_message(timeout=_SILENCE_BEFORE_PING)
            if message is not None:
                pinged = False
                self._take(message)
            elif pinged:
                raise ConnectionError("no answer to a ping")
            else:
                # A half-open connection would look like a quiet one for hours.
                pinged = True
                await pubsub.ping()

    def _take(self, message: dict[str, Any]) -> None:
        if message["type"] not in {"subscribe", "message"}:
            return
        channel = _text(message["channel"])
        if channel == self.all_channel():
            if message["type"] == "message":
                self._tell_everyone("resync")
            return
        _, _, user = channel.rpartition(":")
        user_id = int(user)
        if message["type"] == "subscribe":
            # The access channel is asked for last, so its confirmation stands for both.
            if channel == access_channel(user_id) and user_id in self._confirmed:
                self._confirmed[user_id].set()
            return
        if channel == access_channel(user_id):
            self._tell(user_id, Change("access", "", next(self._serials)))
            return
        change = self._parse(_text(message["data"]))
        if change is not None:
            self._tell(user_id, change)

    def _parse(self, data: str) -> Change | None:
        try:
            body = json.loads(data)
            kind, workspace = body["type"], body["id"]
        except (ValueError, KeyError, TypeError):
            log.warning("live event not understood", data=data[:200])
            return None
        if kind not in _WORKSPACE_KINDS or not isinstance(workspace, str):
            return Change("resync", "", next(self._serials)) if kind == "resync" else None
        return Change(kind, workspace, next(self._serials))

    def _tell(self, user_id: int, change: Change) -> None:
        for subscription in self._subscribers.get(user_id, ()):
            subscription.put(change)

    def _tell_everyone(self, kind: Kind) -> None:
        change = Change(kind, "", next(self._serials))
        for subscription in self._everyone():
            subscription.put(change)

    def _everyone(self) -> Iterator[Subscription]:
        for members in self._subscribers.values():
            yield from members


_hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, Hub] = WeakKeyDictionary()


@asynccontextmanager
async def subscribe(user_id: int) -> AsyncIterator[Subscription]:
    """Every change of this user's workspaces from here on. Read the current state inside the block, not before it."""
    hub = _hubs.setdefault(asyncio.get_running_loop(), Hub())
    subscription = Subscription(user_id)
    try:
        await hub.join(subscription)
        yield subscription
    finally:
        await hub.leave(subscription)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
