"""`/metrics` for Prometheus: what the database knows, read when asked, and this process's own counters.

Open to callers on this machine and to operators (session or token of a staff user), to nobody else: counts tell strangers how
a site is used. No user, workspace or secret is ever a label. Counters of the proxy live in the process that serves it; with several web processes scrape each one.
"""

from collections.abc import Iterable
from datetime import datetime
from ipaddress import ip_address
from urllib.parse import urlsplit

from django.conf import settings
from django.db.models import Count, F, Sum
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from workspaces.access import client_address, user_of_request
from workspaces.api.errors import BEARER_CHALLENGE
from workspaces.models import Attempt, Breaker, LoopLease, Orphan, Workspace
from workspaces.phases import AttemptState, Operation, Phase

_FORWARDED = ("HTTP_X_FORWARDED_FOR", "HTTP_FORWARDED", "HTTP_X_REAL_IP")
_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1", "0.0.0.0")  # noqa: S104 - names to compare with, nothing is bound
_BREAKER_STATES = ("closed", "half_open", "open")


class DatabaseCollector(Collector):
    """A constant number of queries, however many workspaces there are."""

    def collect(self) -> Iterable[Metric]:
        yield from self._workspaces()
        yield from self._attempts()
        yield from self._loops()
        yield from self._breakers()

    def _workspaces(self) -> Iterable[Metric]:
        phases = GaugeMetricFamily("codehub_workspaces", "Workspaces by phase.", labels=["phase"])
        found = dict(Workspace.objects.order_by().values_list("phase").annotate(number=Count("id")))
        for phase in Phase:
            phases.add_metric([phase], found.get(phase, 0))
        yield phases
        operations = GaugeMetricFamily("codehub_operations_running", "Workspaces by the operation under way.", labels=["operation"])
        found = dict(Workspace.objects.exclude(operation=Operation.NONE).order_by().values_list("operation").annotate(number=Count("id")))
        for operation in Operation:
            if operation != Operation.NONE:
                operations.add_metric([operation], found.get(operation, 0))
        yield operations
        yield GaugeMetricFamily("codehub_orphans", "Things outside that no row accounts for.", value=Orphan.objects.count())

    def _attempts(self) -> Iterable[Metric]:
        runs = CounterMetricFamily("codehub_runs", "Actuator runs that ended.", labels=["operation", "action", "outcome"])
        moved = CounterMetricFamily("codehub_transfer_bytes", "Bytes moved by actuator runs that ended.", labels=["action"])
        spent = SummaryMetricFamily("codehub_run_seconds", "How long actuator runs took.", labels=["operation", "action"])
        totals: dict[str, int] = {}
        seconds: dict[tuple[str, str], tuple[int, float]] = {}
        ended = (
            Attempt.objects.filter(finished_at__isnull=False)
            .order_by()
            .values_list("operation", "action", "state")
            .annotate(number=Count("id"), size=Sum("bytes_done"), took=Sum(F("finished_at") - F("started_at")), timed=Count("started_at"))
        )
        for operation, action, state, number, size, took, timed in ended:
            runs.add_metric([operation, action, state.lower()], number)
            totals[action] = totals.get(action, 0) + (size or 0)
            before = seconds.get((operation, action), (0, 0.0))
            seconds[operation, action] = (before[0] + timed, before[1] + (took.total_seconds() if took else 0.0))
        for action, size in totals.items():
            moved.add_metric([action], size)
        for (operation, action), (number, total) in seconds.items():
            spent.add_metric([operation, action], count_value=number, sum_value=total)
        waiting = Attempt.objects.filter(state=AttemptState.QUEUED).count()
        yield from (runs, moved, spent, GaugeMetricFamily("codehub_runs_waiting", "Runs no executor has taken yet.", value=waiting))

    def _loops(self) -> Iterable[Metric]:
        labels = ["loop", "shard"]
        leader = GaugeMetricFamily("codehub_leader", "1 while somebody leads the loop (heartbeat younger than 15 s).", labels=labels)
        beat = GaugeMetricFamily("codehub_leader_heartbeat_age_seconds", "Age of the leader's heartbeat.", labels=labels)
        tick = GaugeMetricFamily("codehub_tick_seconds", "How long the loop's last tick took.", labels=labels)
        ticks = CounterMetricFamily("codehub_ticks", "Ticks of the loop.", labels=labels)
        failures = CounterMetricFamily("codehub_tick_failures", "Ticks of the loop that failed.", labels=labels)
        terms = CounterMetricFamily("codehub_leader_terms", "How often leadership of the loop was taken.", labels=labels)
        for lease in LoopLease.objects.annotate(clock=Now()):
            where = [lease.loop, str(lease.shard)]
            age = _age(lease.clock, lease.heartbeat_at)
            leader.add_metric(where, 1 if lease.holder and age is not None and age < 15 else 0)
            if age is not None:
                beat.add_metric(where, age)
            if lease.last_tick_ms is not None:
                tick.add_metric(where, lease.last_tick_ms / 1000)
            ticks.add_metric(where, lease.ticks)
            failures.add_metric(where, lease.failures)
            terms.add_metric(where, lease.term)
        yield from (leader, beat, tick, ticks, failures, terms)

    def _breakers(self) -> Iterable[Metric]:
        states = GaugeMetricFamily("codehub_breaker_state", "1 for the state a circuit breaker is in.", labels=["system", "state"])
        # One that never opened was never written down: it is closed, not unknown.
        known = {"docker": "closed", "s3": "closed"} | dict(Breaker.objects.values_list("name", "state"))
        for name, current in sorted(known.items()):
            for state in _BREAKER_STATES:
                states.add_metric([name, state], 1 if current.replace("-", "_") == state else 0)
        yield states


@never_cache
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    if not _is_local(request):
        found = user_of_request(request)
        if found is None:
            refused = JsonResponse({"detail": "Metrics are for operators and for this machine.", "code": "not_authenticated"}, status=401)
            refused.headers["WWW-Authenticate"] = BEARER_CHALLENGE
            return refused
        if not found[0].is_staff:
            return JsonResponse({"detail": "Metrics are for operators.", "code": "permission_denied"}, status=403)
    # A registry for each answer: the collector reads the database only when somebody asks here.
    registry = CollectorRegistry(auto_describe=False)
    registry.register(DatabaseCollector())
    return HttpResponse(generate_latest(registry) + generate_latest(REGISTRY), content_type=CONTENT_TYPE_LATEST)


def _is_local(request: HttpRequest) -> bool:
    """A caller on this machine itself; not a stranger whose call a proxy on this machine passed on."""
    config = settings.CONFIG
    # A public site without a declared proxy: whatever comes from loopback then came through an undeclared one.
    host = urlsplit(config.public_url).hostname or ""
    if not config.codehub_trusted_proxies and host not in _LOCAL_NAMES:
        return False
    if any(name in request.META for name in _FORWARDED):
        return False
    address = client_address(request)
    return address is not None and ip_address(address).is_loopback


def _age(clock: datetime, moment: datetime | None) -> float | None:
    return (clock - moment).total_seconds() if moment is not None else None
