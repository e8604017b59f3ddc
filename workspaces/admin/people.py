"""Users on the operators' desk: invitations instead of passwords, limits, and shutting someone out at once.

Only superusers touch superusers or hand out rights: otherwise changing a user would be a way to become one.
"""

from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin, messages
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.models import User
from django.contrib.auth.tokens import default_token_generator
from django.db import transaction
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.encoding import force_bytes
from django.utils.html import format_html
from django.utils.http import urlsafe_base64_encode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from workspaces import services
from workspaces.access import request_logout_everywhere
from workspaces.admin.base import TypedAdmin, address_of, operator_of
from workspaces.models import UserProfile
from workspaces.phases import DesiredState, Phase

if TYPE_CHECKING:
    _UserForm = forms.ModelForm[User]
    _ProfileForm = forms.ModelForm[UserProfile]
    _UserAdmin = UserAdmin[User]
    _ProfileInline = admin.StackedInline[UserProfile, User]
else:
    _UserForm = forms.ModelForm
    _ProfileForm = forms.ModelForm
    _UserAdmin = UserAdmin
    _ProfileInline = admin.StackedInline

_RIGHTS = ("is_staff", "is_superuser", "groups", "user_permissions")


class InviteForm(_UserForm):
    """A new user without a password: the invitation's link lets its holder choose one."""

    class Meta:
        model = User
        fields = ("username", "email", "first_name", "last_name", "is_staff")

    def save(self, commit: bool = True) -> User:
        user = super().save(commit=False)
        user.set_unusable_password()
        if commit:
            user.save()
            self.save_m2m()
        return user


class ProfileForm(_ProfileForm):
    class Meta:
        model = UserProfile
        fields = ("max_running", "max_workspaces", "language", "theme")
        labels = {
            "max_running": gettext_lazy("Most running"),
            "max_workspaces": gettext_lazy("Most workspaces"),
            "language": gettext_lazy("Language"),
            "theme": gettext_lazy("Theme"),
        }


class ProfileInline(_ProfileInline):
    model = UserProfile
    form = ProfileForm
    can_delete = False
    verbose_name = gettext_lazy("Limits and tastes")
    verbose_name_plural = gettext_lazy("Limits and tastes")


admin.site.unregister(User)


@admin.register(User)
class PeopleAdmin(_UserAdmin, TypedAdmin[User]):
    add_form = InviteForm
    add_fieldsets = (
        (
            None,
            {
                "fields": ("username", "email", "first_name", "last_name", "is_staff"),
                "description": gettext_lazy("No password is set here: an invitation link is shown when you save."),
            },
        ),
    )
    inlines = (ProfileInline,)
    readonly_fields = ("last_login", "date_joined")
    # Plain lists: Django's two-column chooser can be used neither by everyone nor on a phone.
    filter_horizontal = ()
    list_display = ("username", "email", "is_active", "is_staff", "owned", "running", "last_login")
    list_filter = ("is_active", "is_staff", "is_superuser")
    actions = ("invite", "disable", "enable")

    def get_queryset(self, request: HttpRequest) -> QuerySet[User]:
        live = ~Q(workspaces__phase=Phase.DELETED)
        wanted = live & Q(workspaces__desired_state=DesiredState.RUNNING)
        return super().get_queryset(request).annotate(owned=Count("workspaces", filter=live), running=Count("workspaces", filter=wanted))

    @admin.display(description=gettext_lazy("workspaces"), ordering="owned")
    def owned(self, user: Any) -> int:
        return int(user.owned)

    @admin.display(description=gettext_lazy("wanted running"), ordering="running")
    def running(self, user: Any) -> int:
        return int(user.running)

    # --- rights ------------------------------------------------------------------------------------------------------

    def has_change_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        return super().has_change_permission(request, obj) and _may_touch(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        return super().has_delete_permission(request, obj) and _may_touch(request, obj)

    def get_readonly_fields(self, request: HttpRequest, obj: User | None = None) -> Any:
        shown = super().get_readonly_fields(request, obj)
        return shown if request.user.is_superuser else (*shown, *_RIGHTS)

    def get_fieldsets(self, request: HttpRequest, obj: User | None = None) -> Any:
        if obj is None and not request.user.is_superuser:
            return ((None, {"fields": ("username", "email", "first_name", "last_name")}),)
        return super().get_fieldsets(request, obj)

    # --- writes ------------------------------------------------------------------------------------------------------

    def save_model(self, request: HttpRequest, obj: User, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        _audit(request, "change_user" if change else "add_user", obj, fields=sorted(form.changed_data))
        if not change:
            self._show_invitation(request, obj)
        if change and ("is_active" in form.changed_data and not obj.is_active):
            transaction.on_commit(lambda: request_logout_everywhere(obj))

    def user_change_password(self, request: HttpRequest, id: str, form_url: str = "") -> Any:  # noqa: A002 - Django's name
        response = super().user_change_password(request, id, form_url)
        user = self.get_object(request, id)
        if request.method == "POST" and response.status_code == 302 and user is not None:
            # A password is changed because the old one may be known: whoever came in with it goes.
            request_logout_everywhere(user, keep_session=request.session.session_key if user.pk == request.user.pk else None)
            _audit(request, "set_password", user)
        return response

    # --- many at once ------------------------------------------------------------------------------------------------

    @admin.action(description=gettext_lazy("Show an invitation link"), permissions=["change"])
    def invite(self, request: HttpRequest, queryset: QuerySet[User]) -> None:
        for user in queryset:
            if not self._allowed(request, user):
                continue
            if not user.is_active:
                self.message_user(request, _("%(user)s is disabled: enable the account first.") % {"user": user}, messages.ERROR)
                continue
            self._show_invitation(request, user)
            _audit(request, "invite_user", user)

    @admin.action(description=gettext_lazy("Disable, and end sessions and tokens"), permissions=["change"])
    def disable(self, request: HttpRequest, queryset: QuerySet[User]) -> None:
        for user in queryset:
            if not self._allowed(request, user):
                continue
            if user.pk == request.user.pk:
                self.message_user(request, _("You can't disable yourself."), messages.ERROR)
                continue
            with transaction.atomic():
                User.objects.filter(pk=user.pk).update(is_active=False)
                _audit(request, "disable_user", user)
            ended = request_logout_everywhere(user)
            said = _("%(user)s is disabled; %(count)d sessions and tokens were ended. Workspaces go on as they are.") % {
                "user": user,
                "count": ended,
            }
            self.message_user(request, said, messages.SUCCESS)

    @admin.action(description=gettext_lazy("Enable"), permissions=["change"])
    def enable(self, request: HttpRequest, queryset: QuerySet[User]) -> None:
        for user in queryset:
            if self._allowed(request, user):
                with transaction.atomic():
                    User.objects.filter(pk=user.pk).update(is_active=True)
                    _audit(request, "enable_user", user)
                self.message_user(request, _("%(user)s is enabled.") % {"user": user}, messages.SUCCESS)

    def _allowed(self, request: HttpRequest, user: User) -> bool:
        if self.has_change_permission(request, user):
            return True
        self.message_user(request, _("%(user)s: only a superuser may do that.") % {"user": user}, messages.ERROR)
        return False

    def _show_invitation(self, request: HttpRequest, user: User) -> None:
        link = invitation_link(request, user)
        if link is None:
            self.message_user(
                request, _("This site has no invitation page. Set a password for %(user)s instead.") % {"user": user}, messages.WARNING
            )
            return
        self.message_user(
            request,
            format_html(
                '{} <code class="ch-copy">{}</code>',
                _("Give this link to %(user)s. It is shown once and lets its holder choose the password:") % {"user": user},
                link,
            ),
            messages.SUCCESS,
        )


def invitation_link(request: HttpRequest, user: User) -> str | None:
    """A link that ends working with its first use, or None where the dashboard has no such page."""
    try:
        address = reverse("invite", args=[urlsafe_base64_encode(force_bytes(user.pk)), default_token_generator.make_token(user)])
    except NoReverseMatch:
        return None
    return request.build_absolute_uri(address)


def _may_touch(request: HttpRequest, user: User | None) -> bool:
    return user is None or not user.is_superuser or request.user.is_superuser


def _audit(request: HttpRequest, action: str, user: User, **detail: Any) -> None:
    services.record_operator_act(user=operator_of(request), action=action, address=address_of(request), about=user.get_username(), **detail)
