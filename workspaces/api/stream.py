"""`GET /api/v1/events`: live events of the caller's workspaces as `text/event-stream`, served beside Django's handlers.

A stream holds no thread and no database connection: rows are read in a small pool, once for each change however many streams
show it. A stream looks again whether its caller may listen whenever told to and every few seconds. Writes nothing.
"""

import asyncio
import io
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final
from uuid import UUID

import structlog
from django.conf import settings
from django.core.exceptions import DisallowedHost
from django.core.handlers.asgi import ASGIRequest
from django.db import connections
from django.utils.translation import gettext as _

from workspaces import live
from workspaces.access import RECHECK_SECONDS, Credential, is_still_valid, user_of_request
from workspaces.api.base import dump
from workspaces.api.errors import CODES, ApiError, as_api_error, invalid, throttled, unauthenticated
from workspaces.api.rows import VISIBLE, owned_by, with_id, workspace_rows
from workspaces.api.throttles import count_call

log = structlog.get_logger(__name__)

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

_SEND_SECONDS: Final = 60
_CAP_RETRY_SECONDS: Final = 30
# Within one span of this many seconds one look at a credential counts for all its streams.
_SHARED_LOOK_SECONDS: Final = 5
_REMEMBERED_SECONDS: Final = 10
_HEARTBEAT: Final = b"event: heartbeat\ndata: {}\n\n"
_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
    (b"x-content-type-options", b"nosniff"),
    (b"vary", b"Authorization, Cookie"),
]

_threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="stream-reads")
_open: Counter[int] = Counter()
# Event ids of two processes, or of one before and after a restart, never look alike.
_EPOCH: Final = format(time.time_ns() // 1_000_000, "x")


class SharedReads:
    """Reads that several streams need at once are done once: the first asks, the others wait for the same answer."""

    def __init__(self) -> None:
        self._reads: dict[Hashable, asyncio.Future[Any]] = {}

    async def get(self, key: Hashable, read: Callable[..., Any], *args: Any) -> Any:
        loop = asyncio.get_running_loop()
        key = (id(loop), key)
        found = self._reads.get(key)
        if found is None:
            found = self._reads[key] = loop.run_in_executor(_threads, _in_thread, read, *args)
            # Long enough for every stream that was told of the same change, and no memory of old answers after that.
            loop.call_later(_REMEMBERED_SECONDS, self._reads.pop, key, None)
        # A stream that ends while it waits must not take the answer away from the others.
        return await asyncio.shield(found)


_shared = SharedReads()


async def events(scope: Scope, receive: Receive, send: Send) -> None:
    """The ASGI application. Failures before the stream begins are answered like everywhere in the API."""
    try:
        request = ASGIRequest(scope, io.BytesIO())
        base_url = _base_url(request)
        credential = await _in_pool(_admit, request)
        if _open[credential.user_id] >= settings.CONFIG.sse_max_streams_per_user:
            raise throttled(_CAP_RETRY_SECONDS)
    except Exception as exc:
        await _refuse(send, as_api_error(exc))
        return
    _open[credential.user_id] += 1
    stream = asyncio.create_task(Stream(credential, base_url, send).run())
    try:
        left = asyncio.create_task(_until_client_leaves(receive))
        await asyncio.wait({stream, left}, return_when=asyncio.FIRST_COMPLETED)
        left.cancel()
    finally:
        stream.cancel()
        _open[credential.user_id] -= 1
        if not _open[credential.user_id]:
            del _open[credential.user_id]
        with suppress(asyncio.CancelledError):
            await stream


class Stream:
    """One open stream: the state, then what changes, until the caller leaves or may not listen any more."""

    __slots__ = ("_base_url", "_credential", "_known", "_send")

    def __init__(self, credential: Credential, base_url: str, send: Send) -> None:
        self._credential = credential
        self._base_url = base_url
        self._send = send
        self._known: frozenset[str] | set[str] = frozenset()

    async def run(self) -> None:
        await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        try:
            async with live.subscribe(self._credential.user_id) as changes:
                first = await _in_pool(_state_frames, self._credential.user_id, self._base_url)
                await self._write(b"retry: 3000\n\n" + self._state(*first))
                await self._follow(changes)
        except TimeoutError:
            log.info("stream closed, its client does not read", user=self._credential.user_id)
        except OSError:
            return
        except Exception as exc:
            # The client reconnects and is sent everything again.
            log.warning("stream ended by a fault", user=self._credential.user_id, error=type(exc).__name__, exc_info=exc)
        with suppress(OSError):
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _follow(self, changes: live.Subscription) -> None:
        beat = settings.CONFIG.sse_heartbeat_interval
        clock = asyncio.get_running_loop().time
        next_beat, next_look = clock() + beat, clock() + RECHECK_SECONDS
        while True:
            change = await changes.next(max(0.0, min(next_beat, next_look) - clock()))
            if change is None:
                if clock() >= next_look:
                    if not await self._may_listen(("span", int(clock() // _SHARED_LOOK_SECONDS))):
                        return
                    next_look = clock() + RECHECK_SECONDS
                if clock() >= next_beat:
                    await self._write(_HEARTBEAT)
                    next_beat = clock() + beat
            elif change.kind == "access":
                if not await self._may_listen(("told", change.serial)):
                    return
            elif change.kind == "resync":
                user_id = self._credential.user_id
                state = await _shared.get(("state", user_id, self._base_url, change.serial), _state_frames, user_id, self._base_url)
                await self._write(self._state(*state))
            else:
                await self._tell(change)

    async def _tell(self, change: live.Change) -> None:
        key = ("workspace", self._credential.user_id, self._base_url, change.workspace, change.serial)
        frame = await _shared.get(key, _frame, self._credential.user_id, change.workspace, self._base_url, change.serial)
        if frame is not None:
            if change.workspace not in self._known:
                self._known = {*self._known, change.workspace}
            await self._write(frame)
        elif change.workspace in self._known:
            self._known = self._known - {change.workspace}
            await self._write(_deleted(change.workspace, change.serial))

    def _state(self, frames: bytes, ids: frozenset[str]) -> bytes:
        """Every workspace as it is now, and what is gone since the last time."""
        gone = b"".join(_deleted(workspace, 0) for workspace in self._known - ids)
        self._known = ids
        return gone + frames

    async def _may_listen(self, moment: Hashable) -> bool:
        return bool(await _shared.get(("access", self._credential, moment), is_still_valid, self._credential))

    async def _write(self, data: bytes) -> None:
        if data:
            async with asyncio.timeout(_SEND_SECONDS):
                await self._send({"type": "http.response.body", "body": data, "more_body": True})


async def _until_client_leaves(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _in_pool(read: Callable[..., Any], *args: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(_threads, _in_thread, read, *args)


def _in_thread(read: Callable[..., Any], *args: Any) -> Any:
    try:
        return read(*args)
    finally:
        # With a pool this gives the connection back; nothing stays open between two reads.
        connections.close_all()


def _base_url(request: ASGIRequest) -> str:
    try:
        return f"{request.scheme}://{request.get_host()}"
    except DisallowedHost:
        raise invalid(_("CodeHub does not answer to this host name.")) from None


def _admit(request: ASGIRequest) -> Credential:
    found = user_of_request(request)
    if found is None:
        raise unauthenticated()
    user, credential = found
    if request.method != "GET":
        raise ApiError("method_not_allowed", _("This address does not know that method."), headers={"Allow": "GET"})
    wait = count_call("user", str(user.pk), rate=settings.CONFIG.api_throttle_user)
    if wait is not None:
        raise throttled(wait)
    return credential


def _state_frames(user_id: int, base_url: str) -> tuple[bytes, frozenset[str]]:
    rows = workspace_rows([VISIBLE, owned_by(user_id)], base_url=base_url)
    return b"".join(_updated(row, 0) for row in rows), frozenset(str(row["id"]) for row in rows)


def _frame(user_id: int, workspace: str, base_url: str, serial: int) -> bytes | None:
    """The event that tells of one workspace; None when there is nothing to read any more."""
    try:
        key = UUID(workspace)
    except ValueError:
        return None
    rows = workspace_rows([VISIBLE, owned_by(user_id), with_id(key)], base_url=base_url)
    return _updated(rows[0], serial) if rows else None


def _updated(row: dict[str, Any], serial: int) -> bytes:
    return b"id: %b-%d\nevent: workspace_updated\ndata: %b\n\n" % (_EPOCH.encode(), serial, dump(row))


def _deleted(workspace: str, serial: int) -> bytes:
    return b"id: %b-%d\nevent: workspace_deleted\ndata: %b\n\n" % (_EPOCH.encode(), serial, dump({"id": workspace}))


async def _refuse(send: Send, error: ApiError) -> None:
    body = dump({"detail": error.detail, "code": error.code, **error.facts})
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), "Cache-Control": "no-store", **error.headers}
    encoded = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": CODES[error.code][0], "headers": encoded})
    await send({"type": "http.response.body", "body": body, "more_body": False})
