"""From a committed change to the live channels and wake-ups on Redis, across every kind of gap."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection

from coordinator import events
from coordinator.events import EventsWork
from coordinator.leader import Timing
from coordinator.loops import Coordinator
from coordinator.wakeups import redis_client
from tests.fault.processes import until
from workspaces import services
from workspaces.models import Attempt, LoopLease, Workspace

pytestmark = pytest.mark.django_db(transaction=True)

SSE = settings.CONFIG.redis_channel_sse_prefix
WAKE = settings.CONFIG.redis_channel_wake_prefix


class Heard:
    """Everything said on the channels since it was opened."""

    def __init__(self) -> None:
        self.client = redis.Redis.from_url(settings.REDIS_URL, decode_responses=True)
        self.subscription = self.client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
        self.subscription.psubscribe(f"{SSE}:*", f"{WAKE}:*")
        self.messages: list[tuple[str, Any]] = []

    def wait_for(self, channel: str, body: Any) -> None:
        deadline = time.monotonic() + 10
        while (channel, body) not in self.messages:
            message = self.subscription.get_message(timeout=0.2)
            if message is not None:
                text = message["data"]
                self.messages.append((message["channel"], json.loads(text) if text.startswith("{") else text))
            assert time.monotonic() < deadline, self.messages

    def close(self) -> None:
        self.subscription.close()
        self.client.close()


@pytest.fixture
def heard() -> Iterator[Heard]:
    one = Heard()
    yield one
    one.close()


@pytest.fixture
def start() -> Iterator[Callable[..., EventsWork]]:
    stop = threading.Event()
    started: list[Coordinator] = []

    def begin(url: str = settings.REDIS_URL, **kwargs: Any) -> EventsWork:
        work = EventsWork(url=url, sse_prefix=SSE, wake_prefix=WAKE, **kwargs)
        coordinator = Coordinator([work], sources=[], stop=stop, timing=Timing(lock_wait=0.3, stale_after=2, heartbeat=0.2))
        coordinator.start()
        started.append(coordinator)
        return work

    yield begin
    stop.set()
    for coordinator in started:
        assert coordinator.stop(seconds=10)


@pytest.fixture
def ann() -> User:
    return User.objects.create_user("ann")


def test_a_change_reaches_its_owners_channel_and_a_wish_becomes_a_wake_up(
    heard: Heard, start: Callable[..., EventsWork], ann: User
) -> None:
    start()
    heard.wait_for(f"{SSE}:all", {"type": "resync"})
    workspace, _ = services.request_create(user=ann, name="one", desired_state="STANDBY")
    name = str(workspace.pk)
    heard.wait_for(f"{SSE}:{ann.pk}", {"type": "updated", "id": name})
    heard.wait_for(f"{WAKE}:wc", name)
    Attempt.objects.create(workspace=workspace, operation="ARCHIVING", op_id=workspace.pk, action="archive")
    Attempt.objects.update(bytes_done=10)
    heard.wait_for(f"{SSE}:{ann.pk}", {"type": "progress", "id": name})
    services.request_delete(workspace.pk, user=ann)
    heard.wait_for(f"{SSE}:{ann.pk}", {"type": "deleted", "id": name})


def test_the_last_change_of_a_deleted_workspace_says_deleted(heard: Heard, start: Callable[..., EventsWork], ann: User) -> None:
    workspace, _ = services.request_create(user=ann, name="one", desired_state="STANDBY")
    services.request_delete(workspace.pk, user=ann)
    start()
    heard.wait_for(f"{SSE}:all", {"type": "resync"})
    Workspace.objects.filter(pk=workspace.pk).update(phase="DELETED")
    heard.wait_for(f"{SSE}:{ann.pk}", {"type": "deleted", "id": str(workspace.pk)})
    assert (f"{SSE}:{ann.pk}", {"type": "updated", "id": str(workspace.pk)}) not in heard.messages


def test_a_killed_listening_session_comes_back_and_everything_is_looked_at_once(
    heard: Heard, start: Callable[..., EventsWork], ann: User
) -> None:
    looks: list[int] = []
    start(wake_all=lambda: looks.append(1))
    heard.wait_for(f"{SSE}:all", {"type": "resync"})
    heard.messages.clear()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(backend_pid) FROM workspaces_looplease WHERE loop = 'events'")
    heard.wait_for(f"{SSE}:all", {"type": "resync"})
    assert len(looks) == 2
    workspace, _ = services.request_create(user=ann, name="one", desired_state="STANDBY")
    heard.wait_for(f"{SSE}:{ann.pk}", {"type": "updated", "id": str(workspace.pk)})


def test_what_was_said_while_redis_was_away_is_said_when_it_is_back(
    heard: Heard, start: Callable[..., EventsWork], ann: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_REDIS_PAUSE", 0.05)
    away = threading.Event()

    def client(url: str) -> "redis.Redis":
        if away.is_set():
            raise redis.ConnectionError("away")
        return redis_client(url)

    monkeypatch.setattr(events, "redis_client", client)
    work = start()
    heard.wait_for(f"{SSE}:all", {"type": "resync"})
    # Heard here is not yet answered there: the connection is closed when the loop has done with it.
    until(lambda: not work._gap)
    away.set()
    work._close()
    workspace, _ = services.request_create(user=ann, name="one", desired_state="STANDBY")
    until(lambda: work._pending)
    away.clear()
    heard.wait_for(f"{SSE}:{ann.pk}", {"type": "updated", "id": str(workspace.pk)})
    assert LoopLease.objects.get(loop="events").failures == 0


def test_more_than_can_be_kept_becomes_one_resync() -> None:
    work = EventsWork(url=settings.REDIS_URL, sse_prefix=SSE, wake_prefix=WAKE)
    work._gap = False
    for number in range(events.MAX_PENDING + 1):
        work._take("ws_sse", json.dumps({"id": str(number), "user": 1}))
    assert not work._pending
    assert work._gap


def test_the_same_thing_said_often_is_passed_on_once_and_nonsense_not_at_all() -> None:
    work = EventsWork(url=settings.REDIS_URL, sse_prefix=SSE, wake_prefix=WAKE)
    for _ in range(5):
        work._take("ws_sse", json.dumps({"id": "a", "user": 1}))
    work._take("ws_sse", "nonsense")
    work._take("ws_other", json.dumps({"id": "a", "user": 1}))
    assert list(work._pending) == [("updated", 1, "a")]
