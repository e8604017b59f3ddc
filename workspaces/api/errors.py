"""Every failure of the API as `{"detail", "code", ...facts}` with its status; the one table of codes.

Maps the service layer's errors, the framework's and the unexpected to HTTP. Must not leak an exception's text to callers.
"""

import math
from typing import Any, Final

import structlog
from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.db import InterfaceError, OperationalError
from django.http import Http404
from django.utils.translation import gettext as _
from rest_framework import exceptions
from rest_framework.response import Response

from workspaces.errors import RequestError

log = structlog.get_logger(__name__)

# code -> (status, when); documented in the schema, and each one is produced by a test.
CODES: Final[dict[str, tuple[int, str]]] = {
    "invalid": (400, "The request is malformed, or a field is unknown, not yours to set, or wrong; `fields` says which and why."),
    "not_authenticated": (401, "No credential was sent, or it is wrong, expired or revoked."),
    "permission_denied": (403, "The caller is known and may not do this; also a missing or wrong CSRF token with a session cookie."),
    "not_found": (404, "Unknown, deleted, or not the caller's: indistinguishable."),
    "method_not_allowed": (405, "The address exists, the method does not; see `Allow`."),
    "operation_in_progress": (409, "Another operation runs (`operation`). Wait, or send the wish with `?queue=true`."),
    "recover_first": (409, "The workspace is in ERROR; an operator must recover it first."),
    "not_in_error": (409, "Recovery of a workspace that is not in ERROR."),
    "recovery_refused": (409, "The strategy would hide a home that is still there, or there is nothing to restore."),
    "idempotency_conflict": (409, "The `Idempotency-Key` was used with another body."),
    "stale": (412, "`If-Match` names an older version: somebody changed the workspace since."),
    "too_large": (413, "The body is larger than `API_MAX_BODY_BYTES`."),
    "unsupported_media_type": (415, "Bodies are `application/json`."),
    "limit_exceeded": (429, "A limit is reached; `running` lists the caller's workspaces that count."),
    "throttled": (429, "Too many calls, failed logins or streams; see `Retry-After`."),
    "server_error": (500, "A fault of CodeHub's; it is in the log."),
    "unavailable": (503, "The database does not answer; try again after `Retry-After`."),
}

BEARER_CHALLENGE = 'Bearer realm="CodeHub"'


class ApiError(Exception):
    """A failure of the door itself: a code of the table, a sentence, facts, and headers."""

    def __init__(self, code: str, detail: str, *, headers: dict[str, str] | None = None, **facts: Any) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.headers = headers or {}
        self.facts = facts


def invalid(detail: str, **fields: str) -> ApiError:
    """400 with what is wrong for each named field."""
    facts: dict[str, Any] = {"fields": {name: [sentence] for name, sentence in fields.items()}} if fields else {}
    return ApiError("invalid", detail, headers=None, **facts)


def unauthenticated(detail: str | None = None) -> ApiError:
    return ApiError("not_authenticated", detail or _("Sign in, or send a valid token."), headers={"WWW-Authenticate": BEARER_CHALLENGE})


def throttled(wait: float) -> ApiError:
    seconds = max(1, math.ceil(wait))
    detail = _("Too many requests. Try again in %(seconds)d seconds.") % {"seconds": seconds}
    return ApiError("throttled", detail, headers={"Retry-After": str(seconds)})


def too_large() -> ApiError:
    return ApiError("too_large", _("The body is too large."))


def as_api_error(exc: Exception) -> ApiError:
    """What a caller is told of any exception."""
    if isinstance(exc, ApiError):
        return exc
    if isinstance(exc, RequestError):
        return ApiError(exc.code, exc.message, **exc.facts)
    if isinstance(exc, exceptions.NotAuthenticated | exceptions.AuthenticationFailed):
        return unauthenticated()
    if isinstance(exc, exceptions.Throttled):
        return throttled(getattr(exc, "wait", None) or 1)
    if isinstance(exc, PermissionDenied | exceptions.PermissionDenied):
        detail = str(exc.detail) if isinstance(exc, exceptions.PermissionDenied) else _("You may not do this.")
        return ApiError("permission_denied", detail)
    if isinstance(exc, Http404 | exceptions.NotFound):
        return ApiError("not_found", _("There is nothing at this address."))
    if isinstance(exc, exceptions.MethodNotAllowed):
        return ApiError("method_not_allowed", _("This address does not know that method."))
    if isinstance(exc, exceptions.UnsupportedMediaType):
        return ApiError("unsupported_media_type", _("Send the body as application/json."))
    if isinstance(exc, exceptions.APIException):
        return ApiError("invalid", str(exc.detail))
    if isinstance(exc, RequestDataTooBig):
        return too_large()
    if isinstance(exc, OperationalError | InterfaceError):
        log.warning("database did not answer an API call", error=str(exc))
        return ApiError("unavailable", _("The database does not answer. Try again in a moment."), headers={"Retry-After": "5"})
    log.error("API call failed", exc_info=exc)
    return ApiError("server_error", _("Something went wrong here. It has been logged."))


def exception_handler(exc: Exception, context: dict[str, Any]) -> Response:
    error = as_api_error(exc)
    status, _when = CODES[error.code]
    return Response({"detail": error.detail, "code": error.code, **error.facts}, status=status, headers=error.headers)
