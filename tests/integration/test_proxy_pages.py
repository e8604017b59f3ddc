"""What visitors get where a workspace takes no traffic: every row of the table, as a page and as JSON, and what wakes."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import requests
from django.db import connection
from django.utils import timezone
from redis import Redis

from tests.integration.proxy_world import NAVIGATE, World, free_port, make_workspace
from workspaces import services
from workspaces.models import AuditEvent, Workspace


@pytest.fixture
def sleeping(path_world: World) -> Iterator[Workspace]:
    """A workspace of its own for each test; limits count only what asks to run."""
    Workspace.objects.filter(pk=path_world.workspace.pk).update(desired_state="STANDBY", phase="STANDBY")
    workspace = make_workspace(path_world.owner, endpoint="", phase="STANDBY", desired_state="STANDBY", name="sleeper")
    yield workspace
    Workspace.objects.filter(pk=workspace.pk).delete()
    Workspace.objects.filter(pk=path_world.workspace.pk).update(desired_state="RUNNING", phase="RUNNING")


def become(workspace: Workspace, **fields: Any) -> None:
    Workspace.objects.filter(pk=workspace.pk).update(**fields)


def visit(world: World, workspace: Workspace, path: str = "/", **headers: str) -> requests.Response:
    return requests.get(
        world.url(path, workspace=workspace.pk), cookies=world.cookies, headers={**NAVIGATE, **headers}, allow_redirects=False
    )


ROWS = [
    ({"phase": "STANDBY", "desired_state": "STANDBY"}, 503),
    ({"phase": "ARCHIVED", "desired_state": "ARCHIVED"}, 502),
    ({"phase": "PENDING", "desired_state": "STANDBY"}, 502),
    ({"phase": "ERROR", "desired_state": "RUNNING", "error_reason": "DataLost", "error_info": {"message": "gone"}}, 502),
    ({"phase": "STANDBY", "desired_state": "RUNNING"}, 503),
    ({"phase": "ARCHIVED", "desired_state": "RUNNING", "operation": "RESTORING"}, 503),
    ({"phase": "RUNNING", "desired_state": "STANDBY"}, 503),
    ({"phase": "RUNNING", "desired_state": "STANDBY", "operation": "STOPPING"}, 503),
    ({"phase": "STANDBY", "desired_state": "ARCHIVED", "operation": "ARCHIVING"}, 503),
]


@pytest.mark.parametrize(("fields", "status"), ROWS)
def test_every_row_has_a_page_and_a_json_twin_with_the_same_code(
    path_world: World, sleeping: Workspace, fields: dict[str, Any], status: int
) -> None:
    become(sleeping, endpoint="http://127.0.0.1:1", **fields)
    page = visit(path_world, sleeping)
    assert (page.status_code, page.headers["content-type"].startswith("text/html")) == (status, True)
    assert "sleeper" in page.text
    assert ("retry-after" in page.headers) == (status == 503)
    become(sleeping, endpoint="http://127.0.0.1:1", **{"operation": "NONE", **fields})
    twin = requests.get(path_world.url(workspace=sleeping.pk), cookies=path_world.cookies, headers={"Accept": "application/json"})
    assert (twin.status_code, set(twin.json()) >= {"detail", "code"}) == (status, True)
    assert ("retry-after" in twin.headers) == (status == 503)


def test_visit_wakes_a_sleeping_workspace_and_shows_a_page_that_moves_on(path_world: World, sleeping: Workspace) -> None:
    page = visit(path_world, sleeping)
    assert page.status_code == 503
    assert f'data-status="/w/{sleeping.pk}/_codehub/status"' in page.text
    assert re.search(r'<noscript>\s*<meta http-equiv="refresh" content="\d+;url=/w/[0-9a-f-]+/\?codehub_wait=1">', page.text)
    sleeping.refresh_from_db()
    assert sleeping.desired_state == "RUNNING"
    assert AuditEvent.objects.filter(workspace_id=sleeping.pk, action="wake", actor=path_world.owner).count() == 1
    state = requests.get(path_world.url("/_codehub/status", workspace=sleeping.pk), cookies=path_world.cookies).json()
    assert (state["ready"], state["settled"]) == (False, False)
    become(sleeping, phase="RUNNING", endpoint=f"http://127.0.0.1:{path_world.upstream}")
    assert requests.get(path_world.url("/_codehub/status", workspace=sleeping.pk), cookies=path_world.cookies).json()["ready"] is True
    moved = visit(path_world, sleeping, "/small?codehub_wait=1&a=b")
    assert (moved.status_code, moved.headers["location"]) == (302, f"/w/{sleeping.pk}/small?a=b")
    assert visit(path_world, sleeping, "/small?a=b").text == "k" * 1024


def expire() -> None:
    try:
        services.request_expiry(standby_seconds=None, archive_seconds=1)
    finally:
        connection.close()


def test_visit_that_meets_the_ttl_is_either_told_so_or_wakes(path_world: World, sleeping: Workspace) -> None:
    for _ in range(10):
        become(sleeping, phase="STANDBY", desired_state="STANDBY", phase_changed_at=timezone.now() - timedelta(days=1))
        with ThreadPoolExecutor(2) as both:
            page = both.submit(visit, path_world, sleeping)
            both.submit(expire).result()
        sleeping.refresh_from_db()
        promised = "opens it by itself" in page.result().text
        assert (page.result().status_code, sleeping.desired_state) == (503, "RUNNING" if promised else "ARCHIVED")


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
        {"Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"},
        {"Sec-Fetch-Dest": "iframe"},
        {"Sec-Purpose": "prefetch;prerender"},
        {"Purpose": "prefetch"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Mode": "websocket"},
    ],
)
def test_what_is_not_a_visit_wakes_nothing(path_world: World, sleeping: Workspace, headers: dict[str, str]) -> None:
    assert visit(path_world, sleeping, **headers).status_code in (403, 503)
    sleeping.refresh_from_db()
    assert sleeping.desired_state == "STANDBY"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_other_methods_wake_nothing(path_world: World, sleeping: Workspace, method: str) -> None:
    got = requests.request(method, path_world.url(workspace=sleeping.pk), cookies=path_world.cookies, headers=NAVIGATE, data=b"x" * 100)
    assert got.status_code in (403, 503)
    sleeping.refresh_from_db()
    assert sleeping.desired_state == "STANDBY"


def test_explicit_call_with_a_token_wakes(path_world: World, sleeping: Workspace) -> None:
    got = requests.get(path_world.url(workspace=sleeping.pk), headers=path_world.bearer)
    assert (got.status_code, got.json()["code"]) == (503, "not_running")
    sleeping.refresh_from_db()
    assert sleeping.desired_state == "RUNNING"


def test_reload_of_a_page_by_itself_never_wakes(path_world: World, sleeping: Workspace) -> None:
    page = visit(path_world, sleeping, "/?codehub_wait=1")
    assert page.status_code == 503
    assert "http-equiv" not in page.text
    assert 'value="RUNNING"' in page.text
    sleeping.refresh_from_db()
    assert sleeping.desired_state == "STANDBY"


def test_over_the_limit_lists_what_runs_and_offers_to_stop_one(path_world: World, sleeping: Workspace) -> None:
    running = [make_workspace(path_world.owner, endpoint="", name=f"busy {number}") for number in range(2)]
    try:
        page = visit(path_world, sleeping)
        assert page.status_code == 502
        for other in running:
            assert other.name in page.text
            assert f"/workspaces/{other.pk}/state/" in page.text
        twin = requests.get(path_world.url(workspace=sleeping.pk), headers={**path_world.bearer, "Accept": "application/json"})
        assert (twin.status_code, twin.json()["code"], len(twin.json()["running"])) == (502, "limit_exceeded", 2)
    finally:
        Workspace.objects.filter(name__startswith="busy").delete()


def test_nobody_signed_in_goes_to_the_login_page_and_back(path_world: World) -> None:
    page = requests.get(path_world.url("/a?b=c"), headers=NAVIGATE, allow_redirects=False)
    assert page.status_code == 302
    assert page.headers["location"] == f"/login/?next=/w/{path_world.workspace.pk}/a%3Fb%3Dc"
    assert requests.get(path_world.url("/a")).status_code == 401


def test_dead_upstream_gives_bad_gateway_and_asks_for_an_observation(path_world: World) -> None:
    dead = make_workspace(path_world.owner, endpoint=f"http://127.0.0.1:{free_port()}")
    listener: Any = Redis.from_url(path_world.redis_url).pubsub()  # type: ignore[no-untyped-call]
    try:
        listener.subscribe(path_world.wake_channel)
        listener.get_message(timeout=5)
        got = requests.get(path_world.url(workspace=dead.pk), headers=path_world.bearer)
        assert (got.status_code, got.json()["code"]) == (502, "upstream_unavailable")
        message = listener.get_message(timeout=5, ignore_subscribe_messages=True)
        assert message is not None
        assert message["data"].decode() == str(dead.pk)
    finally:
        listener.close()
        dead.delete()
