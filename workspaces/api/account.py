"""The caller's account over HTTP: signing in and out, tokens, who I am, and the catalogue of images."""

from typing import Any
from uuid import UUID

from axes.handlers.proxy import AxesProxyHandler
from django.conf import settings
from django.contrib.auth import authenticate, logout, user_logged_in
from django.contrib.auth.models import User
from django.db.models import Count, Q
from django.utils.translation import gettext as _
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response

from workspaces import services, tokens
from workspaces.access import publish_access_changed, request_token_end
from workspaces.api import schema
from workspaces.api.authentication import credential_of
from workspaces.api.base import ApiView, address_of, user_of
from workspaces.api.errors import invalid, throttled, unauthenticated
from workspaces.api.requests import body_of, text_of, whole_number
from workspaces.errors import NotFoundError
from workspaces.models import ApiToken, Image, Installation, Workspace
from workspaces.phases import DesiredState, Phase


class LoginView(ApiView):
    """Open to everyone; failures are counted for each account and address."""

    authentication_classes = []
    permission_classes = [AllowAny]

    @schema.login
    def post(self, request: Request) -> Response:
        body = body_of(request, allowed=("username", "password"), required=("username", "password"))
        username = text_of(body, "username", max_length=150)
        password = body["password"]
        if not isinstance(password, str) or len(password) > 4096:
            raise invalid(_("password: Must be text."), password=_("Must be text."))
        user = self._authenticated(request, {"username": username, "password": password})
        made = tokens.request_login_token(user, address=address_of(request))
        return Response({"token": made.token, "expiry": made.expiry})

    def _authenticated(self, request: Request, credentials: dict[str, str]) -> User:
        django_request = request._request
        names = {"username": credentials["username"]}
        if not AxesProxyHandler.is_allowed(django_request, names):
            raise self._locked_out()
        user = authenticate(django_request, **credentials)
        if getattr(django_request, "axes_locked_out", False):
            # The middleware would put a page of its own in the place of our answer.
            django_request.axes_locked_out = False  # type: ignore[attr-defined]
            raise self._locked_out()
        if not isinstance(user, User):
            raise unauthenticated(_("The name or the password is wrong."))
        # No session is made; whoever counts failures learns of the success all the same.
        user_logged_in.send(sender=type(user), request=django_request, user=user)
        return user

    def _locked_out(self) -> Exception:
        return throttled(settings.CONFIG.login_cooloff_seconds)


class LogoutView(ApiView):
    @schema.logout
    def post(self, request: Request) -> Response:
        body_of(request, allowed=())
        credential = credential_of(request)
        if credential.kind == "token":
            request_token_end(credential.key, user_id=credential.user_id)
        else:
            logout(request._request)
            publish_access_changed(credential.user_id)
        return Response(status=204)


class TokenListView(ApiView):
    @schema.list_tokens
    def get(self, request: Request) -> Response:
        current = credential_of(request).key
        results = [_token(label, current=current) for label in tokens.tokens_of(user_of(request))]
        return Response({"next": None, "previous": None, "results": results})

    @schema.create_token
    def post(self, request: Request) -> Response:
        body = body_of(request, allowed=("name", "expires_in_days"), required=("name",))
        days = whole_number(body.get("expires_in_days"))
        if days is not None and (isinstance(days, bool) or not isinstance(days, int)):
            raise invalid(_("expires_in_days: Must be a whole number."), expires_in_days=_("Must be a whole number."))
        made = tokens.request_token(user_of(request), name=text_of(body, "name", max_length=100), days=days, address=address_of(request))
        return Response({**_token(made.label, current=""), "token": made.token}, status=201)


class TokenView(ApiView):
    @schema.revoke_token
    def delete(self, request: Request, token_id: str) -> Response:
        try:
            key = UUID(token_id)
        except ValueError:
            raise NotFoundError(_("There is no such token.")) from None
        tokens.request_revoke(key, user=user_of(request), address=address_of(request))
        return Response(status=204)


class MeView(ApiView):
    @schema.me
    def get(self, request: Request) -> Response:
        user = user_of(request)
        limits = services.limits_of(user)
        counts_as_running = Q(desired_state=DesiredState.RUNNING, deleted_at__isnull=True) & ~Q(phase=Phase.ERROR)
        usage = (
            Workspace.objects.visible()
            .owned_by(user)
            .aggregate(
                workspaces=Count("id", filter=Q(deleted_at__isnull=True)),
                running=Count("id", filter=counts_as_running),
                in_error=Count("id", filter=Q(phase=Phase.ERROR)),
            )
        )
        return Response(
            {
                "id": user.pk,
                "username": user.get_username(),
                "email": user.email,
                "is_staff": user.is_staff,
                "limits": {
                    "max_running": limits.max_running,
                    "max_running_global": limits.max_running_global,
                    "max_workspaces": limits.max_workspaces,
                },
                "usage": usage,
            }
        )


class ImageListView(ApiView):
    @schema.list_images
    def get(self, request: Request) -> Response:
        offered = Image.objects.filter(enabled=True)
        runtime = Installation.objects.values_list("runtime", flat=True).first()
        if runtime:
            offered = offered.filter(runtimes__contains=[runtime])
        rows = offered.values("name", "title", "description", "memory_mb", "cpus", "runtimes")
        results = [{**row, "cpus": float(row["cpus"]), "default": number == 0} for number, row in enumerate(rows)]
        return Response({"next": None, "previous": None, "results": results})


def _token(label: ApiToken, *, current: str) -> dict[str, Any]:
    stored = label.auth_token
    return {
        "id": label.pk,
        "name": label.name,
        "prefix": stored.token_key[:8],
        "created_at": stored.created,
        "expires_at": stored.expiry,
        "last_used_at": label.last_used_at,
        "current": stored.digest == current,
    }
