"""The OpenAPI description: one annotation for each call, with its parameters, answers, examples and every code it can give."""

from collections.abc import Callable, Iterable
from typing import Any, Final

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, OpenApiResponse, extend_schema

from workspaces.api import shapes
from workspaces.api.errors import CODES
from workspaces.api.pagination import DEFAULT_ORDERING, DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE, ORDERINGS
from workspaces.phases import Phase

_ALWAYS: Final = ("not_authenticated", "throttled", "server_error", "unavailable")
_BODY: Final = ("invalid", "permission_denied", "too_large", "unsupported_media_type")
_STRICT_BODIES: Final = ("WorkspaceCreate", "PatchedWorkspaceChange", "WorkspaceChange", "Recover", "Login", "TokenCreate")
_FACTS: Final[dict[str, dict[str, Any]]] = {
    "invalid": {"fields": {"phase": ["This field cannot be set."]}},
    "operation_in_progress": {"operation": "ARCHIVING"},
    "limit_exceeded": {"running": [{"id": "8e2c5f5e-6f0b-4e3b-9a6c-0b6f3c1d2a10", "name": "thesis", "phase": "RUNNING"}]},
}
_RETRY_AFTER: Final = OpenApiParameter("Retry-After", int, OpenApiParameter.HEADER, response=[429, 503], description="Seconds to wait.")
_ETAG: Final = OpenApiParameter("ETag", str, OpenApiParameter.HEADER, response=[200, 201, 202], description="Send it back in `If-Match`.")
_IF_MATCH: Final = OpenApiParameter(
    "If-Match",
    str,
    OpenApiParameter.HEADER,
    description="The `ETag` that was read last: the call is refused when the workspace was changed since.",
)
_WORKSPACE: Final = OpenApiParameter("workspace_id", {"type": "string", "format": "uuid"}, OpenApiParameter.PATH)
_QUEUE: Final = OpenApiParameter(
    "queue", bool, description="Store the wish although an operation runs; it is taken up when the operation ends."
)
_CURSOR: Final = OpenApiParameter("cursor", {"type": "string", "maxLength": 1000}, description="Opaque; follow `next` and `previous`.")
_PAGE_SIZE: Final = OpenApiParameter("page_size", {"type": "integer", "minimum": 1, "maximum": MAX_PAGE_SIZE, "default": DEFAULT_PAGE_SIZE})


def errors(*codes: str) -> dict[int, OpenApiResponse]:
    """The failures of a call, one response for each status with an example for each code."""
    by_status: dict[int, list[str]] = {}
    for code in dict.fromkeys([*codes, *_ALWAYS]):
        by_status.setdefault(CODES[code][0], []).append(code)
    return {status: _failure(found) for status, found in sorted(by_status.items())}


def _failure(codes: Iterable[str]) -> OpenApiResponse:
    described = "\n".join(f"- `{code}`: {CODES[code][1]}" for code in codes)
    examples = [
        OpenApiExample(code, value={"detail": CODES[code][1], "code": code, **_FACTS.get(code, {})}, response_only=True) for code in codes
    ]
    return OpenApiResponse(shapes.Error, description=described, examples=examples)


def _call(
    operation_id: str,
    tag: str,
    summary: str,
    *,
    answers: dict[int, Any],
    codes: tuple[str, ...] = (),
    request: Any = None,
    parameters: tuple[OpenApiParameter, ...] = (),
    examples: tuple[OpenApiExample, ...] = (),
    auth: Any = None,
    description: str = "",
) -> Callable[[Any], Any]:
    decorate: Callable[[Any], Any] = extend_schema(
        operation_id=operation_id,
        tags=[tag],
        summary=summary,
        description=description or None,
        request=request,
        responses={**answers, **errors(*codes)},
        parameters=[*parameters, _RETRY_AFTER],
        examples=list(examples),
        auth=auth,
    )
    return decorate


EXAMPLE_WORKSPACE: Final[dict[str, Any]] = {
    "id": "8e2c5f5e-6f0b-4e3b-9a6c-0b6f3c1d2a10",
    "name": "thesis",
    "description": "numbers for chapter 3",
    "memo": "",
    "owner": "ada",
    "image": "code-server",
    "phase": "RUNNING",
    "operation": "NONE",
    "desired_state": "RUNNING",
    "conditions": {
        key: {"status": status, "reason": reason, "message": "", "last_transition_time": "2026-03-01T09:00:04Z"}
        for key, status, reason in (
            ("storage.volume_ready", True, "VolumeFound"),
            ("storage.archive_ready", False, "NoArchive"),
            ("infra.container_ready", True, "Listening"),
            ("policy.healthy", True, "Healthy"),
        )
    },
    "has_archive": False,
    "archive_key": None,
    "error_reason": None,
    "error_info": None,
    "error_count": 0,
    "previous_phase": None,
    "standby_ttl_seconds": None,
    "archive_ttl_seconds": 0,
    "stops_at": "2026-03-01T09:22:10Z",
    "archives_at": None,
    "last_access_at": "2026-03-01T09:12:10Z",
    "last_activity": {"kind": "input", "at": "2026-03-01T09:12:10Z"},
    "phase_changed_at": "2026-03-01T09:00:04Z",
    "op_started_at": None,
    "progress": None,
    "archive_size": None,
    "archived_at": None,
    "observed_at": "2026-03-01T09:12:11Z",
    "created_at": "2026-03-01T09:00:00Z",
    "updated_at": "2026-03-01T09:00:00.123456Z",
    "url": "http://127.0.0.1:8000/w/8e2c5f5e-6f0b-4e3b-9a6c-0b6f3c1d2a10/",
}
_SHOWN: Final = OpenApiExample("a running workspace", value=EXAMPLE_WORKSPACE, response_only=True)

list_workspaces = _call(
    "workspaces_list",
    "workspaces",
    "List your workspaces",
    answers={
        200: OpenApiResponse(
            shapes.WorkspacePage,
            examples=[OpenApiExample("one page", value={"next": None, "previous": None, "results": [EXAMPLE_WORKSPACE]})],
        )
    },
    codes=("invalid", "permission_denied", "not_found"),
    parameters=(
        OpenApiParameter(
            "phase",
            {"type": "array", "items": {"type": "string", "enum": [phase.value for phase in Phase if phase != Phase.DELETED]}},
            description="Only these phases; repeat it, or separate them with commas.",
        ),
        OpenApiParameter(
            "search", {"type": "string", "maxLength": 200, "pattern": r"^[^\x00]*$"}, description="Found in name, description or memo."
        ),
        OpenApiParameter("ordering", {"type": "string", "enum": [*ORDERINGS], "default": DEFAULT_ORDERING}),
        OpenApiParameter("all", bool, description="Everybody's, for operators."),
        _CURSOR,
        _PAGE_SIZE,
    ),
)
create_workspace = _call(
    "workspaces_create",
    "workspaces",
    "Create a workspace",
    description="With an `Idempotency-Key` the call may be repeated: the same key and body give the same workspace.",
    request={"application/json": shapes.WorkspaceCreate},
    answers={201: OpenApiResponse(shapes.Workspace, examples=[_SHOWN])},
    codes=(*_BODY, "idempotency_conflict", "limit_exceeded"),
    parameters=(
        OpenApiParameter("Idempotency-Key", {"type": "string", "minLength": 1, "maxLength": 255}, OpenApiParameter.HEADER),
        _ETAG,
    ),
    examples=(
        OpenApiExample("a name is enough", value={"name": "thesis"}, request_only=True),
        OpenApiExample(
            "with wishes",
            value={"name": "thesis", "image": "code-server", "desired_state": "STANDBY", "standby_ttl_seconds": 3600},
            request_only=True,
        ),
    ),
)
read_workspace = _call(
    "workspaces_read",
    "workspaces",
    "Read a workspace",
    answers={200: OpenApiResponse(shapes.Workspace, examples=[_SHOWN])},
    codes=("not_found",),
    parameters=(_WORKSPACE, _ETAG),
)
change_workspace = _call(
    "workspaces_change",
    "workspaces",
    "Describe a workspace, or ask for another state",
    description=(
        "Send the `ETag` you last read as `If-Match` and the change is made only if nobody else made one since; otherwise 412 `stale`. "
        "Without the header the last writer wins."
    ),
    request={"application/json": shapes.WorkspaceChange},
    answers={200: OpenApiResponse(shapes.Workspace, examples=[_SHOWN])},
    codes=(*_BODY, "not_found", "operation_in_progress", "recover_first", "stale", "limit_exceeded"),
    parameters=(_WORKSPACE, _QUEUE, _IF_MATCH, _ETAG),
    examples=(
        OpenApiExample("stop it", value={"desired_state": "STANDBY"}, request_only=True),
        OpenApiExample("archive it", value={"desired_state": "ARCHIVED"}, request_only=True),
        OpenApiExample("rename it", value={"name": "thesis, second try"}, request_only=True),
    ),
)
delete_workspace = _call(
    "workspaces_delete",
    "workspaces",
    "Delete a workspace with its home and archives",
    description="Answers at once; the workspace reads as DELETING until everything is gone, then as 404.",
    answers={202: OpenApiResponse(shapes.Workspace, examples=[_SHOWN])},
    codes=("invalid", "permission_denied", "not_found", "operation_in_progress", "stale"),
    parameters=(_WORKSPACE, _QUEUE, _IF_MATCH, _ETAG),
)
recover_workspace = _call(
    "workspaces_recover",
    "workspaces",
    "Recover a workspace from ERROR (operators)",
    request={"application/json": shapes.Recover},
    answers={200: OpenApiResponse(shapes.Workspace, examples=[_SHOWN])},
    codes=(*_BODY, "not_found", "not_in_error", "recovery_refused"),
    parameters=(_WORKSPACE, _ETAG),
    examples=(OpenApiExample("look again", value={"strategy": "reobserve"}, request_only=True),),
)
workspace_history = _call(
    "workspaces_history",
    "workspaces",
    "What happened to a workspace, newest first",
    answers={200: shapes.HistoryPage},
    codes=("invalid", "not_found"),
    parameters=(_WORKSPACE, _CURSOR, _PAGE_SIZE),
)
workspace_logs = _call(
    "workspaces_logs",
    "workspaces",
    "The last lines of its IDE and of failed runs",
    answers={200: shapes.Logs},
    codes=("invalid", "not_found"),
    parameters=(_WORKSPACE, OpenApiParameter("fresh", bool, description="Wait a moment for the newest lines.")),
)
login = _call(
    "auth_login",
    "account",
    "Sign in with a password for a token",
    request={"application/json": shapes.Login},
    answers={200: shapes.NewLogin},
    codes=("invalid", "too_large", "unsupported_media_type"),
    auth=[],
)
logout = _call(
    "auth_logout",
    "account",
    "End the token or session of this call",
    answers={204: OpenApiResponse(description="Done.")},
    codes=_BODY,
)
list_tokens = _call("tokens_list", "account", "Your tokens", answers={200: shapes.TokenPage})
create_token = _call(
    "tokens_create",
    "account",
    "Make a token; it is shown this once",
    request={"application/json": shapes.TokenCreate},
    answers={201: shapes.NewToken},
    codes=(*_BODY, "limit_exceeded"),
)
revoke_token = _call(
    "tokens_revoke",
    "account",
    "Revoke a token",
    answers={204: OpenApiResponse(description="Done.")},
    codes=("permission_denied", "not_found"),
    parameters=(OpenApiParameter("token_id", {"type": "string", "format": "uuid"}, OpenApiParameter.PATH),),
)
me = _call("me", "account", "Who you are, what you may have and what you have", answers={200: shapes.Me})
list_images = _call("images_list", "catalogue", "What a workspace may run", answers={200: shapes.ImagePage})
_EVENT: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "description": "Send the last one back as `Last-Event-ID`."},
        "event": {"type": "string", "enum": ["workspace_updated", "workspace_deleted", "heartbeat"]},
        "data": {"type": "string", "description": "JSON: the workspace, the `id` of one that is gone, or an empty object."},
    },
    "required": ["event", "data"],
}
events = _call(
    "events",
    "live",
    "Live events of your workspaces",
    description=(
        "A stream of `text/event-stream`. First every workspace as `workspace_updated`, then changes as they happen: `workspace_updated` "
        'with the whole object, `workspace_deleted` with `{"id"}`, and `heartbeat` with `{}`. The stream ends when the caller\'s session or '
        "token does. `Last-Event-ID` is accepted; the current state is sent again either way."
    ),
    answers={(200, "text/event-stream"): OpenApiResponse(_EVENT, description="The stream, event by event.")},  # type: ignore[dict-item]
    parameters=(OpenApiParameter("Last-Event-ID", str, OpenApiParameter.HEADER),),
)
openapi = _call("schema", "about", "This description, as OpenAPI 3", answers={200: OpenApiResponse({"type": "object"})})


class TokenScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = "workspaces.api.authentication.TokenAuthentication"
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "description": "`Authorization: Bearer <token>`"}


class SessionScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = "workspaces.api.authentication.SessionAuthentication"
    name = "session"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {
            "type": "apiKey",
            "in": "cookie",
            "name": "codehub_session",
            "description": "The dashboard's session; changes need `X-CSRFToken` as well.",
        }


def finish_document(result: dict[str, Any], **_kwargs: Any) -> dict[str, Any]:
    """Addresses without the optional slash; and unknown fields in a body are refused, which the schema says too."""
    result["paths"] = {path.rstrip("/"): calls for path, calls in result["paths"].items()}
    for name, component in result["components"]["schemas"].items():
        if name in _STRICT_BODIES:
            component["additionalProperties"] = False
    return result
