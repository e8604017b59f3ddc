"""The operators' overview: what is broken, what is being done, who leads, what lies about. One page, a fixed number of queries.

Reads only, but for confirming orphans, which goes through the service layer.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db.models import Count, Prefetch, Q, Sum
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_POST

from codehub.adminsite import operators_site
from workspaces import services
from workspaces.admin.base import address_of, operator_of
from workspaces.admin.filters import needs_a_person, stuck
from workspaces.errors import RequestError
from workspaces.models import Alert, Attempt, Breaker, Installation, LoopLease, Orphan, Workspace
from workspaces.phases import DesiredState, Operation, Phase

_ROWS = 15
_HEARTBEAT_STALE = timedelta(seconds=15)
LOOPS = ("events", "reconcile", "ttl", "gc")


@dataclass(frozen=True, slots=True)
class LoopHealth:
    """A loop as its lease tells it. `trouble` is empty while it is well."""

    lease: LoopLease | None
    loop: str
    trouble: str


@dataclass(frozen=True, slots=True)
class OrphanRow:
    orphan: Orphan
    fate: str
    confirmable: bool


def loop_health(leases: list[LoopLease], *, now: datetime) -> list[LoopHealth]:
    """Every loop there should be, led or not."""
    found = [LoopHealth(lease, lease.loop, _trouble(lease, now=now)) for lease in leases]
    missing = [loop for loop in LOOPS if loop not in {lease.loop for lease in leases}]
    return found + [LoopHealth(None, loop, _("Nobody has ever led this loop. Is a coordinator running?")) for loop in missing]


def _trouble(lease: LoopLease, *, now: datetime) -> str:
    if not lease.holder:
        return _("Nobody leads this loop.")
    if lease.heartbeat_at is None or now - lease.heartbeat_at > _HEARTBEAT_STALE:
        return _("The leader's heartbeat is stale.")
    return ""


def orphan_row(orphan: Orphan, *, now: datetime) -> OrphanRow:
    """What will become of it, and when."""
    grace_ends = orphan.first_seen_at + timedelta(seconds=settings.CONFIG.gc_grace_seconds)
    if not orphan.known and orphan.confirmed_at is None:
        return OrphanRow(orphan, _("Belongs to no workspace: waits for an operator."), confirmable=True)
    if grace_ends > now:
        minutes = int((grace_ends - now).total_seconds() // 60) + 1
        return OrphanRow(
            orphan, _("Goes with the first clean-up after %(minutes)d min of grace.") % {"minutes": minutes}, confirmable=False
        )
    return OrphanRow(orphan, _("Goes with the next clean-up."), confirmable=False)


def gather(*, now: datetime) -> dict[str, Any]:
    """Everything on the page. The number of queries does not depend on what there is."""
    counted = Workspace.objects.values("phase").annotate(count=Count("pk"))
    by_phase = {row["phase"]: row["count"] for row in counted}
    running_attempts = Prefetch("attempts", Attempt.objects.filter(finished_at__isnull=True), to_attr="current_attempts")
    operating = Workspace.objects.exclude(operation=Operation.NONE).for_display().order_by("op_started_at")
    orphan_sums = Orphan.objects.values("known").annotate(count=Count("pk"), bytes=Sum("size"))
    sums = {row["known"]: row for row in orphan_sums}
    wanted_running = Q(workspaces__desired_state=DesiredState.RUNNING, workspaces__deleted_at__isnull=True) & ~Q(
        workspaces__phase=Phase.ERROR
    )
    busiest = (
        User.objects.filter(wanted_running).annotate(running=Count("workspaces")).select_related("profile").order_by("-running", "username")
    )
    attempts = Attempt.objects.filter(finished_at__gt=now - timedelta(days=1)).values("operation", "state").annotate(count=Count("pk"))
    reasons = Workspace.objects.filter(needs_a_person()).values("error_reason").annotate(count=Count("pk")).order_by("-count")
    limit = settings.CONFIG.limit_max_running_global
    running = Workspace.objects.counted_as_running().count()
    return {
        "now": now,
        "installation": Installation.objects.first(),
        "phases": [(phase.value, by_phase.get(phase.value, 0)) for phase in Phase],
        "reasons": list(reasons),
        "operating": list(operating.prefetch_related(running_attempts)[:_ROWS]),
        "broken": list(Workspace.objects.filter(needs_a_person()).for_display().order_by("phase_changed_at")[:_ROWS]),
        "stuck": list(Workspace.objects.filter(stuck()).for_display().order_by("updated_at")[:_ROWS]),
        "loops": loop_health(list(LoopLease.objects.all()), now=now),
        "breakers": list(Breaker.objects.order_by("name")),
        "orphans": [
            orphan_row(orphan, now=now)
            for orphan in Orphan.objects.select_related("confirmed_by").order_by("known", "first_seen_at")[:_ROWS]
        ],
        "orphans_known": sums.get(True, {"count": 0, "bytes": 0}),
        "orphans_unknown": sums.get(False, {"count": 0, "bytes": 0}),
        "alerts": list(Alert.objects.select_related("workspace")[:_ROWS]),
        "attempts": _attempt_table(attempts),
        "running": running,
        "running_limit": limit,
        "busiest": [(user, user.running, _limit_of(user)) for user in busiest[:_ROWS]],
        "config": settings.CONFIG,
    }


def _limit_of(user: User) -> int:
    profile = getattr(user, "profile", None)
    chosen: int | None = profile.max_running if profile else None
    return settings.CONFIG.limit_max_running_per_user if chosen is None else chosen


def _attempt_table(rows: Any) -> list[tuple[str, dict[str, int]]]:
    table: dict[str, dict[str, int]] = {}
    for row in rows:
        table.setdefault(row["operation"], {})[row["state"]] = row["count"]
    return sorted(table.items())


@require_GET
def overview(request: HttpRequest) -> HttpResponse:
    context = {
        **operators_site().each_context(request),
        "title": _("Overview"),
        **gather(now=services.database_now()),
    }
    return TemplateResponse(request, "admin/codehub/overview.html", context)


@require_POST
def confirm_orphan(request: HttpRequest, orphan_id: int) -> HttpResponse:
    if not request.user.is_staff:
        raise PermissionDenied
    try:
        orphan = services.request_orphan_removal(orphan_id, user=operator_of(request), address=address_of(request))
    except RequestError as error:
        messages.error(request, error.message)
    else:
        messages.success(request, _("%(orphan)s goes with the next clean-up.") % {"orphan": orphan})
    return HttpResponseRedirect(reverse("admin:overview") + "#orphans")


operators_site().register_page("overview/", overview, name="overview")
operators_site().register_page("overview/orphans/<int:orphan_id>/confirm/", confirm_orphan, name="confirm_orphan")
