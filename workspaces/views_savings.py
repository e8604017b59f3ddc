"""The savings page: reads changes of phase, lets the arithmetic run, and lays out the plot."""

from datetime import UTC, datetime, timedelta

from django.contrib.auth.decorators import login_required
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from workspaces.models import Transition, Workspace
from workspaces.phases import Phase
from workspaces.savings import SHOWN, Change, Life, bars, hours_by_day, saved, saved_by_owner, stretches
from workspaces.views import signed_in
from workspaces.words import phase_words

RANGES = (7, 14, 30)
PEOPLE = 50
_WIDTH, _HEIGHT = 720.0, 220.0


@login_required
@require_GET
def savings(request: HttpRequest) -> HttpResponse:
    user = signed_in(request)
    asked = request.GET.get("days", "")
    days = int(asked) if asked in {str(choice) for choice in RANGES} else 14
    whole_site = user.is_staff and request.GET.get("whose") == "site"
    end = timezone.now()
    start = datetime.combine(end.astimezone(UTC).date() - timedelta(days=days - 1), datetime.min.time(), tzinfo=UTC)
    lives, changes = _read(None if whole_site else user.pk, start=start)
    found = stretches(lives, changes, start=start, end=end)
    by_day = hours_by_day(found, start=start, end=end)
    drawn, grid = bars(by_day, width=_WIDTH, height=_HEIGHT)
    step = _WIDTH / len(by_day)
    every = max(1, len(by_day) // 7)
    context = {
        "phases": [(phase.lower(), phase_words(phase)[0]) for phase in SHOWN],
        "rows": [(day.day, [day.hours[phase] for phase in SHOWN], day.total) for day in by_day],
        "bars": [(bar, bar.phase.lower()) for bar in drawn],
        "grid": grid,
        "labels": [(round((index + 0.5) * step, 1), day.day) for index, day in enumerate(by_day) if index % every == 0],
        "saved": saved(found, lives),
        "people": saved_by_owner(found, lives)[:PEOPLE] if whole_site else [],
        "ranges": RANGES,
        "days": days,
        "whole_site": whole_site,
        "has_any": bool(found),
        "section": "savings",
    }
    return render(request, "workspaces/savings.html", context)


def _read(user_id: int | None, *, start: datetime) -> tuple[list[Life], list[Change]]:
    rows = Workspace.objects.filter(Q(deleted_at__isnull=True) | Q(deleted_at__gte=start) | ~Q(phase=Phase.DELETED))
    moves = Transition.objects.filter(at__gte=start)
    if user_id is not None:
        rows = rows.filter(owner_id=user_id)
        moves = moves.filter(workspace__owner_id=user_id)
    values = rows.values_list("id", "created_at", "phase", "image__memory_mb", "archive_size", "owner__username")
    lives = [Life(pk, created_at, phase, memory_mb, size or 0, owner) for pk, created_at, phase, memory_mb, size, owner in values]
    changes = [Change(*row) for row in moves.values_list("workspace_id", "at", "from_phase", "to_phase")]
    return lives, changes
