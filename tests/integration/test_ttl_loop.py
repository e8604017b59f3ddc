"""Recorded use from Redis to the rows, and expiry, on real PostgreSQL and Redis."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import Mock
from uuid import uuid4

import pytest
import redis
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext

from coordinator import ttl
from coordinator.ttl import ACTIVITY_KEY, KIND_KEY, TtlWork, copy_activity
from workspaces import services
from workspaces.models import Workspace

pytestmark = pytest.mark.django_db


@pytest.fixture
def client() -> Iterator["redis.Redis"]:
    with redis.Redis.from_url(settings.REDIS_URL, decode_responses=True) as one:
        one.delete(ACTIVITY_KEY, KIND_KEY)
        yield one
        one.delete(ACTIVITY_KEY, KIND_KEY)


@pytest.fixture
def ann() -> User:
    return User.objects.create_user("ann")


def made(user: User, *, idle: float = 0.0, **observed: Any) -> Workspace:
    workspace, _ = services.request_create(user=user, name="one", desired_state="STANDBY")
    ago = services.database_now() - timedelta(seconds=idle)
    Workspace.objects.filter(pk=workspace.pk).update(**{"last_access_at": ago, "phase_changed_at": ago, **observed})
    return workspace


def running(user: User, *, idle: float = 0.0, **observed: Any) -> Workspace:
    workspace = made(user, idle=idle, **observed)
    Workspace.objects.filter(pk=workspace.pk).update(**{"phase": "RUNNING", "desired_state": "RUNNING", **observed})
    return workspace


def use(client: "redis.Redis", workspace: Workspace, at: float, kind: str = "terminal") -> None:
    client.zadd(ACTIVITY_KEY, {str(workspace.pk): at}, gt=True)
    client.hset(KIND_KEY, str(workspace.pk), kind)


def tick(url: str = "", *, standby: int = 600, archive: int = 1800) -> None:
    TtlWork(url=url or settings.REDIS_URL, standby_seconds=standby, archive_seconds=archive, interval=60).tick(Mock(), full=True)


def test_use_is_copied_in_one_statement_whatever_the_number_and_then_gone_from_redis(client: "redis.Redis", ann: User) -> None:
    workspaces = [made(ann, idle=1000) for _ in range(20)]
    at = time.time() - 5
    for workspace in workspaces:
        use(client, workspace, at)
    with CaptureQueriesContext(connection) as queries:
        assert copy_activity(client) == 20
    assert len(queries) == 1
    assert client.zcard(ACTIVITY_KEY) == client.hlen(KIND_KEY) == 0
    row = Workspace.objects.get(pk=workspaces[0].pk)
    assert row.last_access_at == datetime.fromtimestamp(at, UTC)
    assert row.last_activity is not None
    assert row.last_activity["kind"] == "terminal"


def test_use_that_arrives_during_the_copy_stays_for_the_next_one(client: "redis.Redis", ann: User, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = made(ann, idle=1000)
    first, second = time.time() - 50, time.time() - 10
    use(client, workspace, first)
    real = services.request_activity

    def slow_copy(signals: Any) -> None:
        real(signals)
        use(client, workspace, second, "save")

    monkeypatch.setattr(services, "request_activity", slow_copy)
    copy_activity(client)
    monkeypatch.undo()
    assert client.zscore(ACTIVITY_KEY, str(workspace.pk)) == second
    copy_activity(client)
    row = Workspace.objects.get(pk=workspace.pk)
    assert row.last_access_at == datetime.fromtimestamp(second, UTC)
    assert row.last_activity is not None
    assert row.last_activity["kind"] == "save"
    assert client.zcard(ACTIVITY_KEY) == 0


def test_time_never_goes_backwards_nor_beyond_now(client: "redis.Redis", ann: User) -> None:
    recent, mad, old = made(ann, idle=5), made(ann, idle=500), made(ann, idle=500)
    before = Workspace.objects.get(pk=recent.pk).last_access_at
    use(client, recent, time.time() - 100)
    use(client, mad, float("inf"))
    use(client, old, time.time() + 86_400)
    copy_activity(client)
    assert Workspace.objects.get(pk=recent.pk).last_access_at == before
    now = services.database_now()
    for workspace in (mad, old):
        at = Workspace.objects.get(pk=workspace.pk).last_access_at
        assert at is not None
        assert now - timedelta(seconds=60) < at <= now
    assert client.zcard(ACTIVITY_KEY) == 0


def test_use_of_unknown_or_nonsensical_things_is_dropped(client: "redis.Redis") -> None:
    client.zadd(ACTIVITY_KEY, {str(uuid4()): time.time(), "nonsense": time.time()})
    copy_activity(client)
    assert client.zcard(ACTIVITY_KEY) == 0


def test_more_than_one_batch_is_copied_whole(client: "redis.Redis", ann: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ttl, "BATCH", 3)
    workspaces = [made(ann, idle=1000) for _ in range(8)]
    for workspace in workspaces:
        use(client, workspace, time.time())
    assert copy_activity(client) == 8
    assert client.zcard(ACTIVITY_KEY) == 0


def test_what_was_idle_too_long_is_asked_to_stop_and_what_stood_by_too_long_to_be_archived(client: "redis.Redis", ann: User) -> None:
    idle, busy = running(ann, idle=700), running(ann, idle=700)
    resting, fresh = made(ann, idle=2000, phase="STANDBY"), made(ann, idle=100, phase="STANDBY")
    use(client, busy, time.time() - 1)
    tick()
    wanted = {row.pk: row.desired_state for row in Workspace.objects.all()}
    assert wanted == {idle.pk: "STANDBY", busy.pk: "RUNNING", resting.pk: "ARCHIVED", fresh.pk: "STANDBY"}


def test_own_ttls_never_and_pending_wishes_are_respected(client: "redis.Redis", ann: User) -> None:
    never = running(ann, idle=7000, standby_ttl_seconds=0)
    longer = running(ann, idle=700, standby_ttl_seconds=1000)
    shorter = running(ann, idle=100, standby_ttl_seconds=60)
    operating = running(ann, idle=700, operation="STOPPING")
    wishing = made(ann, idle=7000, phase="STANDBY", desired_state="RUNNING")
    awake = running(ann, idle=700, keep_awake_until=services.database_now() + timedelta(hours=1))
    tick()
    wanted = {row.pk: row.desired_state for row in Workspace.objects.all()}
    assert wanted == {
        never.pk: "RUNNING",
        longer.pk: "RUNNING",
        shorter.pk: "STANDBY",
        operating.pk: "RUNNING",
        wishing.pk: "RUNNING",
        awake.pk: "RUNNING",
    }


def test_expiry_is_one_statement_for_each_kind_however_many_expire(client: "redis.Redis", ann: User) -> None:
    for _ in range(30):
        running(ann, idle=700)
    with CaptureQueriesContext(connection) as queries:
        tick()
    assert sum("UPDATE" in query["sql"] for query in queries) == 2


def test_nobody_is_stopped_for_being_idle_while_use_cannot_be_read(ann: User) -> None:
    idle, resting = running(ann, idle=700, standby_ttl_seconds=60), made(ann, idle=2000, phase="STANDBY")
    tick("redis://127.0.0.1:1/0")
    wanted = {row.pk: row.desired_state for row in Workspace.objects.all()}
    assert wanted == {idle.pk: "RUNNING", resting.pk: "ARCHIVED"}
