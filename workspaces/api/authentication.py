"""Who calls the API: a Bearer token, or a session cookie with CSRF protection.

A token that was presented is never ignored in favour of a cookie. Nothing here answers: failures become 401 or 403 elsewhere.
"""

from typing import Any

from django.contrib.auth.models import User
from rest_framework.authentication import BaseAuthentication, CSRFCheck
from rest_framework.exceptions import AuthenticationFailed, PermissionDenied
from rest_framework.request import Request

from workspaces.access import Credential, bearer_token, user_of_token
from workspaces.api.errors import BEARER_CHALLENGE


class TokenAuthentication(BaseAuthentication):
    """`Authorization: Bearer <token>`. Any other scheme is refused, not skipped: the caller meant to authenticate with it."""

    def authenticate(self, request: Request) -> tuple[User, Credential] | None:
        if "HTTP_AUTHORIZATION" not in request.META:
            return None
        token = bearer_token(request._request)
        found = user_of_token(token) if token is not None else None
        if found is None:
            raise AuthenticationFailed
        return found

    def authenticate_header(self, request: Request) -> str:
        return BEARER_CHALLENGE


class SessionAuthentication(BaseAuthentication):
    """The session Django's middleware found; requests that change something need the CSRF token."""

    def authenticate(self, request: Request) -> tuple[Any, Credential] | None:
        user = getattr(request._request, "user", None)
        if user is None or not user.is_active:
            return None
        check = CSRFCheck(lambda _request: None)  # type: ignore[arg-type]
        check.process_request(request._request)
        reason = check.process_view(request._request, None, (), {})  # type: ignore[arg-type]
        if reason:
            raise PermissionDenied(f"CSRF: {reason}")
        return user, Credential(kind="session", key=request._request.session.session_key or "", user_id=user.pk)


def credential_of(request: Request) -> Credential:
    """What the (authenticated) caller presented."""
    credential = request.auth
    assert isinstance(credential, Credential)  # noqa: S101 - both authenticators above give one
    return credential
