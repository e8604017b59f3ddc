"""`/metrics`: what it counts, and who may read it."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.conf import settings
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tests.api import Api, person, workspace_of
from workspaces.models import Attempt, Breaker, LoopLease

pytestmark = pytest.mark.django_db


def test_metrics_count_what_the_database_knows() -> None:
    ada = person("ada")
    now = timezone.now()
    done = workspace_of(ada, phase="RUNNING", desired_state="RUNNING")
    workspace_of(ada, "busy", phase="STANDBY", desired_state="ARCHIVED", operation="ARCHIVING")
    Attempt.objects.create(
        workspace=done,
        operation="STARTING",
        op_id=uuid4(),
        action="start",
        state="SUCCEEDED",
        started_at=now - timedelta(seconds=4),
        finished_at=now,
    )
    LoopLease.objects.create(loop="reconcile", holder="host:1", heartbeat_at=now, last_tick_ms=12.5, ticks=7)
    LoopLease.objects.create(loop="gc", holder="host:2", heartbeat_at=now - timedelta(minutes=5))
    Breaker.objects.create(name="docker", state="open")
    text = Client().get("/metrics").content.decode()
    for line in (
        'codehub_workspaces{phase="RUNNING"} 1.0',
        'codehub_workspaces{phase="ERROR"} 0.0',
        'codehub_operations_running{operation="ARCHIVING"} 1.0',
        'codehub_runs_total{action="start",operation="STARTING",outcome="succeeded"} 1.0',
        'codehub_run_seconds_sum{action="start",operation="STARTING"} 4.0',
        'codehub_leader{loop="reconcile",shard="0"} 1.0',
        'codehub_leader{loop="gc",shard="0"} 0.0',
        'codehub_tick_seconds{loop="reconcile",shard="0"} 0.0125',
        'codehub_breaker_state{state="open",system="docker"} 1.0',
        'codehub_breaker_state{state="closed",system="docker"} 0.0',
        'codehub_breaker_state{state="closed",system="s3"} 1.0',
    ):
        assert line in text, line
    assert "process_resident_memory_bytes" in text
    assert "ada" not in text
    assert str(done.pk) not in text


def test_the_number_of_queries_does_not_grow_with_the_installation() -> None:
    ada = person("ada")

    def queries() -> int:
        with CaptureQueriesContext(connection) as seen:
            assert Client().get("/metrics").status_code == 200
        return len(seen)

    few = queries()
    for number in range(20):
        workspace_of(ada, str(number), desired_state="STANDBY")
    assert queries() == few


def test_strangers_from_elsewhere_are_refused_and_operators_are_not() -> None:
    far: dict[str, Any] = {"REMOTE_ADDR": "192.0.2.7"}
    assert Client(**far).get("/metrics").status_code == 401
    assert Client().get("/metrics", headers={"X-Forwarded-For": "192.0.2.7"}).status_code == 401
    assert Api(person("ada"), **far).get("/metrics").status_code == 403
    assert Api(person("root", is_staff=True), **far).get("/metrics").status_code == 200


def test_on_a_public_site_without_a_declared_proxy_loopback_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    public = settings.CONFIG.model_copy(update={"codehub_public_url": "https://code.example.org"})
    monkeypatch.setattr(settings, "CONFIG", public)
    assert Client().get("/metrics").status_code == 401
    monkeypatch.setattr(settings, "CONFIG", public.model_copy(update={"codehub_trusted_proxies": 1}))
    assert Client().get("/metrics").status_code == 200
