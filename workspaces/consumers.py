"""Live pages over WebSocket: a change of a workspace becomes a fragment of the page that shows it.

On every connection the current state is sent first, so a page that was away is never stale; then one card for each
change. Carries no state of its own between messages but what the page last showed. Closes with 4401 when the session
ends and 4404 when there is nothing left to show. Rendering happens in threads: nothing here blocks the event loop.
"""

import asyncio
import json
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs
from uuid import UUID

import structlog
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings
from django.contrib.auth.models import User
from django.template.loader import render_to_string
from django.utils import translation

from workspaces import board, live, services
from workspaces.access import RECHECK_SECONDS, Credential, is_still_valid, user_of_session
from workspaces.models import Workspace
from workspaces.story import load_story

log = structlog.get_logger(__name__)

SESSION_ENDED = 4401
NOTHING_THERE = 4404

Patch = dict[str, str]


class LivePage(AsyncWebsocketConsumer):
    """What all live pages share: who listens, in which language, and until when."""

    task: asyncio.Task[None] | None = None
    farewell = NOTHING_THERE
    checked = 0.0
    user: User
    credential: Credential
    params: dict[str, str]
    language: str

    async def connect(self) -> None:
        session = self.scope.get("session")
        found = await database_sync_to_async(user_of_session)(session.session_key if session is not None else None)
        if found is None:
            await self.close()
            return
        user, self.credential = found
        self.user = user
        self.params = {key: values[-1] for key, values in parse_qs(self.scope.get("query_string", b"").decode("latin-1")).items()}
        asked = self.params.get("lang", "")
        self.language = asked if asked in dict(settings.LANGUAGES) else settings.LANGUAGE_CODE
        owner_id = await self.prepare()
        if owner_id is None:
            await self.close()
            return
        self.checked = asyncio.get_running_loop().time()
        await self.accept()
        self.task = asyncio.create_task(self._run(owner_id))

    async def disconnect(self, code: int) -> None:
        if self.task is not None and self.task is not asyncio.current_task():
            self.task.cancel()
            with suppress(asyncio.CancelledError):
                await self.task

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Pages only listen; whatever they send is ignored."""

    async def _run(self, owner_id: int) -> None:
        try:
            async with live.subscribe(owner_id) as changes:
                patches = await self._in_thread(self.everything)
                while patches is not None:
                    # An empty message too: it tells the page that the connection lives.
                    if not await self._sent(patches):
                        return
                    patches = await self._next(changes)
            await self.close(code=self.farewell)
        except Exception:
            # The page connects again and is shown everything anew; an open socket that says nothing would look alive.
            log.exception("live page failed", user=self.user.pk)
            await self.close(code=1011)

    async def _sent(self, patches: list[Patch]) -> bool:
        """Whether there was still somebody to send to. ASGI servers raise OSError when the other side has just gone."""
        try:
            await self.send(text_data=json.dumps({"patches": patches}))
        except OSError:
            return False
        return True

    async def _next(self, changes: live.Subscription) -> list[Patch] | None:
        """What to send next, after waiting for it; None when this page is over."""
        while True:
            change = await changes.next(timeout=RECHECK_SECONDS)
            now = asyncio.get_running_loop().time()
            if change is None or change.kind == "access" or now - self.checked > RECHECK_SECONDS:
                self.checked = now
                if not await database_sync_to_async(is_still_valid)(self.credential):
                    self.farewell = SESSION_ENDED
                    return None
            if change is None or change.kind == "access":
                return []
            if change.kind == "resync":
                return await self._in_thread(self.everything)
            patches = await self._in_thread(self.changed, UUID(change.workspace))
            if patches is None or patches:
                return patches

    async def _in_thread(self, render: Any, *args: Any) -> list[Patch] | None:
        def run() -> list[Patch] | None:
            with translation.override(self.language):
                found: list[Patch] | None = render(*args)
                return found

        patches: list[Patch] | None = await database_sync_to_async(run)()
        return patches

    async def prepare(self) -> int | None:
        """The user whose changes concern this page; None: it is not for this caller."""
        raise NotImplementedError

    def everything(self) -> list[Patch] | None:
        """The page's live parts as they are now; None when there is nothing to show any more."""
        raise NotImplementedError

    def changed(self, workspace_id: UUID) -> list[Patch] | None:
        raise NotImplementedError


class DashboardConsumer(LivePage):
    """One page of the dashboard, with its search, filter and order."""

    async def prepare(self) -> int | None:
        self.query = board.Query.parse(self.params)
        self.places = board.Places(0, ())
        self.usage_shown = ""
        return self.user.pk

    def everything(self) -> list[Patch]:
        page = board.load_board(self.user, self.query, now=services.database_now())
        self.places = page.places
        self.usage_shown = ""
        return [{"target": "results", "html": board.render_results(page)}, *self._usage()]

    def changed(self, workspace_id: UUID) -> list[Patch]:
        if board.load_places(self.user, self.query) != self.places:
            # Something came, went or moved: the order and the pages move too.
            return self.everything()
        if workspace_id not in self.places.shown:
            return self._usage()
        card = board.load_card(self.user, workspace_id, now=services.database_now())
        if card is None:
            return self.everything()
        return [{"target": f"card-{workspace_id}", "html": board.render_card(card)}, *self._usage()]

    def _usage(self) -> list[Patch]:
        html = board.render_usage(board.load_usage(self.user))
        if html == self.usage_shown:
            return []
        self.usage_shown = html
        return [{"target": "usage", "html": html}]


class WorkspaceConsumer(LivePage):
    """The page of one workspace, for its owner and for operators."""

    async def prepare(self) -> int | None:
        self.workspace_id: UUID = self.scope["url_route"]["kwargs"]["workspace_id"]
        workspace = await database_sync_to_async(self._find)()
        return workspace.owner_id if workspace is not None else None

    def everything(self) -> list[Patch] | None:
        workspace = self._find()
        if workspace is None:
            return None
        story = load_story(workspace, now=services.database_now())
        return [{"target": "story", "html": render_to_string("workspaces/_story.html", {"story": story, "user": self.user})}]

    def changed(self, workspace_id: UUID) -> list[Patch] | None:
        return self.everything() if workspace_id == self.workspace_id else []

    def _find(self) -> Workspace | None:
        found = Workspace.objects.visible().for_display().filter(pk=self.workspace_id)
        return (found if self.user.is_staff else found.owned_by(self.user)).first()
