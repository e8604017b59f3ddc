"""Live events over a real server: state first, then changes, and an end when the caller may not listen any more."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest
import redis
from django.conf import settings
from django.contrib.auth import SESSION_KEY
from django.contrib.auth.models import User
from django.db import connections
from django.test import Client

from tests.api import person, workspace_of
from tests.event_reader import EventReader
from tests.live import Address, OpenStream
from workspaces.access import publish_access_changed, request_logout_everywhere
from workspaces.api import stream
from workspaces.models import Workspace
from workspaces.tokens import NewToken, request_revoke, request_token

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def ada() -> User:
    return person("ada")


@pytest.fixture
def made(ada: User) -> NewToken:
    return request_token(ada, name="stream")


@pytest.fixture
def reader(web_url: str, made: NewToken) -> Iterator[EventReader]:
    with EventReader(web_url, made.token) as reader:
        assert reader.response.status_code == 200
        yield reader


def publish(user: User, workspace: Workspace, kind: str = "updated") -> None:
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        client.publish(f"{settings.CONFIG.redis_channel_sse_prefix}:{user.pk}", json.dumps({"type": kind, "id": str(workspace.pk)}))


def test_a_stream_begins_with_the_callers_workspaces_as_the_api_shows_them(web_url: str, ada: User, made: NewToken) -> None:
    workspace_of(person("bob"), "his")
    gone = workspace_of(ada, "gone")
    Workspace.objects.filter(pk=gone.pk).update(phase="DELETED")
    mine = workspace_of(ada, "mine")
    with EventReader(web_url, made.token) as reader:
        assert reader.response.headers["content-type"].startswith("text/event-stream")
        name, body = reader.next()
        assert name == "workspace_updated"
        shown = httpx.get(f"{web_url}/api/v1/workspaces/{mine.pk}", headers={"Authorization": f"Bearer {made.token}"}).json()
        assert body == shown
        assert reader.next(heartbeats=True) == ("heartbeat", {})
        assert reader.ids


def test_changes_arrive_as_whole_objects_and_the_end_as_an_id(reader: EventReader, ada: User) -> None:
    reader.next(heartbeats=True)
    workspace = workspace_of(ada, "new")
    publish(ada, workspace)
    name, body = reader.next()
    assert (name, body["name"], body["phase"]) == ("workspace_updated", "new", "PENDING")
    Workspace.objects.filter(pk=workspace.pk).update(phase="DELETED")
    publish(ada, workspace, "deleted")
    assert reader.next() == ("workspace_deleted", {"id": str(workspace.pk)})


def test_another_users_workspace_is_never_told_even_when_its_id_is(reader: EventReader, ada: User) -> None:
    reader.next(heartbeats=True)
    publish(ada, workspace_of(person("bob"), "his"))
    own = workspace_of(ada, "own")
    publish(ada, own)
    assert reader.next()[1]["name"] == "own"


def test_after_a_gap_the_state_is_sent_again_with_what_is_gone(reader: EventReader, ada: User) -> None:
    reader.next(heartbeats=True)
    first, second = workspace_of(ada, "first"), workspace_of(ada, "second")
    for workspace in (first, second):
        publish(ada, workspace)
        reader.next()
    Workspace.objects.filter(pk=first.pk).update(phase="DELETED")
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        client.client_kill_filter(_type="pubsub")
    assert reader.next() == ("workspace_deleted", {"id": str(first.pk)})
    assert reader.next()[1]["name"] == "second"


def _revoke(ada: User, made: NewToken) -> None:
    request_revoke(made.label.pk, user=ada)


def _disable(ada: User, made: NewToken) -> None:
    User.objects.filter(pk=ada.pk).update(is_active=False)
    publish_access_changed(ada.pk)


def _everywhere(ada: User, made: NewToken) -> None:
    request_logout_everywhere(ada)


@pytest.mark.parametrize("end", [_revoke, _disable, _everywhere])
def test_a_stream_closes_when_its_callers_access_ends(reader: EventReader, ada: User, made: NewToken, end: Any) -> None:
    reader.next(heartbeats=True)
    end(ada, made)
    assert reader.closed.wait(10)


def test_a_disabled_user_is_noticed_without_being_told(ada: User, made: NewToken, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "RECHECK_SECONDS", 0.1)
    monkeypatch.setattr(stream, "_SHARED_LOOK_SECONDS", 0.1)

    async def scenario() -> None:
        opened = OpenStream(made.token)
        await opened.told.wait()
        await asyncio.to_thread(_disable_silently, ada)
        await opened.ended

    asyncio.run(scenario())


def _disable_silently(user: User) -> None:
    User.objects.filter(pk=user.pk).update(is_active=False)
    connections.close_all()


def test_one_token_revoked_leaves_another_tokens_stream_open(web_url: str, reader: EventReader, ada: User, made: NewToken) -> None:
    other = request_token(ada, name="other")
    with EventReader(web_url, other.token) as kept:
        kept.next(heartbeats=True)
        reader.next(heartbeats=True)
        _revoke(ada, made)
        assert reader.closed.wait(10)
        publish(ada, workspace_of(ada, "still here"))
        assert kept.next()[1]["name"] == "still here"


def test_a_session_may_listen_until_it_ends(web_url: str, ada: User) -> None:
    browser = Client()
    browser.force_login(ada, backend=settings.AUTHENTICATION_BACKENDS[0])
    assert SESSION_KEY in browser.session
    cookies = {settings.SESSION_COOKIE_NAME: browser.cookies[settings.SESSION_COOKIE_NAME].value}
    with httpx.Client(cookies=cookies, timeout=30) as client, client.stream("GET", f"{web_url}/api/v1/events") as answer:
        assert answer.status_code == 200
        lines = answer.iter_lines()
        assert next(lines).startswith("retry")
        browser.session.flush()
        publish_access_changed(ada.pk)
        for _line in lines:
            pass


@pytest.mark.parametrize(
    ("method", "token", "status", "code"),
    [("GET", None, 401, "not_authenticated"), ("GET", "nonsense", 401, "not_authenticated"), ("POST", "", 405, "method_not_allowed")],
)
def test_what_cannot_be_streamed_is_answered_like_the_rest(
    web_url: str, made: NewToken, method: str, token: str | None, status: int, code: str
) -> None:
    headers = {} if token is None else {"Authorization": f"Bearer {token or made.token}"}
    answer = httpx.request(method, f"{web_url}/api/v1/events", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_streams_of_one_user_are_capped_and_places_come_back(made: NewToken, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "CONFIG", settings.CONFIG.model_copy(update={"sse_max_streams_per_user": 2}))

    async def scenario() -> None:
        opened = []
        for _ in range(3):
            opened.append(OpenStream(made.token))
            await opened[-1].told.wait()
        assert [one.status for one in opened] == [200, 200, 429]
        assert json.loads(opened[2].sent[1]["body"])["code"] == "throttled"
        assert int(opened[2].headers["retry-after"]) > 0
        for one in opened:
            one.left.set()
            await one.ended
        again = OpenStream(made.token)
        await again.told.wait()
        assert again.status == 200
        again.left.set()
        await again.ended

    asyncio.run(scenario())


def test_five_hundred_streams_are_told_of_one_change_and_leave_nothing_behind(web_url: Address, ada: User, made: NewToken) -> None:
    workspace = workspace_of(ada, "watched", phase="STANDBY", desired_state="STANDBY")
    server = psutil.Process(web_url.pid)
    port = int(web_url.rpartition(":")[2])
    request = f"GET /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {made.token}\r\n\r\n".encode()

    def run_it() -> None:
        Workspace.objects.filter(pk=workspace.pk).update(phase="RUNNING")
        publish(ada, workspace)
        connections.close_all()

    async def scenario() -> None:
        before, threads = server.num_fds(), server.num_threads()
        streams = [await asyncio.open_connection("127.0.0.1", port) for _ in range(500)]
        for _, writer in streams:
            writer.write(request)
        await asyncio.gather(*(reader.readuntil(b'"phase":"STANDBY"') for reader, _ in streams))
        await asyncio.to_thread(run_it)
        await asyncio.gather(*(reader.readuntil(b'"phase":"RUNNING"') for reader, _ in streams))
        # Streams hold no thread of their own.
        assert server.num_threads() - threads < 50
        for _, writer in streams:
            writer.close()
        for _ in range(300):
            if server.num_fds() <= before + 10:
                return
            await asyncio.sleep(0.1)
        pytest.fail(f"{server.num_fds()} descriptors are open, {before} were before")

    asyncio.run(scenario())
