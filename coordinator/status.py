"""The only writer of what is observed. Reads rows for the controller and writes its decisions, many in one statement.

Every write is a compare-and-set: on the operation, on what was asked for, and on the row's version, so a decision made from a
row that anyone changed meanwhile is dropped and made again at the next look. Never waits for a lock.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

import structlog
from django.db import DataError, IntegrityError, connection

from coordinator.breaker import BreakerChange
from coordinator.state import Decision, Run, Snapshot
from workspaces.phases import Action, AttemptState, DesiredState, ErrorReason, Operation, Phase

log = structlog.get_logger(__name__)
T = TypeVar("T")

_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Row:
    """One workspace as loaded: `version` names exactly this state of the row."""

    snapshot: Snapshot
    version: str

    @property
    def op_id(self) -> str | None:
        return self.snapshot.home_ctx.get("op_id") if self.snapshot.operation is not Operation.NONE else None


@dataclass(frozen=True, slots=True)
class Written:
    """What `record_decisions` did: whose rows were written, and which alerts are to be sent."""

    ids: frozenset[UUID]
    alerts: tuple[int, ...]


_LOAD = """
    SELECT id, desired_state, phase, operation, deleted_at, recovery_strategy, conditions, archive_op_id, archive_key,
        archive_sha256, archive_size, archived_at, error_reason, error_info, error_count, previous_phase, home_ctx, endpoint,
        xmin::text, clock_timestamp()
    FROM workspaces_workspace WHERE phase <> 'DELETED'
"""

# Of a hundred thousand rows most are what they were: their versions tell, in a tenth of the time all columns take.
_LOAD_VERSIONS = """
    SELECT NULL::uuid, NULL, clock_timestamp() UNION ALL
    SELECT id, xmin::text, NULL FROM workspaces_workspace WHERE phase <> 'DELETED'
"""

_PHASES = {str(member): member for member in Phase}
_OPERATIONS = {str(member): member for member in Operation}
_DESIRED = {str(member): member for member in DesiredState}
_REASONS = {str(member): member for member in ErrorReason}


def shard_of(workspace_id: UUID, shards: int) -> int:
    """Which shard reconciles it: the last 32 bits of its id, so SQL can tell as well."""
    return (workspace_id.int & 0xFFFFFFFF) % shards


@dataclass(frozen=True, slots=True)
class Loaded:
    rows: list[Row]
    now: datetime | None
    """The database's time when they were read; None when there are none."""


def load_rows(*, shards: int = 1, shard: int = 0, ids: Collection[UUID] | None = None) -> Loaded:
    """Every workspace of the shard that is not DELETED, or the named ones of them, in one statement."""
    statement, parameters = _of_shard(_LOAD, shards=shards, shard=shard)
    if ids is not None:
        statement, parameters = f"{_LOAD} AND id = ANY(%s)", [[key for key in ids if shard_of(key, shards) == shard]]
    found = _fetch(statement, parameters)
    rows = [row for values in found if (row := _readable(values)) is not None]
    return Loaded(rows, found[0][19] if found else None)


def load_changed_rows(known: Mapping[UUID, Row], *, shards: int = 1, shard: int = 0, between: Callable[[], None] = lambda: None) -> Loaded:
    """The same as every row of the shard; those that are still what they were in `known` are not read again.

    Two statements, and one more for each thousand that changed, with a call of `between` after it.
    """
    (_, _, now), *found = _fetch(*_of_shard(_LOAD_VERSIONS, shards=shards, shard=shard))
    rows, changed = [], []
    for key, version, _ in found:
        former = known.get(key)
        if former is not None and former.version == version:
            rows.append(former)
        else:
            changed.append(key)
    for part in batched(changed):
        rows += load_rows(shards=shards, shard=shard, ids=part).rows
        between()
    return Loaded(rows, now)


def batched(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Parts that take a moment each."""
    return (items[start : start + _AT_ONCE] for start in range(0, len(items), _AT_ONCE))


def _of_shard(statement: str, *, shards: int, shard: int) -> tuple[str, list[Any]]:
    if shards == 1:
        return statement, []
    return statement + " AND ('x' || right(id::text, 8))::bit(32)::bigint %% %s = %s", [shards, shard]


def _fetch(statement: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters or None)
        found: list[tuple[Any, ...]] = cursor.fetchall()
        return found


def _readable(values: Sequence[Any]) -> Row | None:
    """The row, or None when its JSON is not what this code writes: that workspace is skipped, its neighbours are not."""
    try:
        row = _row(values)
        int(row.snapshot.generation)
    except (ValueError, TypeError, KeyError, AttributeError):
        log.exception("workspace skipped", workspace=str(values[0]))
        return None
    return row


def _json(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def _row(values: Sequence[Any]) -> Row:
    snapshot = Snapshot(
        id=values[0],
        desired_state=_DESIRED[values[1]],
        phase=_PHASES[values[2]],
        operation=_OPERATIONS[values[3]],
        deleted_at=values[4],
        recovery_strategy=values[5],
        conditions=_json(values[6]),
        archive_op_id=values[7],
        archive_key=values[8],
        archive_sha256=values[9],
        archive_size=values[10],
        archived_at=values[11],
        error_reason=_REASONS[values[12]] if values[12] is not None else None,
        error_info=_json(values[13]),
        error_count=values[14],
        previous_phase=_PHASES[values[15]] if values[15] is not None else None,
        home_ctx=_json(values[16]),
        endpoint=values[17],
    )
    return Row(snapshot, values[18])


# A dead process takes its session with it; a restarted PostgreSQL takes everyone's, so the living get 6 s to say so.
_IS_LOST = """
    a.state = 'RUNNING' AND (
        a.heartbeat_at < clock_timestamp() - interval '15 seconds'
        OR (a.heartbeat_at < clock_timestamp() - interval '6 seconds' AND NOT EXISTS (
            SELECT 1 FROM pg_stat_activity p WHERE p.pid = a.backend_pid AND p.backend_start <= a.heartbeat_at)))
"""
_LOAD_RUNS = f"""
    SELECT DISTINCT ON (a.op_id) a.op_id::text, a.id, a.action, a.number, a.state, a.params, a.result, a.error,
        a.queued_at, a.started_at, a.finished_at, ({_IS_LOST})
    FROM workspaces_attempt a WHERE a.op_id = ANY(%s::uuid[]) ORDER BY a.op_id, a.number DESC
"""  # noqa: S608 - constants only
_RECORD_LOST = f"""
    UPDATE workspaces_attempt a SET state = 'LOST', finished_at = clock_timestamp()
    WHERE a.id = ANY(%s) AND {_IS_LOST} RETURNING a.id
"""  # noqa: S608 - constants only


def load_runs(op_ids: Collection[str]) -> dict[str, Run]:
    """The latest run of each operation, by its claim. Runs whose executor is gone are ended as LOST on the way."""
    if not op_ids:
        return {}
    with connection.cursor() as cursor:
        cursor.execute(_LOAD_RUNS, [list(op_ids)])
        rows = cursor.fetchall()
    lost = record_lost([row[1] for row in rows if row[11]])
    return {row[0]: _run(row, lost=row[1] in lost) for row in rows}


def _run(row: Sequence[Any], *, lost: bool) -> Run:
    run = Run(
        id=row[1],
        action=Action(row[2]),
        number=row[3],
        state=AttemptState(row[4]),
        params=_json(row[5]),
        result=_json(row[6]),
        error=_json(row[7]),
        queued_at=row[8],
        started_at=row[9],
        finished_at=row[10],
    )
    return replace(run, state=AttemptState.LOST) if lost else run


def record_lost(attempt_ids: Collection[UUID]) -> frozenset[UUID]:
    """End runs whose executor gave no sign of life. From here on they may not call a provider any more."""
    if not attempt_ids:
        return frozenset()
    with connection.cursor() as cursor:
        cursor.execute(_RECORD_LOST, [list(attempt_ids)])
        lost = frozenset(row[0] for row in cursor.fetchall())
    for attempt_id in lost:
        log.warning("run lost", attempt=str(attempt_id))
    return lost


# One statement writes everything a batch of decisions means, or nothing of it.
_RECORD = """
WITH s AS (
    SELECT * FROM jsonb_to_recordset(%s::jsonb) AS x(
        id uuid, version text, desired_state text, deleted_at timestamptz, old_phase text, old_operation text,
        phase text, operation text, conditions jsonb, archive_op_id uuid, archive_key text, archive_sha256 text,
        archive_size bigint, archived_at timestamptz, error_reason text, error_info jsonb, error_count int,
        previous_phase text, home_ctx jsonb, endpoint text, consumed boolean, reason text, message text, end_state text,
        run_id uuid, run_op uuid, run_action text, run_number int, run_params jsonb, alert text)
), locked AS (
    SELECT w.id FROM workspaces_workspace w JOIN s ON s.id = w.id WHERE w.xmin::text = s.version
    ORDER BY w.id FOR NO KEY UPDATE OF w SKIP LOCKED
), changed AS (
    UPDATE workspaces_workspace w SET
        conditions = s.conditions, observed_at = now(), phase = s.phase,
        phase_changed_at = CASE WHEN w.phase = s.phase THEN w.phase_changed_at ELSE now() END,
        operation = s.operation,
        op_started_at = CASE WHEN s.operation = 'NONE' THEN NULL WHEN w.operation = 'NONE' THEN now() ELSE w.op_started_at END,
        archive_op_id = s.archive_op_id, archive_key = s.archive_key, archive_sha256 = s.archive_sha256,
        archive_size = s.archive_size, archived_at = s.archived_at, error_reason = s.error_reason,
        error_info = NULLIF(s.error_info, 'null'::jsonb), error_count = s.error_count, previous_phase = s.previous_phase,
        home_ctx = s.home_ctx, endpoint = s.endpoint,
        recovery_strategy = CASE WHEN s.consumed THEN NULL ELSE w.recovery_strategy END
    FROM s JOIN locked l ON l.id = s.id
    WHERE w.id = s.id AND w.operation = s.old_operation AND w.desired_state = s.desired_state
        AND w.deleted_at IS NOT DISTINCT FROM s.deleted_at
        AND (s.run_id IS NULL OR NOT EXISTS (
            SELECT 1 FROM workspaces_attempt a WHERE a.workspace_id = w.id AND a.finished_at IS NULL))
    RETURNING w.id
), moved AS (
    INSERT INTO workspaces_transition (workspace_id, from_phase, to_phase, from_operation, to_operation, reason, message)
    SELECT s.id, s.old_phase, s.phase, s.old_operation, s.operation, left(s.reason, 60), s.message
    FROM s JOIN changed c ON c.id = s.id WHERE s.old_phase <> s.phase OR s.old_operation <> s.operation
), ended AS (
    UPDATE workspaces_attempt a SET state = s.end_state, finished_at = clock_timestamp(),
        result = a.result || '{"ended_by": "controller"}'::jsonb
    FROM s JOIN changed c ON c.id = s.id
    WHERE a.workspace_id = s.id AND a.finished_at IS NULL AND s.end_state IS NOT NULL
), queued AS (
    INSERT INTO workspaces_attempt (id, workspace_id, operation, op_id, action, number, state, executor, params, result, log, step, bytes_done)
    SELECT s.run_id, s.id, s.operation, s.run_op, s.run_action, s.run_number, 'QUEUED', '', s.run_params, '{}'::jsonb, '', '', 0
    FROM s JOIN changed c ON c.id = s.id WHERE s.run_id IS NOT NULL
), told AS (
    INSERT INTO workspaces_alert (workspace_id, reason, message, delivered)
    SELECT s.id, s.alert, s.message, '{}'::jsonb FROM s JOIN changed c ON c.id = s.id WHERE s.alert <> ''
    RETURNING id
)
SELECT id, NULL::bigint FROM changed UNION ALL SELECT NULL::uuid, id FROM told
"""


def record_decisions(decisions: Sequence[tuple[Row, Decision]]) -> Written:
    """Write decisions made from these rows. Rows that changed meanwhile are left alone; the caller sees who was written."""
    if not decisions:
        return Written(frozenset(), ())
    payload = json.dumps([_values(row, decision) for row, decision in decisions], default=str)
    try:
        with connection.cursor() as cursor:
            cursor.execute(_RECORD, [payload])
            rows = cursor.fetchall()
    except (DataError, IntegrityError) as error:
        if len(decisions) == 1:
            log.exception("decision could not be written", workspace=str(decisions[0][0].snapshot.id), error=str(error))
            return Written(frozenset(), ())
        # One workspace's trouble must not keep its neighbours from being written.
        parts = [record_decisions([one]) for one in decisions]
        return Written(frozenset().union(*(part.ids for part in parts)), tuple(alert for part in parts for alert in part.alerts))
    written = frozenset(row[0] for row in rows if row[0] is not None)
    _log(decisions, written)
    return Written(written, tuple(row[1] for row in rows if row[1] is not None))


def _values(row: Row, decision: Decision) -> dict[str, Any]:
    before, after, run = row.snapshot, decision.after, decision.queue
    values: dict[str, Any] = {
        "id": before.id,
        "version": row.version,
        "desired_state": before.desired_state,
        "deleted_at": before.deleted_at.isoformat() if before.deleted_at else None,
        "old_phase": before.phase,
        "old_operation": before.operation,
        "archived_at": after.archived_at.isoformat() if after.archived_at else None,
        "consumed": decision.consumed,
        "reason": decision.reason,
        "message": decision.message,
        "end_state": decision.end_runs,
        "alert": decision.alert,
    }
    for column in _COPIED:
        values[column] = getattr(after, column)
    if run is not None:
        values |= {"run_id": run.id, "run_op": run.op_id, "run_action": run.action, "run_number": run.number, "run_params": run.params}
    return values


_COPIED = (
    "phase",
    "operation",
    "conditions",
    "archive_op_id",
    "archive_key",
    "archive_sha256",
    "archive_size",
    "error_reason",
    "error_info",
    "error_count",
    "previous_phase",
    "home_ctx",
    "endpoint",
)


def _log(decisions: Iterable[tuple[Row, Decision]], written: Collection[UUID]) -> None:
    for row, decision in decisions:
        before, after = row.snapshot, decision.after
        if before.id not in written or (before.phase, before.operation) == (after.phase, after.operation):
            continue
        log.info(
            "workspace changed",
            workspace=str(before.id),
            phase=str(after.phase),
            operation=str(after.operation),
            was_phase=str(before.phase),
            was_operation=str(before.operation),
            reason=decision.reason,
        )


def record_breaker(change: BreakerChange) -> None:
    """Show operators what a circuit breaker did."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO workspaces_breaker AS b (name, state, failures, opened_at, changed_at, last_error)
            VALUES (%(name)s, %(state)s, %(failures)s, CASE WHEN %(state)s = 'open' THEN now() END, now(), %(error)s)
            ON CONFLICT (name) DO UPDATE SET state = EXCLUDED.state, failures = EXCLUDED.failures, last_error = EXCLUDED.last_error,
                opened_at = CASE WHEN EXCLUDED.state = 'closed' THEN NULL ELSE COALESCE(b.opened_at, EXCLUDED.opened_at) END,
                changed_at = now()
            WHERE b.state <> EXCLUDED.state OR b.failures <> EXCLUDED.failures
            """,
            {"name": change.name, "state": change.state, "failures": change.failures, "error": change.last_error},
        )
