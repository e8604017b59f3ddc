"""What the dashboard and the workspace page read: one user's workspaces, filtered, sorted, paged, and told in words.

Reads only, with a number of queries that does not grow with the number of workspaces. Views and live sockets render the
same fragments from here, so what arrives later looks like what was there at first.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self
from urllib.parse import urlencode
from uuid import UUID

from django.conf import settings
from django.contrib.auth.models import User
from django.db.models import Count, F, Q, QuerySet
from django.template.loader import render_to_string

from workspaces.models import Attempt, Image, Installation, Workspace
from workspaces.phases import DesiredState, Operation, Phase
from workspaces.presentation import Card, Defaults, present
from workspaces.services import Limits, limits_of

PAGE_SIZE = 24
STATES = ("", "running", "standby", "archived", "busy", "error")
SORTS = ("new", "name", "used")


@dataclass(frozen=True, slots=True)
class Query:
    """What part of the list somebody looks at; unknown values fall back, so a bookmark never breaks."""

    search: str = ""
    state: str = ""
    sort: str = "new"
    page: int = 1

    @classmethod
    def parse(cls, params: Mapping[str, Any]) -> Self:
        page = str(params.get("page", "1"))
        state, sort = str(params.get("state", "")), str(params.get("sort", "new"))
        return cls(
            search=str(params.get("q", "")).replace("\x00", "").strip()[:100],
            state=state if state in STATES else "",
            sort=sort if sort in SORTS else "new",
            page=min(int(page), 10_000) if page.isascii() and page.isdigit() and int(page[:6]) > 0 else 1,
        )

    def encode(self, **changes: Any) -> str:
        """The query string, without what is default."""
        values = {"q": self.search, "state": self.state, "sort": self.sort, "page": self.page, **changes}
        return urlencode({key: value for key, value in values.items() if value not in ("", "new", 1)})

    @property
    def is_filtered(self) -> bool:
        return bool(self.search or self.state)


@dataclass(frozen=True, slots=True)
class Usage:
    running: int
    owned: int
    limits: Limits

    @property
    def is_full(self) -> bool:
        return self.running >= self.limits.max_running


@dataclass(frozen=True, slots=True)
class Places:
    """What is where: enough to see whether a page still shows the right cards."""

    total: int
    shown: tuple[UUID, ...]


@dataclass(frozen=True, slots=True)
class Board:
    query: Query
    cards: list[Card]
    total: int
    pages: int

    @property
    def places(self) -> Places:
        return Places(self.total, tuple(card.workspace.pk for card in self.cards))

    @property
    def previous(self) -> str | None:
        return self.query.encode(page=self.query.page - 1) if self.query.page > 1 else None

    @property
    def next(self) -> str | None:
        return self.query.encode(page=self.query.page + 1) if self.query.page < self.pages else None


def defaults() -> Defaults:
    return Defaults(standby_ttl=settings.CONFIG.ttl_standby_seconds, archive_ttl=settings.CONFIG.ttl_archive_seconds)


def load_board(user: User, query: Query, *, now: datetime) -> Board:
    """One page of the user's workspaces; a page past the end is the last one."""
    found = _matching(Workspace.objects.visible().owned_by(user), query)
    total = found.count()
    pages = max(1, -(-total // PAGE_SIZE))
    query = Query(query.search, query.state, query.sort, min(query.page, pages))
    first = (query.page - 1) * PAGE_SIZE
    rows = list(_ordered(found, query).select_related("image")[first : first + PAGE_SIZE])
    return Board(query=query, cards=to_cards(rows, now=now), total=total, pages=pages)


def load_card(user: User, workspace_id: UUID, *, now: datetime) -> Card | None:
    row = Workspace.objects.visible().owned_by(user).select_related("image").filter(pk=workspace_id).first()
    return to_cards([row], now=now)[0] if row is not None else None


def load_places(user: User, query: Query) -> Places:
    """Which workspaces this page shows, in their order, and how many there are in all."""
    found = _matching(Workspace.objects.visible().owned_by(user), query)
    total = found.count()
    first = (min(query.page, max(1, -(-total // PAGE_SIZE))) - 1) * PAGE_SIZE
    return Places(total, tuple(_ordered(found, query).values_list("pk", flat=True)[first : first + PAGE_SIZE]))


def to_cards(rows: Iterable[Workspace], *, now: datetime) -> list[Card]:
    """Cards of these rows; the runs under way are fetched for all of them at once."""
    rows = list(rows)
    busy = [row.pk for row in rows if row.operation != Operation.NONE]
    runs = {run.workspace_id: run for run in Attempt.objects.filter(workspace_id__in=busy, finished_at__isnull=True)} if busy else {}
    return [present(row, attempt=runs.get(row.pk), now=now, defaults=defaults()) for row in rows]


def load_usage(user: User) -> Usage:
    counts = Workspace.objects.owned_by(user).aggregate(
        running=Count("pk", filter=Q(desired_state=DesiredState.RUNNING, deleted_at__isnull=True) & ~Q(phase=Phase.ERROR)),
        owned=Count("pk", filter=Q(deleted_at__isnull=True)),
    )
    return Usage(running=counts["running"], owned=counts["owned"], limits=limits_of(user))


def catalogue() -> list[Image]:
    """What a new workspace may run here."""
    images = Image.objects.filter(enabled=True)
    runtime = runtime_name()
    return list(images.filter(runtimes__contains=[runtime]) if runtime else images)


def runtime_name() -> str:
    return Installation.objects.values_list("runtime", flat=True).first() or ""


def render_card(card: Card) -> str:
    # Nothing around the card: white space would be a change of the list it stands in.
    return render_to_string("workspaces/_card.html", {"card": card}).strip()


def render_results(board: Board) -> str:
    return render_to_string("workspaces/_results.html", {"board": board}).strip()


def render_usage(usage: Usage) -> str:
    return render_to_string("workspaces/_usage.html", {"usage": usage}).strip()


def _matching(rows: QuerySet[Workspace], query: Query) -> QuerySet[Workspace]:
    if query.search:
        rows = rows.filter(Q(name__icontains=query.search) | Q(description__icontains=query.search) | Q(memo__icontains=query.search))
    if query.state == "busy":
        return rows.exclude(operation=Operation.NONE)
    if query.state:
        return rows.filter(phase=query.state.upper())
    return rows


def _ordered(rows: QuerySet[Workspace], query: Query) -> QuerySet[Workspace]:
    if query.sort == "name":
        return rows.order_by("name", "id")
    if query.sort == "used":
        return rows.order_by(F("last_access_at").desc(nulls_last=True), "-created_at", "id")
    return rows.order_by("-created_at", "id")
