"""How an operator narrows the list of workspaces: by state, by trouble, by owner, by age. Reads only."""

from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from workspaces.models import Workspace
from workspaces.phases import Operation, Phase

STUCK_AFTER = timedelta(minutes=15)


def needs_a_person() -> Q:
    """ERROR, or a deletion that keeps failing."""
    return Q(phase=Phase.ERROR) | Q(deleted_at__isnull=False, error_reason__isnull=False) & ~Q(phase=Phase.DELETED)


def stuck() -> Q:
    """Nothing has come of a wish or an operation for a long time, although nobody called it an error."""
    operating = ~Q(operation=Operation.NONE) & Q(op_started_at__lt=Now() - STUCK_AFTER)
    waiting = Q(operation=Operation.NONE, updated_at__lt=Now() - STUCK_AFTER) & ~Q(desired_state=F("phase"))
    return (operating | waiting) & ~Q(phase__in=[Phase.ERROR, Phase.DELETED])


class PhaseFilter(admin.SimpleListFilter):
    """Like a filter by phase, but deleted workspaces stay out of the way until asked for."""

    title = _("phase")
    parameter_name = "phase"
    always_open = True

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [*((phase.value, phase.value) for phase in Phase), ("any", _("All, with deleted"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Workspace]) -> QuerySet[Workspace]:
        value = self.value()
        if value is None:
            return queryset.exclude(phase=Phase.DELETED)
        return queryset if value == "any" else queryset.filter(phase=value)


class TroubleFilter(admin.SimpleListFilter):
    title = _("trouble")
    parameter_name = "trouble"
    always_open = True

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("person", _("Needs a person")), ("stuck", _("Stuck for 15 minutes")), ("unseen", _("Never observed"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Workspace]) -> QuerySet[Workspace]:
        match self.value():
            case "person":
                return queryset.filter(needs_a_person())
            case "stuck":
                return queryset.filter(stuck())
            case "unseen":
                return queryset.filter(observed_at__isnull=True)
        return queryset


class _AgeFilter(admin.SimpleListFilter):
    column: str

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [
            ("lt-hour", _("Less than an hour")),
            ("gt-hour", _("More than an hour")),
            ("gt-day", _("More than a day")),
            ("gt-week", _("More than a week")),
            ("gt-month", _("More than 30 days")),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Workspace]) -> QuerySet[Workspace]:
        spans = {"hour": timedelta(hours=1), "day": timedelta(days=1), "week": timedelta(weeks=1), "month": timedelta(days=30)}
        side, _dash, span = (self.value() or "").partition("-")
        if side not in ("lt", "gt") or span not in spans:
            return queryset
        return queryset.filter(**{f"{self.column}__{'gt' if side == 'lt' else 'lt'}": Now() - spans[span]})


class PhaseAgeFilter(_AgeFilter):
    title = _("time in this phase")
    parameter_name = "phase_age"
    column = "phase_changed_at"


class AgeFilter(_AgeFilter):
    title = _("age")
    parameter_name = "age"
    column = "created_at"


class OwnerFilter(admin.SimpleListFilter):
    """A field to type a name into: a list of links would be as long as the list of users."""

    title = _("owner")
    parameter_name = "owner_name"
    template = "admin/codehub/text_filter.html"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("", "")]

    def choices(self, changelist: ChangeList) -> Any:
        others = [
            (key, value)
            for key, values in changelist.get_filters_params().items()
            for value in _as_list(values)
            if key != self.parameter_name
        ]
        yield {"others": others, "value": self.value() or "", "clear": changelist.get_query_string(remove=[self.parameter_name])}

    def queryset(self, request: HttpRequest, queryset: QuerySet[Workspace]) -> QuerySet[Workspace]:
        value = (self.value() or "").replace("\0", "").strip()
        return queryset.filter(owner__username__iexact=value) if value else queryset

    def get_facet_counts(self, pk_attname: str, filtered_qs: QuerySet[Any]) -> dict[str, Any]:
        return {}


def _as_list(values: Any) -> list[str]:
    return list(values) if isinstance(values, list | tuple) else [values]
