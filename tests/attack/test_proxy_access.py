"""Attacks on who may enter: other users' workspaces, foreign origins, ended sessions, cross-site requests."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from typing import Any

import pytest
import requests
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from redis import Redis
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.integration.proxy_world import NAVIGATE, World, make_workspace, sign_in
from tests.integration.test_proxy_http import state
from workspaces.access import publish_access_changed
from workspaces.models import AuditEvent, Workspace


@contextmanager
def socket_to(world: World, path: str, headers: dict[str, str], **options: Any) -> Iterator[ClientConnection]:
    with connect(f"ws://127.0.0.1:{world.port}{path}", additional_headers=headers, proxy=None, **options) as client:
        yield client


def answer_of(response: requests.Response) -> tuple[int, str]:
    return response.status_code, response.text.replace(response.url, "")


@pytest.mark.parametrize("path", ["/", "/small", "/_codehub/status", "/_codehub/activity.js", "/ports/3000/"])
@pytest.mark.parametrize("accept", ["text/html", "application/json"])
def test_another_users_workspace_looks_like_an_unknown_one(path_world: World, path: str, accept: str) -> None:
    unknown = "00000000-0000-4000-8000-000000000000"
    before = state(path_world)["requests"]
    for credentials in ({"cookies": path_world.cookies}, {"headers": path_world.bearer}):
        headers = {**NAVIGATE, "Accept": accept, **credentials.get("headers", {})}
        theirs = requests.get(path_world.url(path, workspace=path_world.foreign.pk), cookies=credentials.get("cookies"), headers=headers)
        nobodys = requests.get(f"{path_world.base}/w/{unknown}{path}", cookies=credentials.get("cookies"), headers=headers)
        assert theirs.status_code == nobodys.status_code == 404
        assert theirs.text.replace(str(path_world.foreign.pk), unknown) == nobodys.text
    assert state(path_world)["requests"] == before + 1


def test_another_users_workspace_is_neither_woken_nor_used(path_world: World) -> None:
    sleeping = make_workspace(path_world.other, endpoint="", phase="STANDBY", desired_state="STANDBY")
    for method in ("GET", "POST"):
        for target in (sleeping, path_world.foreign):
            requests.request(method, path_world.url(workspace=target.pk), cookies=path_world.cookies, headers=NAVIGATE)
            requests.request(method, path_world.url("/_codehub/activity", workspace=target.pk), cookies=path_world.cookies, data="typing")
    sleeping.refresh_from_db()
    assert sleeping.desired_state == "STANDBY"
    assert not AuditEvent.objects.filter(workspace_id=sleeping.pk).exists()
    assert Redis.from_url(path_world.redis_url).zscore("codehub:activity", str(sleeping.pk)) is None
    sleeping.delete()


def test_websocket_to_another_users_workspace_is_refused_like_an_unknown_one(path_world: World) -> None:
    for workspace in (path_world.foreign.pk, "00000000-0000-4000-8000-000000000000"):
        with pytest.raises(InvalidStatus) as refusal, socket_to(path_world, f"/w/{workspace}/ws", path_world.bearer):
            pass
        assert refusal.value.response.status_code == 404


ORIGINS = [
    "null",
    "http://evil.example",
    "http://127.0.0.1:1",
    "https://127.0.0.1:{port}",
    "http://localhost:{port}",
    "http://x.127.0.0.1:{port}",
    "",
]


@pytest.mark.parametrize("origin", ORIGINS)
def test_websocket_with_a_session_from_another_origin_is_refused_before_anything_is_opened(path_world: World, origin: str) -> None:
    before = state(path_world)["handshakes"]
    headers = {"Cookie": f"codehub_session={path_world.session}"}
    if origin:
        headers["Origin"] = origin.format(port=path_world.port)
    with pytest.raises(InvalidStatus) as refusal, socket_to(path_world, f"/w/{path_world.workspace.pk}/ws", headers):
        pass
    assert refusal.value.response.status_code == 403
    assert state(path_world)["handshakes"] == before


def test_websocket_without_a_session_is_refused_before_anything_is_opened(path_world: World) -> None:
    before = state(path_world)["handshakes"]
    for cookie in ({}, {"Cookie": "codehub_session=forged"}):
        headers = {"Origin": path_world.base, **cookie}
        with pytest.raises(InvalidStatus) as refusal, socket_to(path_world, f"/w/{path_world.workspace.pk}/ws", headers):
            pass
        assert refusal.value.response.status_code == 401
    assert state(path_world)["handshakes"] == before


def test_websocket_of_the_right_origin_and_session_is_let_in(path_world: World) -> None:
    headers = {"Cookie": f"codehub_session={path_world.session}", "Origin": path_world.base}
    with socket_to(path_world, f"/w/{path_world.workspace.pk}/ws", headers) as client:
        client.send("in")
        assert client.recv() == "in"


def test_sibling_workspace_cannot_open_a_websocket_on_an_own_origin(own_world: World) -> None:
    cookies = own_world.enter_own_origin()
    before = state(own_world)["handshakes"]
    for origin in (f"http://00000000-0000-4000-8000-000000000000.localhost:{own_world.port}", f"http://localhost:{own_world.port}"):
        headers = {"Cookie": f"codehub_ws={cookies['codehub_ws']}", "Origin": origin, "Host": own_world.own_host}
        with pytest.raises(InvalidStatus), own_socket(own_world, headers):
            pass
    assert state(own_world)["handshakes"] == before
    headers = {"Cookie": f"codehub_ws={cookies['codehub_ws']}", "Origin": f"http://{own_world.own_host}"}
    with own_socket(own_world, headers) as client:
        client.send("x")
        assert client.recv() == "x"


@contextmanager
def own_socket(world: World, headers: dict[str, str]) -> Iterator[ClientConnection]:
    rest = {name: value for name, value in headers.items() if name != "Host"}
    line = socket.create_connection(("127.0.0.1", world.port))
    with connect(f"ws://{world.own_host}/ws", sock=line, additional_headers=rest, proxy=None) as client:
        yield client


@pytest.mark.parametrize("ending", ["logout", "disabled", "password"])
def test_open_websocket_ends_with_the_access(path_world: World, ending: str) -> None:
    user = User.objects.create_user(f"leaving-{ending}")
    workspace = make_workspace(user, endpoint=f"http://127.0.0.1:{path_world.upstream}")
    session = sign_in(user)
    headers = {"Cookie": f"codehub_session={session}", "Origin": path_world.base}
    try:
        with socket_to(path_world, f"/w/{workspace.pk}/ws", headers) as client:
            client.send("still here")
            client.recv()
            if ending == "logout":
                Session.objects.filter(session_key=session).delete()
            elif ending == "disabled":
                User.objects.filter(pk=user.pk).update(is_active=False)
                publish_access_changed(user.pk)
            else:
                user.set_password("another one entirely")
                user.save()
                publish_access_changed(user.pk)
            with pytest.raises(ConnectionClosed) as end:
                client.recv(timeout=30)
            assert end.value.rcvd is not None
            assert end.value.rcvd.code == 1008
    finally:
        workspace.delete()
        user.delete()


@pytest.mark.parametrize("path", ["/stream", "/big?size=30000000&send=3000000"])
def test_open_download_ends_with_the_access(path_world: World, path: str) -> None:
    user = User.objects.create_user("leaving-stream")
    workspace = make_workspace(user, endpoint=f"http://127.0.0.1:{path_world.upstream}")
    session = sign_in(user)
    deadline = time.monotonic() + 30
    with requests.get(path_world.url(path, workspace=workspace.pk), cookies={"codehub_session": session}, stream=True) as got:
        lines = got.iter_lines()
        next(lines)
        time.sleep(0.5)
        Session.objects.filter(session_key=session).delete()
        publish_access_changed(user.pk)
        with pytest.raises((requests.exceptions.ChunkedEncodingError, requests.exceptions.ConnectionError)):
            list(takewhile(lambda _line: time.monotonic() < deadline, lines))
    workspace.delete()
    user.delete()


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("POST", {"Content-Type": "text/plain", "Origin": "http://evil.example"}),
        ("POST", {"Content-Type": "application/x-www-form-urlencoded", "Origin": "null"}),
        ("POST", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}),
        ("POST", {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}),
        ("GET", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}),
        ("GET", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}),
        ("GET", {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "script"}),
    ],
)
def test_requests_of_another_site_are_not_passed_on(path_world: World, method: str, headers: dict[str, str]) -> None:
    before = state(path_world)["requests"]
    got = requests.request(
        method, path_world.url("/echo"), cookies=path_world.cookies, headers=headers, data=b"x" if method == "POST" else None
    )
    assert got.status_code == 403
    assert state(path_world)["requests"] == before + 1


def test_link_from_another_site_wakes_nothing_and_offers_a_button(path_world: World) -> None:
    sleeping = make_workspace(path_world.owner, endpoint="", phase="STANDBY", desired_state="STANDBY", name="asleep")
    page = requests.get(
        path_world.url(workspace=sleeping.pk), cookies=path_world.cookies, headers={**NAVIGATE, "Sec-Fetch-Site": "cross-site"}
    )
    assert (page.status_code, 'value="RUNNING"' in page.text) == (503, True)
    assert Workspace.objects.get(pk=sleeping.pk).desired_state == "STANDBY"
    sleeping.delete()


def test_activity_is_only_believed_from_the_page_itself(path_world: World) -> None:
    for origin in ("http://evil.example", "null", ""):
        headers = {"Origin": origin} if origin else {}
        got = requests.post(path_world.url("/_codehub/activity"), cookies=path_world.cookies, headers=headers, data="typing")
        assert got.status_code == 403
    own = {"Origin": path_world.base}
    assert requests.post(path_world.url("/_codehub/activity"), cookies=path_world.cookies, headers=own, data="typing").status_code == 204


def test_nothing_secret_reaches_the_workspace(path_world: World) -> None:
    cookies = {**path_world.cookies, "codehub_csrf": "csrf-secret", "codehub_language": "ko", "mine": "1"}
    headers = {"X-CSRFToken": "csrf-secret", "Referer": path_world.base}
    seen = json.dumps(requests.get(path_world.url("/echo"), cookies=cookies, headers=headers).json())
    for secret in (path_world.session, "csrf-secret", "codehub_"):
        assert secret not in seen
    seen = json.dumps(requests.get(path_world.url("/echo"), headers=path_world.bearer).json())
    assert path_world.token not in seen
