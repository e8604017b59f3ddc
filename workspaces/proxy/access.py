"""Who may enter a workspace, and what the database last said of it. The answer is kept for a few seconds at most.

`look_up` is the synchronous truth (session, token or own-origin cookie against the database); `Doorkeeper` runs it in a few
threads, remembers grants, forgets them when access changes, and looks again for everything that stays open.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

import structlog
from django.conf import settings
from django.contrib.auth.models import AbstractUser
from django.db import DatabaseError, close_old_connections
from redis.asyncio import Redis
from redis.exceptions import RedisError

from workspaces.access import ACCESS_CHANNEL_PREFIX, user_of_session, user_of_token
from workspaces.models import Workspace
from workspaces.phases import DesiredState, Operation, Phase
from workspaces.proxy.tickets import OwnPass, unseal

log = structlog.get_logger(__name__)

CACHE_SECONDS = 2.0
_DENIED_SECONDS = 0.5
RECHECK_SECONDS = 10.0
_MAX_REMEMBERED = 20_000


class Kind(StrEnum):
    BEARER = "bearer"
    SESSION = "session"
    OWN = "own"


Credential = tuple[Kind, str]


@dataclass(frozen=True, slots=True)
class Grant:
    """A user who may enter, by which credential, and the workspace as last read."""

    credential: Credential
    user_id: int
    session: str
    workspace_id: UUID
    phase: str
    operation: str
    desired_state: str
    endpoint: str
    strip_prefix: bool
    dashboard: str = ""

    @property
    def takes_traffic(self) -> bool:
        """An operation or a pending wish comes before the phase."""
        return (
            self.phase == Phase.RUNNING
            and self.operation == Operation.NONE
            and self.desired_state == DesiredState.RUNNING
            and bool(self.endpoint)
        )


class Denial(StrEnum):
    ANONYMOUS = "anonymous"
    """Nobody: no credential, or one that is worth nothing."""
    NOT_FOUND = "not_found"
    """Somebody, but the workspace is unknown, deleted or another's: indistinguishable on purpose."""


def identify(credential: Credential, *, workspace_id: UUID) -> tuple[AbstractUser, OwnPass | None] | None:
    """The user behind a credential, and the pass when it came from the workspace's own origin."""
    kind, value = credential
    if kind is not Kind.OWN:
        found = user_of_token(value) if kind is Kind.BEARER else user_of_session(value)
        return (found[0], None) if found else None
    own = unseal(value)
    if own is None or not own.is_for(workspace_id):
        return None
    found = user_of_session(own.session)
    return (found[0], own) if found and found[0].pk == own.user else None


def look_up(credential: Credential, workspace_id: UUID) -> Grant | Denial:
    """The truth, from the database. Owner only: an operator has no business inside somebody's IDE."""
    found = identify(credential, workspace_id=workspace_id)
    if found is None:
        return Denial.ANONYMOUS
    user, own = found
    row = (
        Workspace.objects.visible()
        .owned_by(user)
        .filter(pk=workspace_id, deleted_at__isnull=True)
        .values_list("phase", "operation", "desired_state", "endpoint", "image__strip_prefix")
        .first()
    )
    if row is None:
        return Denial.NOT_FOUND
    kind, value = credential
    session = value if kind is Kind.SESSION else own.session if own else ""
    return Grant(credential, user.pk, session, workspace_id, *row, dashboard=own.dashboard if own else "")


def _look_up_in_thread(credential: Credential, workspace_id: UUID) -> Grant | Denial:
    close_old_connections()
    try:
        return look_up(credential, workspace_id)
    finally:
        close_old_connections()


Key = tuple[Kind, str, UUID]


class Doorkeeper:
    """Grants with a short memory, and the list of what stays open. One per process; runs on the event loop."""

    def __init__(self) -> None:
        self._known: dict[Key, tuple[float, Grant | Denial]] = {}
        self._known_of: dict[int, set[Key]] = {}
        self._asking: dict[Key, asyncio.Future[Grant | Denial]] = {}
        self._open: dict[Key, set[Callable[[], None]]] = {}
        self._users: dict[Key, int] = {}
        self._threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="doorkeeper")

    async def ask(self, credential: Credential, workspace_id: UUID, *, fresh: bool = False) -> Grant | Denial:
        """What is known of this credential at this workspace. Raises DatabaseError when it cannot be known."""
        loop = asyncio.get_running_loop()
        key = (*credential, workspace_id)
        known = self._known.get(key)
        if known is not None and not fresh and known[0] > loop.time():
            return known[1]
        asking = self._asking.get(key)
        if asking is None:
            # Many requests of one page arrive together: one question to the database answers them all.
            asking = loop.run_in_executor(self._threads, _look_up_in_thread, credential, workspace_id)
            self._asking[key] = asking
            asking.add_done_callback(lambda done: self._remember(key, done))
        return await asyncio.shield(asking)

    def _remember(self, key: Key, done: "asyncio.Future[Grant | Denial]") -> None:
        self._asking.pop(key, None)
        if done.cancelled() or done.exception() is not None:
            return
        answer = done.result()
        now = asyncio.get_running_loop().time()
        if isinstance(answer, Denial):
            seconds = _DENIED_SECONDS
        elif answer.takes_traffic:
            seconds = CACHE_SECONDS
        else:
            # Whoever waits for a workspace must see it the moment it is ready.
            return
        if len(self._known) >= _MAX_REMEMBERED:
            # Rare, and cheaper than keeping order: everybody is asked for again.
            self._known.clear()
            self._known_of.clear()
        self._known[key] = (now + seconds, answer)
        if isinstance(answer, Grant):
            self._known_of.setdefault(answer.user_id, set()).add(key)

    def forget_user(self, user_id: int) -> None:
        """Something about this user's access changed: look again, also for what is open."""
        self._forget_grants(user_id)
        for key in [key for key, owner in self._users.items() if owner == user_id]:
            asyncio.get_running_loop().create_task(self._recheck(key))

    def _forget_grants(self, user_id: int) -> None:
        for key in self._known_of.pop(user_id, ()):
            self._known.pop(key, None)

    def forget_workspace(self, workspace_id: UUID) -> None:
        for key in [key for key in self._known if key[2] == workspace_id]:
            del self._known[key]

    def hold(self, grant: Grant, close: Callable[[], None]) -> Callable[[], None]:
        """Remember something that stays open; `close` is called when access ends. Returns the way to let go."""
        key = (*grant.credential, grant.workspace_id)
        self._open.setdefault(key, set()).add(close)
        self._users[key] = grant.user_id

        def let_go() -> None:
            held = self._open.get(key)
            if held is not None:
                held.discard(close)
                if not held:
                    del self._open[key]
                    self._users.pop(key, None)

        return let_go

    @property
    def open_count(self) -> int:
        return sum(len(held) for held in self._open.values())

    async def _recheck(self, key: Key) -> None:
        kind, value, workspace_id = key
        try:
            answer = await self.ask((kind, value), workspace_id, fresh=True)
        except DatabaseError:
            # Not known is not revoked; the next round asks again.
            log.warning("access could not be checked", workspace=str(workspace_id))
            return
        if isinstance(answer, Denial):
            self._known.pop(key, None)
            for close in list(self._open.get(key, ())):
                close()

    async def recheck_forever(self) -> None:
        """Look again at everything that is open: sessions end and users are disabled without telling us."""
        while True:
            await asyncio.sleep(RECHECK_SECONDS)
            for key in list(self._open):
                await self._recheck(key)

    async def listen_forever(self, redis: "Redis") -> None:
        """Hear about access that ends and workspaces that change. A lost connection only costs the cache's few seconds."""
        sse = settings.CONFIG.redis_channel_sse_prefix
        while True:
            try:
                async with redis.pubsub() as channel:
                    await channel.psubscribe(f"{ACCESS_CHANNEL_PREFIX}:*", f"{sse}:*")
                    async for message in channel.listen():
                        if message["type"] == "pmessage":
                            self._hear(message["channel"].decode(), message["data"], sse=sse)
            except RedisError:
                log.warning("access channel lost")
                await asyncio.sleep(1)

    def _hear(self, channel: str, data: bytes, *, sse: str) -> None:
        prefix, _, user = channel.rpartition(":")
        if not user.isdigit():
            return
        if prefix == ACCESS_CHANNEL_PREFIX:
            self.forget_user(int(user))
        elif prefix == sse:
            # The message names its workspace; rather than parse it, drop all that this user's requests rest on.
            self._forget_grants(int(user))

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
