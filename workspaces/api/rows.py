"""Workspaces as the API shows them: one statement, however many, and never as model instances.

The statement is written out because building it from a queryset costs several times what running it does; JSON columns are
passed on as PostgreSQL wrote them, without being parsed. Reads only; who may see what is in the clauses that are handed in.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import orjson
import psycopg
from django.conf import settings
from django.db import connection
from psycopg.pq import Format

from workspaces.phases import ConditionKey
from workspaces.timing import expiry_of

# A piece of a WHERE (constant text, never anything a caller sent) and the values for its placeholders.
Clause = tuple[str, tuple[Any, ...]]

VISIBLE: Final[Clause] = ("w.phase <> 'DELETED'", ())

# The workspace object, field by field, and where each comes from; NULL where it is worked out below.
_FIELDS: Final = {
    "id": "w.id::text",
    "name": "w.name",
    "description": "w.description",
    "memo": "w.memo",
    "owner": "u.username",
    "image": "i.name",
    "phase": "w.phase",
    "operation": "w.operation",
    "desired_state": "w.desired_state",
    "conditions": "w.conditions::text",
    "has_archive": "w.archive_key IS NOT NULL",
    "archive_key": "w.archive_key",
    "error_reason": "w.error_reason",
    "error_info": "w.error_info::text",
    "error_count": "w.error_count",
    "previous_phase": "w.previous_phase",
    "standby_ttl_seconds": "w.standby_ttl_seconds",
    "archive_ttl_seconds": "w.archive_ttl_seconds",
    "stops_at": "NULL",
    "archives_at": "NULL",
    "last_access_at": "w.last_access_at",
    "last_activity": "w.last_activity::text",
    "phase_changed_at": "w.phase_changed_at",
    "op_started_at": "w.op_started_at",
    "progress": "NULL",
    "archive_size": "w.archive_size",
    "archived_at": "w.archived_at",
    "observed_at": "w.observed_at",
    "created_at": "w.created_at",
    "updated_at": "w.updated_at",
    "url": "NULL",
}
# The driver's own, in C. Django puts one in Python in its place, and two hundred times are a quarter of a page's work.
_TIME_LOADER: Final = psycopg.adapters.get_loader(psycopg.adapters.types["timestamptz"].oid, Format.TEXT)
_PROGRESS: Final = ("action", "step", "bytes_done", "bytes_total", "started_at")
_SELECTED: Final = ", ".join([*_FIELDS.values(), "w.keep_awake_until", *(f"run.{column}" for column in _PROGRESS)])


def owned_by(user_id: int) -> Clause:
    return "w.owner_id = %s", (user_id,)


def with_id(key: Any) -> Clause:
    return "w.id = %s", (key,)


def workspace_rows(
    clauses: Sequence[Clause], *, base_url: str, order: str = "w.created_at DESC, w.id", limit: int | None = None
) -> list[dict[str, Any]]:
    """The workspace objects for which every clause holds; `base_url` is how the caller reached us."""
    where = " AND ".join(f"({text})" for text, _ in clauses)
    values: list[Any] = [value for _, given in clauses for value in given]
    if limit is not None:
        values.append(limit)
    # Which rows, and only then everything about them: joins and JSON cost as much as the page, not as the whole list.
    statement = f"""
        SELECT {_SELECTED}
        FROM (SELECT w.* FROM workspaces_workspace w WHERE {where} ORDER BY {order} {"" if limit is None else "LIMIT %s"}) w
        JOIN auth_user u ON u.id = w.owner_id
        JOIN workspaces_image i ON i.id = w.image_id
        LEFT JOIN workspaces_attempt run ON run.workspace_id = w.id AND run.finished_at IS NULL
        ORDER BY {order}
    """  # noqa: S608 - columns and clauses of our own
    config = settings.CONFIG
    ttls = {"default_standby_seconds": config.ttl_standby_seconds, "default_archive_seconds": config.ttl_archive_seconds}
    with connection.cursor() as cursor:
        cursor.cursor.adapters.register_loader("timestamptz", _TIME_LOADER)
        cursor.execute(statement, values)
        return [_shown(row, base_url, ttls) for row in cursor.fetchall()]


def _shown(row: tuple[Any, ...], base_url: str, ttls: dict[str, int]) -> dict[str, Any]:
    shown: dict[str, Any] = dict(zip(_FIELDS, row, strict=False))
    keep_awake_until, *run = row[len(_FIELDS) :]
    expiry = expiry_of(
        phase=shown["phase"],
        operation=shown["operation"],
        desired_state=shown["desired_state"],
        last_access_at=shown["last_access_at"],
        phase_changed_at=shown["phase_changed_at"],
        keep_awake_until=keep_awake_until,
        standby_ttl_seconds=shown["standby_ttl_seconds"],
        archive_ttl_seconds=shown["archive_ttl_seconds"],
        **ttls,
    )
    shown["stops_at"] = expiry.stops_at
    shown["archives_at"] = expiry.archives_at
    shown["conditions"] = _conditions(shown["conditions"], shown["created_at"])
    shown["error_info"] = _fragment(shown["error_info"])
    shown["last_activity"] = _fragment(shown["last_activity"])
    if run[0] is not None:
        shown["progress"] = dict(zip(_PROGRESS, run, strict=True))
    shown["url"] = f"{base_url}/w/{shown['id']}/"
    return shown


def _fragment(text: str | None) -> orjson.Fragment | None:
    return None if text is None else orjson.Fragment(text)


def _conditions(text: str, created_at: datetime) -> Any:
    if text != "{}":
        return orjson.Fragment(text)
    # Before the first observation nothing is there and nothing is wrong.
    return {
        key.value: {
            "status": key == ConditionKey.HEALTHY,
            "reason": "NotObservedYet",
            "message": "",
            "last_transition_time": created_at,
        }
        for key in ConditionKey
    }
