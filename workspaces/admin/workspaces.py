"""Workspaces on the operators' desk: finding the broken ones, seeing why, and asking for something to be done.

Observed columns are shown and never taken from a form; what is asked for goes through the service layer, never `save()`.
"""

from typing import Any
from uuid import UUID

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_POST

from workspaces import services
from workspaces.admin import bulk
from workspaces.admin.base import OperatorsReadMixin, TypedAdmin, address_of, ago, badge, operation_badge, operator_of, reason_badge, size
from workspaces.admin.filters import AgeFilter, OwnerFilter, PhaseAgeFilter, PhaseFilter, TroubleFilter
from workspaces.admin.forms import BulkForm, WorkspaceForm
from workspaces.errors import RequestError
from workspaces.fields import DESCRIPTIVE_FIELDS
from workspaces.models import Alert, Attempt, AuditEvent, LogTail, Workspace
from workspaces.phases import ConditionKey

ASKED_FOR = (
    "id",
    "owner",
    "image",
    "desired_state",
    "recovery_strategy",
    "deleted_at",
    "last_access_at",
    "keep_awake_until",
    "created_at",
    "updated_at",
)
OBSERVED = (
    "phase",
    "phase_changed_at",
    "previous_phase",
    "operation",
    "op_started_at",
    "observed_at",
    "endpoint",
    "error_reason",
    "error_count",
    "archive_key",
    "archive_size_said",
    "archived_at",
    "archive_sha256",
    "archive_op_id",
)
_SHOWN_AT_ONCE = 25


@admin.register(Workspace)
class WorkspaceAdmin(OperatorsReadMixin, TypedAdmin[Workspace]):
    form = WorkspaceForm
    list_display = ("name", "owner", "phase_badge", "operation_badge", "reason_badge", "desired_badge", "since", "used", "image")
    list_filter = (TroubleFilter, PhaseFilter, "error_reason", "operation", "desired_state", OwnerFilter, PhaseAgeFilter, AgeFilter)
    search_fields = ("id", "name", "owner__username", "owner__email")
    search_help_text = gettext_lazy("Name, id, owner's name or e-mail")
    list_select_related = ("owner", "image")
    list_per_page = 50
    show_full_result_count = False
    ordering = ("-phase_changed_at", "id")
    actions = ("recover", "stop", "archive", "delete", "reobserve")
    readonly_fields = (*ASKED_FOR, *OBSERVED)
    fieldsets = (
        (gettext_lazy("Described by its owner"), {"fields": (*DESCRIPTIVE_FIELDS, "wish", "seen_at")}),
        (gettext_lazy("Asked for"), {"fields": ASKED_FOR, "classes": ("collapse",)}),
        (gettext_lazy("Observed by the controller (read-only)"), {"fields": OBSERVED, "classes": ("collapse",)}),
    )
    change_form_template = "admin/workspaces/workspace/change_form.html"

    def has_change_permission(self, request: HttpRequest, obj: Workspace | None = None) -> bool:
        """Descriptive fields and wishes only; of a workspace that is going, nothing."""
        return self.has_view_permission(request, obj) and (obj is None or obj.deleted_at is None)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Workspace]:
        return super().get_queryset(request).annotate(database_now=Now())

    def get_fieldsets(self, request: HttpRequest, obj: Workspace | None = None) -> Any:
        if self.has_change_permission(request, obj):
            return self.fieldsets
        described, *rest = self.fieldsets
        return ((described[0], {"fields": DESCRIPTIVE_FIELDS}), *rest)

    # --- columns -----------------------------------------------------------------------------------------------------

    @admin.display(description=gettext_lazy("phase"), ordering="phase")
    def phase_badge(self, workspace: Workspace) -> SafeString:
        return badge(workspace.phase)

    @admin.display(description=gettext_lazy("operation"), ordering="operation")
    def operation_badge(self, workspace: Workspace) -> SafeString | str:
        return operation_badge(workspace.operation)

    @admin.display(description=gettext_lazy("reason"), ordering="error_reason")
    def reason_badge(self, workspace: Workspace) -> SafeString | str:
        return reason_badge(workspace.error_reason, message=str((workspace.error_info or {}).get("message", "")))

    @admin.display(description=gettext_lazy("wanted"), ordering="desired_state")
    def desired_badge(self, workspace: Workspace) -> SafeString | str:
        return (
            badge(workspace.desired_state, tone="quiet", sign="clock")
            if workspace.desired_state != workspace.phase
            else workspace.desired_state
        )

    @admin.display(description=gettext_lazy("in phase for"), ordering="-phase_changed_at")
    def since(self, workspace: Workspace) -> SafeString | str:
        return ago(workspace.phase_changed_at, now=_now_of(workspace))

    @admin.display(description=gettext_lazy("last used"), ordering="last_access_at")
    def used(self, workspace: Workspace) -> SafeString | str:
        return ago(workspace.last_access_at, now=_now_of(workspace))

    @admin.display(description=gettext_lazy("archive size"))
    def archive_size_said(self, workspace: Workspace) -> str:
        return size(workspace.archive_size)

    # --- one workspace -----------------------------------------------------------------------------------------------

    def save_model(self, request: HttpRequest, obj: Workspace, form: Any, change: bool) -> None:
        changed = {name: form.cleaned_data[name] for name in DESCRIPTIVE_FIELDS if name in form.changed_data}
        services.request_change(
            obj.pk,
            user=operator_of(request),
            fields=changed,
            desired_state=form.cleaned_data.get("wish") or None,
            queue=True,
            if_match=form.cleaned_data.get("seen_at"),
            address=address_of(request),
        )

    def changeform_view(
        self, request: HttpRequest, object_id: str | None = None, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """The services may still refuse what the form took for good (someone was faster, a limit): say so, change nothing."""
        workspace = self.get_object(request, object_id) if object_id is not None and request.method in ("GET", "HEAD") else None
        context = {**(extra_context or {}), **(_panels(workspace) if workspace else {})}
        try:
            return super().changeform_view(request, object_id, form_url, context)
        except RequestError as error:
            self.message_user(request, error.message, messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())

    # --- many at once ------------------------------------------------------------------------------------------------

    @admin.action(description=bulk.ACTIONS["recover"].title)
    def recover(self, request: HttpRequest, queryset: QuerySet[Workspace]) -> HttpResponseBase | None:
        return self._confirm(request, queryset, bulk.ACTIONS["recover"])

    @admin.action(description=bulk.ACTIONS["stop"].title)
    def stop(self, request: HttpRequest, queryset: QuerySet[Workspace]) -> HttpResponseBase | None:
        return self._confirm(request, queryset, bulk.ACTIONS["stop"])

    @admin.action(description=bulk.ACTIONS["archive"].title)
    def archive(self, request: HttpRequest, queryset: QuerySet[Workspace]) -> HttpResponseBase | None:
        return self._confirm(request, queryset, bulk.ACTIONS["archive"])

    @admin.action(description=bulk.ACTIONS["delete"].title)
    def delete(self, request: HttpRequest, queryset: QuerySet[Workspace]) -> HttpResponseBase | None:
        return self._confirm(request, queryset, bulk.ACTIONS["delete"])

    @admin.action(description=bulk.ACTIONS["reobserve"].title)
    def reobserve(self, request: HttpRequest, queryset: QuerySet[Workspace]) -> None:
        action = bulk.ACTIONS["reobserve"]
        outcomes = bulk.run(action, queryset[: bulk.MOST_AT_ONCE], user=operator_of(request), address=address_of(request))
        self._say(request, action, outcomes)

    def get_urls(self) -> list[URLPattern]:
        own = path("ask/<slug:name>/", self.admin_site.admin_view(require_POST(self.ask_view)), name="workspaces_workspace_ask")
        return [own, *super().get_urls()]

    def ask_view(self, request: HttpRequest, name: str) -> HttpResponseBase:
        """The answer to a confirmation page, or a button on one workspace's page (which leads to that page first)."""
        action = bulk.ACTIONS.get(name)
        if action is None or not self.has_change_permission(request):
            raise PermissionDenied
        form = BulkForm(request.POST)
        if not form.is_valid():
            self.message_user(request, _("The request was incomplete. Choose the workspaces again."), messages.ERROR)
            return self._back([])
        ids: list[UUID] = form.cleaned_data["ids"]
        chosen = self.get_queryset(request).filter(pk__in=ids).select_related("owner", "image")
        strategy = form.cleaned_data["strategy"]
        confirmed = "confirmed" in request.POST or name == "reobserve"
        if not confirmed:
            return self._confirm(request, chosen, action) or self._back(ids)
        if _needs_understanding(action, strategy) and not form.cleaned_data["understood"]:
            problem = _("Data will be lost. Tick the box to say that this is what you want.")
            return self._confirm(request, chosen, action, strategy=strategy, problem=problem) or self._back(ids)
        outcomes = bulk.run(
            action,
            chosen[: bulk.MOST_AT_ONCE],
            user=operator_of(request),
            address=address_of(request),
            strategy=strategy,
            queue=form.cleaned_data["queue"],
        )
        self._say(request, action, outcomes)
        return self._back(ids)

    def _confirm(
        self, request: HttpRequest, queryset: QuerySet[Workspace], action: bulk.Action, *, strategy: str = "", problem: str = ""
    ) -> HttpResponseBase | None:
        chosen = list(queryset[: bulk.MOST_AT_ONCE + 1])
        if len(chosen) > bulk.MOST_AT_ONCE:
            self.message_user(request, _("Choose at most %(most)d workspaces at once.") % {"most": bulk.MOST_AT_ONCE}, messages.ERROR)
            return None
        context = {
            **self.admin_site.each_context(request),
            "title": action.question,
            "opts": self.model._meta,
            "action": action,
            "rows": [bulk.preview(workspace, action) for workspace in chosen],
            "ids": " ".join(str(workspace.pk) for workspace in chosen),
            "strategies": bulk.STRATEGIES if action.name == "recover" else (),
            "chosen_strategy": strategy or bulk.STRATEGIES[0].name.value,
            "needs_understanding": action.destructive or action.name == "recover",
            "problem": problem,
            "grace": bulk.grace_sentence() if action.name == "delete" else "",
        }
        return TemplateResponse(request, "admin/workspaces/workspace/confirm.html", context, status=400 if problem else 200)

    def _say(self, request: HttpRequest, action: bulk.Action, outcomes: list[bulk.Outcome]) -> None:
        level = messages.SUCCESS if all(outcome.granted for outcome in outcomes) else messages.WARNING
        self.message_user(request, bulk.results_table(action, outcomes), level)

    def _back(self, ids: list[UUID]) -> HttpResponseRedirect:
        if len(ids) == 1:
            return HttpResponseRedirect(reverse("admin:workspaces_workspace_change", args=[ids[0]]))
        return HttpResponseRedirect(reverse("admin:workspaces_workspace_changelist"))


def _now_of(workspace: Workspace) -> Any:
    return workspace.database_now  # type: ignore[attr-defined]


def _needs_understanding(action: bulk.Action, strategy: str) -> bool:
    return action.destructive or (
        action.name == "recover" and any(known.destructive for known in bulk.STRATEGIES if known.name == strategy)
    )


def _panels(workspace: Workspace) -> dict[str, Any]:
    """Everything an operator reads before deciding; a fixed number of queries, the newest rows only."""
    return {
        "title": workspace.name,
        "subtitle": None,
        "workspace": workspace,
        "database_now": _now_of(workspace),
        "conditions": [(key.value, workspace.conditions.get(key.value)) for key in ConditionKey],
        "error": workspace.error_info or {},
        "error_context": sorted(((workspace.error_info or {}).get("context") or {}).items()),
        "home": sorted(workspace.home_ctx.items()),
        "attempts": list(Attempt.objects.filter(workspace=workspace).counted()[:_SHOWN_AT_ONCE]),
        "transitions": list(workspace.transitions.all()[:_SHOWN_AT_ONCE]),
        "audit": list(AuditEvent.objects.filter(workspace_id=workspace.pk)[:_SHOWN_AT_ONCE]),
        "alerts": list(Alert.objects.filter(workspace=workspace)[:_SHOWN_AT_ONCE]),
        "log_tail": LogTail.objects.filter(workspace=workspace).first(),
        "buttons": [action for action in bulk.ACTIONS.values() if _makes_sense(action, workspace)],
    }


def _makes_sense(action: bulk.Action, workspace: Workspace) -> bool:
    if action.name == "recover":
        return workspace.phase == "ERROR" and workspace.deleted_at is None
    if action.name in ("stop", "archive"):
        wanted = "STANDBY" if action.name == "stop" else "ARCHIVED"
        return workspace.deleted_at is None and workspace.phase != "ERROR" and workspace.desired_state != wanted
    return action.name == "reobserve" or workspace.deleted_at is None
