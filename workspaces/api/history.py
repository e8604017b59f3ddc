"""What happened to a workspace, newest first: runs of actuators and transitions as one list, in pages."""

from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django.db.models import F, Q
from rest_framework.request import Request

from workspaces.api.pagination import DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE, bad_cursor, decode, encode, link
from workspaces.api.requests import query_number
from workspaces.models import Attempt, Transition

_ATTEMPT: Final = (
    "id",
    "operation",
    "action",
    "tries",
    "state",
    "step",
    "bytes_done",
    "bytes_total",
    "started_at",
    "finished_at",
    "error",
)
_TRANSITION: Final = ("id", "from_phase", "to_phase", "from_operation", "to_operation", "reason", "message")


def history_page(request: Request, workspace_id: UUID) -> dict[str, Any]:
    size = query_number(request, "page_size", default=DEFAULT_PAGE_SIZE, largest=MAX_PAGE_SIZE)
    after = _cursor_of(request)
    attempts = Attempt.objects.filter(workspace_id=workspace_id).annotate(at=F("queued_at"))
    transitions = Transition.objects.filter(workspace_id=workspace_id)
    if after is not None:
        at, kind, row = after
        # Order: time down, then attempts before transitions, then id down.
        if kind == "attempt":
            attempts = attempts.filter(Q(at__lt=at) | Q(at=at, id__lt=UUID(row)))
            transitions = transitions.filter(at__lte=at)
        else:
            attempts = attempts.filter(at__lt=at)
            transitions = transitions.filter(Q(at__lt=at) | Q(at=at, id__lt=int(row)))
    found = attempts.counted().order_by("-at", "-id").values("at", *_ATTEMPT)[: size + 1]
    rows: list[dict[str, Any]] = [{"type": "attempt", "number": row.pop("tries"), **row} for row in found]
    rows += [{"type": "transition", **row} for row in transitions.order_by("-at", "-id").values("at", *_TRANSITION)[: size + 1]]
    rows.sort(key=lambda row: row["type"])
    rows.sort(key=lambda row: row["at"], reverse=True)
    more = len(rows) > size
    rows = rows[:size]
    for shown in rows:
        shown["id"] = str(shown["id"])
    last = rows[-1] if more and rows else None
    following = link(request, encode([last["at"].isoformat(), last["type"], last["id"]])) if last else None
    return {"next": following, "previous": None, "results": rows}


def _cursor_of(request: Request) -> tuple[datetime, str, str] | None:
    text = request.query_params.get("cursor")
    if text is None:
        return None
    parts = decode(text)
    if len(parts) != 3 or not all(isinstance(part, str) for part in parts):
        raise bad_cursor()
    try:
        at = datetime.fromisoformat(parts[0])
        if at.tzinfo is None or parts[1] not in {"attempt", "transition"}:
            raise ValueError(parts[1])
        if parts[1] == "attempt":
            UUID(parts[2])
        elif not 0 <= int(parts[2]) < 2**63:
            raise ValueError(parts[2])
    except ValueError:
        raise bad_cursor() from None
    return at, parts[1], parts[2]
