"""Workspaces over HTTP: list, create, read, change, delete, recover, history, logs.

Each method checks the shape of the request, calls one service function and shows the row. Annotations for the schema are
beside the serializers that describe it.
"""

import time
from typing import Any, Final
from uuid import UUID

import structlog
from django.utils.translation import gettext as _
from django_redis import get_redis_connection
from redis.exceptions import RedisError
from rest_framework.request import Request
from rest_framework.response import Response

from workspaces import services
from workspaces.api import schema
from workspaces.api.base import ApiView, address_of, user_of
from workspaces.api.errors import ApiError, invalid
from workspaces.api.history import history_page
from workspaces.api.pagination import page_of
from workspaces.api.requests import body_of, etag_of, flag_of, if_match_of, query_text, whole_number, workspace_id_of
from workspaces.api.rows import VISIBLE, Clause, owned_by, with_id, workspace_rows
from workspaces.errors import NotFoundError
from workspaces.models import Attempt, LogTail, Workspace
from workspaces.phases import AttemptState, Phase, RecoveryStrategy

log = structlog.get_logger(__name__)

CREATE_FIELDS: Final = ("name", "description", "memo", "image", "desired_state", "standby_ttl_seconds", "archive_ttl_seconds")
CHANGE_FIELDS: Final = ("name", "description", "memo", "desired_state", "standby_ttl_seconds", "archive_ttl_seconds")
VISIBLE_PHASES: Final = tuple(phase.value for phase in Phase if phase != Phase.DELETED)
LOGS_WANTED_CHANNEL: Final = "codehub:logs:want"
_FRESH_LOGS_WAIT = 1.5
_FAILED_RUNS_SHOWN = 3


class WorkspaceListView(ApiView):
    @schema.list_workspaces
    def get(self, request: Request) -> Response:
        user = user_of(request)
        clauses = [VISIBLE]
        if not flag_of(request, "all"):
            clauses.append(owned_by(user.pk))
        elif not user.is_staff:
            raise ApiError("permission_denied", _("Only operators may list everybody's workspaces."))
        return Response(page_of(request, [*clauses, *_filters(request)], base_url=_base_url(request)))

    @schema.create_workspace
    def post(self, request: Request) -> Response:
        body = _with_whole_ttls(body_of(request, allowed=CREATE_FIELDS, required=("name",)))
        if "image" in body and not isinstance(body["image"], str):
            raise invalid(_("image: Must be text."), image=_("Must be text."))
        workspace, made = services.request_create(
            user=user_of(request), idempotency_key=request.headers.get("Idempotency-Key"), address=address_of(request), **body
        )
        headers = {"Location": f"{request._request.path.rstrip('/')}/{workspace.pk}"}
        if not made:
            headers["Idempotent-Replayed"] = "true"
        return _shown(request, workspace.pk, status=201, headers=headers)


class WorkspaceView(ApiView):
    @schema.read_workspace
    def get(self, request: Request, workspace_id: str) -> Response:
        return _shown(request, _readable(request, workspace_id))

    @schema.change_workspace
    def patch(self, request: Request, workspace_id: str) -> Response:
        key = workspace_id_of(workspace_id)
        body = _with_whole_ttls(body_of(request, allowed=CHANGE_FIELDS))
        desired_state = body.pop("desired_state", None)
        if desired_state is None and "desired_state" in request.data:
            raise invalid(_("desired_state: Choose RUNNING, STANDBY or ARCHIVED."), desired_state=_("Must not be null."))
        services.request_change(
            key,
            user=user_of(request),
            fields=body,
            desired_state=desired_state,
            queue=flag_of(request, "queue"),
            if_match=if_match_of(request),
            address=address_of(request),
        )
        return _shown(request, key)

    @schema.delete_workspace
    def delete(self, request: Request, workspace_id: str) -> Response:
        key = workspace_id_of(workspace_id)
        services.request_delete(
            key, user=user_of(request), queue=flag_of(request, "queue"), if_match=if_match_of(request), address=address_of(request)
        )
        return _shown(request, key, status=202)


class RecoverView(ApiView):
    @schema.recover_workspace
    def post(self, request: Request, workspace_id: str) -> Response:
        key = _readable(request, workspace_id)
        body = body_of(request, allowed=("strategy",))
        strategy = body.get("strategy", RecoveryStrategy.REOBSERVE)
        if not isinstance(strategy, str):
            raise invalid(_("Unknown strategy."), strategy=_("Must be text."))
        services.request_recover(key, user=user_of(request), strategy=strategy, address=address_of(request))
        return _shown(request, key)


class HistoryView(ApiView):
    @schema.workspace_history
    def get(self, request: Request, workspace_id: str) -> Response:
        return Response(history_page(request, _readable(request, workspace_id)))


class LogsView(ApiView):
    @schema.workspace_logs
    def get(self, request: Request, workspace_id: str) -> Response:
        key = _readable(request, workspace_id)
        if flag_of(request, "fresh"):
            _ask_for_fresh_logs(key)
        tail = LogTail.objects.filter(workspace_id=key).values("text", "taken_at").first()
        failed = Attempt.objects.filter(workspace_id=key, state__in=[AttemptState.FAILED, AttemptState.LOST]).order_by("-queued_at", "-id")
        runs = failed.values("id", "operation", "action", "number", "state", "finished_at", "error", "log")[:_FAILED_RUNS_SHOWN]
        return Response({"ide": tail, "failed_runs": list(runs)})


def _filters(request: Request) -> list[Clause]:
    clauses: list[Clause] = []
    phases = [phase for value in request.query_params.getlist("phase") for phase in value.split(",")]
    if phases:
        if not set(phases) <= set(VISIBLE_PHASES):
            raise invalid(_("Unknown phase."), phase=_("Choose from %(choices)s.") % {"choices": ", ".join(VISIBLE_PHASES)})
        clauses.append(("w.phase = ANY(%s)", (phases,)))
    search = query_text(request, "search")
    if search:
        pattern = "%" + search.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
        clauses.append(("w.name ILIKE %s OR w.description ILIKE %s OR w.memo ILIKE %s", (pattern, pattern, pattern)))
    return clauses


def _with_whole_ttls(body: dict[str, Any]) -> dict[str, Any]:
    return {name: whole_number(value) if name.endswith("_ttl_seconds") else value for name, value in body.items()}


def _base_url(request: Request) -> str:
    return f"{request._request.scheme}://{request._request.get_host()}"


def _readable(request: Request, workspace_id: str) -> UUID:
    """The id, when the caller may read this workspace: its owner, or an operator."""
    key = workspace_id_of(workspace_id)
    user = user_of(request)
    found = Workspace.objects.visible().filter(pk=key)
    if not (found if user.is_staff else found.owned_by(user)).exists():
        raise NotFoundError(_("There is no such workspace."))
    return key


def _shown(request: Request, key: UUID, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    rows = workspace_rows([with_id(key)], base_url=_base_url(request))
    if not rows:
        raise NotFoundError(_("There is no such workspace."))
    return Response(rows[0], status=status, headers={**(headers or {}), "ETag": etag_of(rows[0]["updated_at"])})


def _ask_for_fresh_logs(key: UUID) -> None:
    """Ask the coordinator for the newest lines and give it a moment; without an answer the last ones kept are shown."""
    latest = LogTail.objects.filter(workspace_id=key).values_list("taken_at", flat=True)
    before = latest.first()
    try:
        heard = get_redis_connection("default").publish(LOGS_WANTED_CHANNEL, str(key))
    except RedisError as error:
        log.warning("fresh logs not asked for", workspace=str(key), error=str(error))
        return
    deadline = time.monotonic() + _FRESH_LOGS_WAIT
    while heard and latest.all().first() == before and time.monotonic() < deadline:
        time.sleep(0.1)
