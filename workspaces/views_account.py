"""A user's own matters: password, language and theme, API tokens, and where they are signed in.

Whatever ends a credential here also tells open streams to look again. A token's value is shown once and kept nowhere.
"""

from uuid import UUID

from django.contrib import messages
from django.contrib.auth import update_session_auth_hash
from django.contrib.auth.decorators import login_required
from django.contrib.auth.forms import PasswordChangeForm
from django.contrib.sessions.models import Session
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_GET, require_POST

from workspaces.access import client_address, publish_access_changed, request_logout_everywhere
from workspaces.errors import NotFoundError, RequestError
from workspaces.forms import PreferencesForm, TokenForm
from workspaces.models import AuditEvent, UserProfile, UserSession
from workspaces.tokens import request_revoke, request_token, tokens_of
from workspaces.views import signed_in


@login_required
@require_GET
@never_cache
def account(request: HttpRequest) -> HttpResponse:
    return _page(request)


@sensitive_post_parameters()
@login_required
@require_POST
def change_password(request: HttpRequest) -> HttpResponse:
    user = signed_in(request)
    form = PasswordChangeForm(user, request.POST)
    if not form.is_valid():
        return _page(request, password_form=form, status=400)
    form.save()
    update_session_auth_hash(request, user)
    request_logout_everywhere(user, keep_session=request.session.session_key)
    _audit(request, "password_changed")
    messages.success(request, _("Your password is changed. Other sessions and all tokens have ended."))
    return redirect("account")


@login_required
@require_POST
def save_preferences(request: HttpRequest) -> HttpResponse:
    profile, _created = UserProfile.objects.get_or_create(user=signed_in(request))
    form = PreferencesForm(request.POST, instance=profile)
    if not form.is_valid():
        return _page(request, preferences_form=form, status=400)
    form.save()
    messages.success(request, _("Saved."))
    return redirect("account")


@login_required
@require_POST
@never_cache
def create_token(request: HttpRequest) -> HttpResponse:
    user = signed_in(request)
    form = TokenForm(request.POST)
    if not form.is_valid():
        return _page(request, token_form=form, status=400)
    try:
        made = request_token(user, name=form.cleaned_data["name"], days=form.cleaned_data["days"], address=client_address(request))
    except RequestError as error:
        form.add_error(None, error.message)
        return _page(request, token_form=form, status=400)
    # Shown in this answer and never again, so there is nothing to redirect to.
    return _page(request, new_token=made.token)


@login_required
@require_POST
def revoke_token(request: HttpRequest, token_id: UUID) -> HttpResponse:
    user = signed_in(request)
    try:
        request_revoke(token_id, user=user, address=client_address(request))
    except NotFoundError as error:
        raise Http404 from error
    messages.success(request, _("The token is revoked."))
    return redirect("account")


@login_required
@require_POST
def end_session(request: HttpRequest, session_id: int) -> HttpResponse:
    user = signed_in(request)
    found = UserSession.objects.filter(pk=session_id, user=user).first()
    if found is None or found.session_key == request.session.session_key:
        raise Http404
    Session.objects.filter(session_key=found.session_key).delete()
    found.delete()
    publish_access_changed(user.pk)
    _audit(request, "session_ended")
    messages.success(request, _("That session has ended."))
    return redirect("account")


@login_required
@require_POST
def end_other_sessions(request: HttpRequest) -> HttpResponse:
    user = signed_in(request)
    others = UserSession.objects.filter(user=user).exclude(session_key=request.session.session_key)
    Session.objects.filter(session_key__in=others.values("session_key")).delete()
    others.delete()
    publish_access_changed(user.pk)
    _audit(request, "sessions_ended")
    messages.success(request, _("All other sessions have ended."))
    return redirect("account")


def _page(
    request: HttpRequest,
    *,
    password_form: PasswordChangeForm | None = None,
    preferences_form: PreferencesForm | None = None,
    token_form: TokenForm | None = None,
    new_token: str = "",
    status: int = 200,
) -> HttpResponse:
    user = signed_in(request)
    now = timezone.now()
    profile, _created = UserProfile.objects.get_or_create(user=user)
    live = Session.objects.filter(expire_date__gt=now)
    context = {
        "password_form": _without_autofocus(password_form or PasswordChangeForm(user, auto_id="password-%s")),
        "preferences_form": preferences_form or PreferencesForm(instance=profile, auto_id="preferences-%s"),
        "token_form": token_form or TokenForm(auto_id="token-%s"),
        "new_token": new_token,
        "tokens": tokens_of(user),
        "sessions": UserSession.objects.filter(user=user, session_key__in=live.values("session_key")),
        "current_session": request.session.session_key,
        "section": "account",
    }
    return render(request, "account/account.html", context, status=status)


def _without_autofocus(form: PasswordChangeForm) -> PasswordChangeForm:
    # Django puts the cursor there; on a page with more than a password that would be a surprise.
    form.fields["old_password"].widget.attrs.pop("autofocus", None)
    return form


def _audit(request: HttpRequest, action: str, **detail: str) -> None:
    user = signed_in(request)
    AuditEvent.objects.create(actor=user, actor_name=user.get_username(), action=action, address=client_address(request), detail=detail)
