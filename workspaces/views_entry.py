"""The doors before one is inside: sign in and out, an invitation, the first administrator, language and theme.

Nothing here knows workspaces. Where a caller wants to go next is followed only on this host.
"""

import hmac
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth import get_user_model, login
from django.contrib.auth.forms import SetPasswordForm
from django.contrib.auth.hashers import is_password_usable
from django.contrib.auth.models import User
from django.contrib.auth.tokens import default_token_generator
from django.contrib.auth.views import LoginView, LogoutView
from django.db import connection, transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.decorators import method_decorator
from django.utils.encoding import force_bytes
from django.utils.http import url_has_allowed_host_and_scheme, urlsafe_base64_decode, urlsafe_base64_encode
from django.utils.translation import check_for_language
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from codehub.config import generated_secret
from workspaces.access import publish_access_changed
from workspaces.forms import WelcomeForm
from workspaces.middleware import THEME_COOKIE, THEMES
from workspaces.models import AuditEvent, UserProfile

_YEAR = 365 * 86400
_BACKEND = "django.contrib.auth.backends.ModelBackend"
# First half of the advisory lock under which the first administrator is made; the services use another.
_WELCOME_LOCK = (0x43_48_03, 1)


class SignInView(LoginView):
    template_name = "registration/login.html"
    redirect_authenticated_user = True

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if request.method == "GET" and not has_administrator():
            return redirect("welcome")
        return super().dispatch(request, *args, **kwargs)


class SignOutView(LogoutView):
    http_method_names = ("post", "options")

    @method_decorator(never_cache)
    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        user_id = request.user.pk
        response = super().post(request, *args, **kwargs)
        if user_id is not None:
            publish_access_changed(user_id)
        return response


@require_GET
@never_cache
def session_probe(request: HttpRequest) -> HttpResponse:
    """Whether the caller is still signed in: 204 or 401. For pages whose live connection is refused."""
    return HttpResponse(status=204 if request.user.is_authenticated else 401)


@require_POST
def preferences(request: HttpRequest) -> HttpResponse:
    """Language and theme from anywhere: kept with the user when signed in, in cookies otherwise."""
    back = request.POST.get("next", "")
    if not url_has_allowed_host_and_scheme(back, allowed_hosts={request.get_host()}, require_https=request.is_secure()):
        back = reverse("dashboard")
    response = redirect(back)
    changes: dict[str, str] = {}
    language, theme = request.POST.get("language", ""), request.POST.get("theme", "")
    if language in dict(settings.LANGUAGES) and check_for_language(language):
        changes["language"] = language
        response.set_cookie(settings.LANGUAGE_COOKIE_NAME, language, max_age=_YEAR, samesite="Lax", secure=settings.CONFIG.is_https)
    if theme in THEMES:
        changes["theme"] = theme
        response.set_cookie(THEME_COOKIE, theme, max_age=_YEAR, samesite="Lax", secure=settings.CONFIG.is_https)
    if changes and request.user.is_authenticated:
        UserProfile.objects.update_or_create(user_id=request.user.pk, defaults=changes)
    return response


def invite_path(user: User) -> str:
    """The one-time address at which a new user chooses a password. It dies with its first use and with time."""
    uid = urlsafe_base64_encode(force_bytes(user.pk))
    return reverse("invite", args=[uid, default_token_generator.make_token(user)])


@sensitive_post_parameters()
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def invite(request: HttpRequest, uidb64: str, token: str) -> HttpResponse:
    user = _invited(uidb64)
    if user is None or not default_token_generator.check_token(user, token):
        return render(request, "registration/invite_gone.html", status=404)
    form: SetPasswordForm[Any] = SetPasswordForm(user, request.POST or None)
    if request.method == "POST" and form.is_valid():
        form.save()
        AuditEvent.objects.create(actor=user, actor_name=user.get_username(), action="invite_accepted")
        login(request, user, backend=_BACKEND)
        messages.success(request, _("Welcome, {name}. Your password is set.").format(name=user.get_username()))
        return redirect("dashboard")
    status = 400 if request.method == "POST" else 200
    return render(request, "registration/invite.html", {"form": form, "invited": user}, status=status)


def _invited(uidb64: str) -> User | None:
    try:
        pk = int(urlsafe_base64_decode(uidb64).decode())
    except (ValueError, UnicodeDecodeError, OverflowError):
        return None
    if not 0 < pk < 2**63:
        return None
    return get_user_model().objects.filter(pk=pk, is_active=True).first()


def has_administrator() -> bool:
    """Whether anybody can administer this installation already."""
    hashes = get_user_model().objects.filter(is_superuser=True, is_active=True).values_list("password", flat=True)
    return any(is_password_usable(encoded) for encoded in hashes if encoded)


@sensitive_post_parameters()
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def welcome(request: HttpRequest) -> HttpResponse:
    """The first administrator. Closed as soon as there is one; opened only with the token kept on the server's disk."""
    if has_administrator():
        raise Http404
    token = generated_secret(settings.CONFIG.codehub_data_dir / "setup-token")
    form = WelcomeForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        if not hmac.compare_digest(form.cleaned_data["setup_token"].strip().encode(), token.encode()):
            form.add_error("setup_token", _("This is not the setup token."))
        else:
            user = _first_administrator(form.cleaned_data["username"], form.cleaned_data["password"])
            login(request, user, backend=_BACKEND)
            return redirect("dashboard")
    return render(request, "registration/welcome.html", {"form": form}, status=400 if request.method == "POST" else 200)


def _first_administrator(username: str, password: str) -> User:
    with transaction.atomic():
        with connection.cursor() as cursor:
            # Two browsers at once must not make two administrators.
            cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", _WELCOME_LOCK)
        if has_administrator():
            raise Http404
        user, _created = get_user_model().objects.get_or_create(username=username)
        user.is_staff = user.is_superuser = user.is_active = True
        user.set_password(password)
        user.save()
        AuditEvent.objects.create(actor=user, actor_name=username, action="first_administrator")
    return user
