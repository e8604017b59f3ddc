"""Pages by key, not by number: rows that come and go between two pages are neither skipped nor shown twice.

A cursor names the ordering, the direction and the last row's sort key. Clients treat it as opaque; a cursor that was not
made here leads nowhere (404).
"""

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from django.utils.translation import gettext as _
from rest_framework.request import Request

from workspaces.api.errors import ApiError, invalid
from workspaces.api.requests import query_number
from workspaces.api.rows import Clause, workspace_rows

DEFAULT_PAGE_SIZE: Final = 50
MAX_PAGE_SIZE: Final = 200
MAX_CURSOR: Final = 1000
DEFAULT_ORDERING: Final = "-created_at"
# Never used sorts as used long ago, so that a null has its place between two pages.
_NEVER: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SORT_COLUMNS: Final = {
    "created_at": "w.created_at",
    "name": "w.name",
    "last_access_at": "COALESCE(w.last_access_at, 'epoch'::timestamptz)",
    "phase_changed_at": "w.phase_changed_at",
    "updated_at": "w.updated_at",
}
ORDERINGS: Final = tuple(sign + field for field in _SORT_COLUMNS for sign in ("", "-"))


@dataclass(frozen=True, slots=True)
class Cursor:
    ordering: str
    backward: bool
    key: str
    row: str


def bad_cursor() -> ApiError:
    return ApiError("not_found", _("There is no such page: follow `next` and `previous` as they were given."))


def encode(parts: Sequence[Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(parts, separators=(",", ":")).encode()).decode().rstrip("=")


def decode(text: str) -> list[Any]:
    if len(text) > MAX_CURSOR:
        raise bad_cursor()
    try:
        parts = json.loads(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError, RecursionError):
        raise bad_cursor() from None
    if not isinstance(parts, list):
        raise bad_cursor()
    return parts


def link(request: Request, cursor: str) -> str:
    """This request's address, on another page."""
    query = request.query_params.copy()
    query["cursor"] = cursor
    return request._request.build_absolute_uri(f"{request._request.path}?{query.urlencode()}")


def _cursor_of(request: Request, ordering: str) -> Cursor | None:
    text = request.query_params.get("cursor")
    if text is None:
        return None
    parts = decode(text)
    if len(parts) != 4 or not all(isinstance(part, str) for part in parts) or parts[0] != ordering or parts[1] not in {"f", "b"}:
        raise bad_cursor()
    return Cursor(ordering=ordering, backward=parts[1] == "b", key=parts[2], row=parts[3])


def _after(cursor: Cursor, *, column: str, descending: bool) -> Clause:
    try:
        key: Any = cursor.key if column == "w.name" else datetime.fromisoformat(cursor.key)
        row = UUID(cursor.row)
        if "\x00" in cursor.key or (isinstance(key, datetime) and key.tzinfo is None):
            raise ValueError(cursor.key)
        cursor.key.encode()
    except ValueError:
        raise bad_cursor() from None
    # The first condition is implied by the second; it lets the database walk an index to the place.
    beyond = "<" if descending else ">"
    tie = "<" if cursor.backward else ">"
    return f"{column} {beyond}= %s AND ({column} {beyond} %s OR w.id {tie} %s)", (key, key, row)


def page_of(request: Request, clauses: Sequence[Clause], *, base_url: str) -> dict[str, Any]:
    """One page of workspaces as `{next, previous, results}`, read with one statement."""
    ordering = request.query_params.get("ordering", DEFAULT_ORDERING)
    if ordering not in ORDERINGS:
        raise invalid(_("Unknown ordering."), ordering=_("Choose one of %(choices)s.") % {"choices": ", ".join(ORDERINGS)})
    size = query_number(request, "page_size", default=DEFAULT_PAGE_SIZE, largest=MAX_PAGE_SIZE)
    cursor = _cursor_of(request, ordering)
    field = ordering.lstrip("-")
    column = _SORT_COLUMNS[field]
    backward = cursor is not None and cursor.backward
    descending = ordering.startswith("-") != backward
    if cursor is not None:
        clauses = [*clauses, _after(cursor, column=column, descending=descending)]
    order = f"{column} {'DESC' if descending else 'ASC'}, w.id {'DESC' if backward else 'ASC'}"
    rows = workspace_rows(clauses, base_url=base_url, order=order, limit=size + 1)
    more = len(rows) > size
    rows = rows[:size]
    if backward:
        rows.reverse()

    def at(row: dict[str, Any], direction: str) -> str:
        key = row[field] if field == "name" else (row[field] or _NEVER).isoformat()
        return link(request, encode([ordering, direction, key, str(row["id"])]))

    has_next = bool(rows) and (more or backward)
    has_previous = bool(rows) and (more if backward else cursor is not None)
    return {
        "next": at(rows[-1], "f") if has_next else None,
        "previous": at(rows[0], "b") if has_previous else None,
        "results": rows,
    }
