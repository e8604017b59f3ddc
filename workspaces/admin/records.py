"""What happened, for reading: attempts, transitions, audit, alerts, leases, breakers, orphans, tokens. Strictly read-only.

The only wishes here are to confirm an orphan and to revoke a token; both go through the service layer.
"""

from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.models import LogEntry
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from knox.models import AuthToken

from workspaces import services
from workspaces.admin.base import OperatorsReadMixin, TypedAdmin, address_of, ago, badge, operator_of, size, workspace_link
from workspaces.errors import RequestError
from workspaces.models import Alert, ApiToken, Attempt, AuditEvent, Breaker, Installation, LoopLease, Orphan, Transition

# knox shows digests and offers to make tokens for anybody: neither is an operator's business.
admin.site.unregister(AuthToken)


class _RecordAdmin(OperatorsReadMixin):
    list_per_page = 50
    show_full_result_count = False


@admin.register(Attempt)
class AttemptAdmin(_RecordAdmin, TypedAdmin[Attempt]):
    list_display = ("queued_at", "of", "operation", "action", "tries", "state_badge", "step", "moved", "executor", "problem")
    list_filter = ("state", "operation", "action", "queued_at")
    search_fields = ("workspace__name", "workspace__id", "executor")
    list_select_related = ("workspace",)

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest) -> bool:
        return lookup == "workspace__id__exact" or super().lookup_allowed(lookup, value, request)

    @admin.display(description=_("workspace"))
    def of(self, attempt: Attempt) -> SafeString | str:
        return workspace_link(attempt.workspace_id, attempt.workspace.name)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Attempt]:
        return Attempt.objects.counted()

    @admin.display(description=_("Try"))
    def tries(self, attempt: Any) -> int:
        return int(attempt.tries)

    @admin.display(description=_("state"), ordering="state")
    def state_badge(self, attempt: Attempt) -> SafeString:
        return badge(attempt.state)

    @admin.display(description=_("moved"), ordering="bytes_done")
    def moved(self, attempt: Attempt) -> str:
        return size(attempt.bytes_done or None)

    @admin.display(description=_("error"))
    def problem(self, attempt: Attempt) -> str:
        return str((attempt.error or {}).get("reason", "") or "—")


@admin.register(Transition)
class TransitionAdmin(_RecordAdmin, TypedAdmin[Transition]):
    list_display = ("at", "of", "from_phase", "to_badge", "from_operation", "to_operation", "reason", "message")
    list_filter = ("to_phase", "to_operation", "reason", "at")
    search_fields = ("workspace__name", "workspace__id", "message")
    list_select_related = ("workspace",)

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest) -> bool:
        return lookup == "workspace__id__exact" or super().lookup_allowed(lookup, value, request)

    @admin.display(description=_("workspace"))
    def of(self, transition: Transition) -> SafeString | str:
        return workspace_link(transition.workspace_id, transition.workspace.name)

    @admin.display(description=_("to phase"), ordering="to_phase")
    def to_badge(self, transition: Transition) -> SafeString:
        return badge(transition.to_phase)


@admin.register(AuditEvent)
class AuditEventAdmin(_RecordAdmin, TypedAdmin[AuditEvent]):
    list_display = ("at", "actor_name", "action", "of", "address", "said")
    list_filter = ("action", "at")
    search_fields = ("actor_name", "workspace_name", "workspace_id", "address")
    search_help_text = _("Who, workspace's name or id, address")

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest) -> bool:
        return lookup == "workspace_id" or super().lookup_allowed(lookup, value, request)

    @admin.display(description=_("workspace"))
    def of(self, event: AuditEvent) -> SafeString | str:
        return workspace_link(event.workspace_id, event.workspace_name or str(event.workspace_id))

    @admin.display(description=_("detail"))
    def said(self, event: AuditEvent) -> str:
        return "; ".join(f"{name}: {value}" for name, value in event.detail.items())


@admin.register(Alert)
class AlertAdmin(_RecordAdmin, TypedAdmin[Alert]):
    list_display = ("at", "of", "reason", "message", "delivered")
    list_filter = ("reason", "at")
    search_fields = ("message", "workspace__name")
    list_select_related = ("workspace",)

    @admin.display(description=_("workspace"))
    def of(self, alert: Alert) -> SafeString | str:
        return workspace_link(alert.workspace_id, alert.workspace.name if alert.workspace else "")


@admin.register(LoopLease)
class LoopLeaseAdmin(_RecordAdmin, TypedAdmin[LoopLease]):
    list_display = ("loop", "shard", "holder", "term", "heartbeat", "last_tick_at", "last_tick_ms", "ticks", "failures", "last_error")

    def get_queryset(self, request: HttpRequest) -> QuerySet[LoopLease]:
        return super().get_queryset(request).annotate(database_now=Now())

    @admin.display(description=_("heartbeat"), ordering="heartbeat_at")
    def heartbeat(self, lease: Any) -> SafeString | str:
        return ago(lease.heartbeat_at, now=lease.database_now)


@admin.register(Breaker)
class BreakerAdmin(_RecordAdmin, TypedAdmin[Breaker]):
    list_display = ("name", "state_badge", "failures", "opened_at", "changed_at", "last_error")

    @admin.display(description=_("state"), ordering="state")
    def state_badge(self, breaker: Breaker) -> SafeString:
        return badge(breaker.state)


@admin.register(Orphan)
class OrphanAdmin(_RecordAdmin, TypedAdmin[Orphan]):
    list_display = ("kind", "name", "known", "said_size", "first_seen_at", "last_seen_at", "confirmed_at", "confirmed_by")
    list_filter = ("kind", "known", ("confirmed_at", admin.EmptyFieldListFilter))
    search_fields = ("name", "workspace_id")
    list_select_related = ("confirmed_by",)
    actions = ("confirm_removal",)

    @admin.display(description=_("size"), ordering="size")
    def said_size(self, orphan: Orphan) -> str:
        return size(orphan.size)

    @admin.action(description=_("Confirm removal of what belongs to no workspace"))
    def confirm_removal(self, request: HttpRequest, queryset: QuerySet[Orphan]) -> None:
        for orphan in queryset:
            try:
                services.request_orphan_removal(orphan.pk, user=operator_of(request), address=address_of(request))
            except RequestError as error:
                self.message_user(request, f"{orphan}: {error.message}", messages.ERROR)
            else:
                self.message_user(request, _("%(orphan)s goes with the next clean-up.") % {"orphan": orphan}, messages.SUCCESS)


@admin.register(ApiToken)
class ApiTokenAdmin(_RecordAdmin, TypedAdmin[ApiToken]):
    """Who holds tokens and whether they are used. The token itself is nowhere to be seen."""

    list_display = ("name", "holder", "created", "expiry", "last_used_at")
    search_fields = ("name", "auth_token__user__username")
    list_select_related = ("auth_token__user",)
    fields = ("name", "holder", "created", "expiry", "last_used_at")

    @admin.display(description=_("user"), ordering="auth_token__user__username")
    def holder(self, token: ApiToken) -> str:
        return str(token.auth_token.user.get_username())

    @admin.display(description=_("created"), ordering="auth_token__created")
    def created(self, token: ApiToken) -> Any:
        return token.auth_token.created

    @admin.display(description=_("expires"), ordering="auth_token__expiry")
    def expiry(self, token: ApiToken) -> Any:
        return token.auth_token.expiry


@admin.register(Installation)
class InstallationAdmin(_RecordAdmin, TypedAdmin[Installation]):
    list_display = ("id", "runtime", "engine_identity", "created_at")


@admin.register(LogEntry)
class LogEntryAdmin(_RecordAdmin, TypedAdmin[LogEntry]):
    """What was changed through these pages: users, catalogue."""

    list_display = ("action_time", "user", "content_type", "object_repr", "action_flag", "get_change_message")
    list_filter = ("action_flag", "content_type")
    list_select_related = ("user", "content_type")
    search_fields = ("object_repr", "user__username")
