"""Own origins: the ticket, the cookie it becomes, what ends it, and what never gets one."""

import json
from collections.abc import Mapping
from urllib.parse import parse_qs, urlsplit

import pytest
import requests
from django.contrib.sessions.models import Session

from tests.integration.proxy_world import NAVIGATE, World, make_workspace, sign_in
from workspaces.models import Image, Workspace


def on_own_origin(
    world: World, path: str = "/", cookies: Mapping[str, str] | None = None, *, host: str = "", headers: Mapping[str, str] | None = None
) -> requests.Response:
    return requests.get(
        world.base + path, cookies=dict(cookies or {}), headers={"Host": host or world.own_host, **(headers or {})}, allow_redirects=False
    )


def ticket_url(world: World, path: str = "/") -> str:
    got = requests.get(world.url(path), cookies=world.cookies, headers=NAVIGATE, allow_redirects=False)
    assert got.status_code == 302, got.text
    return got.headers["location"]


def test_visit_on_the_dashboard_leads_to_the_workspaces_own_origin_with_a_ticket(own_world: World) -> None:
    url = urlsplit(ticket_url(own_world, "/a%2Fb?x=1"))
    assert (url.scheme, url.netloc, url.path) == ("http", own_world.own_host, "/a%2Fb")
    query = parse_qs(url.query)
    assert query["x"] == ["1"]
    assert len(query["codehub_ticket"][0]) >= 40


def test_ticket_becomes_a_host_only_cookie_and_leaves_the_address(own_world: World) -> None:
    url = urlsplit(ticket_url(own_world, "/small?x=1"))
    got = on_own_origin(own_world, f"{url.path}?{url.query}", headers=NAVIGATE)
    assert (got.status_code, got.headers["location"]) == (302, "/small?x=1")
    cookie = got.headers["set-cookie"]
    assert cookie.startswith("codehub_ws=")
    assert {"httponly", "samesite=lax", "path=/"} <= {part.strip().lower() for part in cookie.split(";")}
    assert "domain" not in cookie.lower()
    assert own_world.session not in cookie
    assert got.headers["referrer-policy"] == "no-referrer"
    cookies = {"codehub_ws": got.cookies["codehub_ws"]}
    assert on_own_origin(own_world, "/small", cookies).text == "k" * 1024


def test_ticket_works_once(own_world: World) -> None:
    url = urlsplit(ticket_url(own_world))
    assert "set-cookie" in on_own_origin(own_world, f"{url.path}?{url.query}", headers=NAVIGATE).headers
    again = on_own_origin(own_world, f"{url.path}?{url.query}", headers=NAVIGATE)
    assert (again.status_code, "set-cookie" in again.headers) == (403, False)


def test_ticket_and_cookie_are_good_for_one_workspace_alone(own_world: World) -> None:
    second = make_workspace(own_world.owner, endpoint=f"http://127.0.0.1:{own_world.upstream}")
    host = f"{second.pk}.localhost:{own_world.port}"
    try:
        url = urlsplit(ticket_url(own_world))
        stolen = on_own_origin(own_world, f"/?{url.query}", host=host, headers=NAVIGATE)
        assert "set-cookie" not in stolen.headers
        cookies = own_world.enter_own_origin()
        assert on_own_origin(own_world, "/small", cookies).status_code == 200
        assert on_own_origin(own_world, "/small", cookies, host=host).status_code == 401
    finally:
        second.delete()


def test_session_cookie_is_worth_nothing_on_an_own_origin(own_world: World) -> None:
    assert on_own_origin(own_world, "/small", own_world.cookies).status_code == 401


def test_own_origin_cookie_is_worth_nothing_on_the_dashboard(own_world: World) -> None:
    cookies = {"codehub_session": own_world.enter_own_origin()["codehub_ws"]}
    assert requests.get(own_world.base + "/api/v1/workspaces", cookies=cookies).status_code == 401
    assert requests.get(own_world.base + "/api/v1/workspaces", cookies=own_world.enter_own_origin()).status_code == 401


def test_stranger_on_an_own_origin_is_sent_to_the_dashboard_and_a_script_gets_json(own_world: World) -> None:
    got = on_own_origin(own_world, "/x?y=1", headers=NAVIGATE)
    assert (got.status_code, got.headers["location"]) == (302, f"http://127.0.0.1:{own_world.port}/w/{own_world.workspace.pk}/x?y=1")
    assert on_own_origin(own_world, "/x").status_code == 401
    assert on_own_origin(own_world, "/x", {"codehub_ws": "forged"}).status_code == 401


def test_logout_ends_the_own_origin_cookie(own_world: World) -> None:
    session = sign_in(own_world.owner)
    first = requests.get(own_world.url(), cookies={"codehub_session": session}, headers=NAVIGATE, allow_redirects=False)
    url = urlsplit(first.headers["location"])
    cookies = {"codehub_ws": on_own_origin(own_world, f"/?{url.query}", headers=NAVIGATE).cookies["codehub_ws"]}
    Session.objects.filter(session_key=session).delete()
    assert on_own_origin(own_world, "/small", cookies).status_code == 401


def test_dashboard_origin_forwards_nothing_but_visits_and_tokens(own_world: World) -> None:
    fetch = {**NAVIGATE, "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty", "Sec-Fetch-Site": "same-origin"}
    assert requests.get(own_world.url("/small"), cookies=own_world.cookies, headers=fetch, allow_redirects=False).status_code == 403
    assert requests.post(own_world.url("/echo"), cookies=own_world.cookies, allow_redirects=False).status_code == 403
    assert requests.get(own_world.url("/small"), headers=own_world.bearer).text == "k" * 1024


def test_upstream_on_the_own_origin_sees_no_prefix_and_no_cookie_of_ours(own_world: World) -> None:
    cookies = {**own_world.enter_own_origin(), "mine": "1"}
    seen = on_own_origin(own_world, "/echo?a=1", cookies).json()
    fields = {name.lower(): value for name, value in seen["headers"]}
    assert seen["target"] == "/echo?a=1"
    assert fields["cookie"] == "mine=1"
    assert fields["host"] == own_world.own_host
    assert "x-forwarded-prefix" not in fields
    assert cookies["codehub_ws"] not in json.dumps(seen)


def test_image_that_keeps_its_prefix_gets_it_on_the_own_origin_too(own_world: World) -> None:
    Image.objects.filter(name="code-server").update(strip_prefix=False)
    try:
        world_id = own_world.workspace.pk
        second = make_workspace(own_world.owner, endpoint=f"http://127.0.0.1:{own_world.upstream}")
        seen = requests.get(own_world.url("/echo", workspace=second.pk), headers=own_world.bearer).json()
        assert seen["target"] == f"/w/{second.pk}/echo"
        host = f"{second.pk}.localhost:{own_world.port}"
        for path in ("/echo", f"/w/{second.pk}/echo"):
            seen = requests.get(own_world.base + path, headers={**own_world.bearer, "Host": host}).json()
            assert seen["target"] == f"/w/{second.pk}/echo"
        second.delete()
        assert world_id
    finally:
        Image.objects.filter(name="code-server").update(strip_prefix=True)


@pytest.mark.parametrize("phase", ["STANDBY", "ARCHIVED", "PENDING", "ERROR"])
def test_visit_to_an_own_origin_that_does_not_run_goes_to_the_dashboards_page(own_world: World, phase: str) -> None:
    cookies = own_world.enter_own_origin()
    stopped = {"phase": phase, "desired_state": "STANDBY" if phase != "ARCHIVED" else "ARCHIVED"}
    Workspace.objects.filter(pk=own_world.workspace.pk).update(**stopped)
    try:
        requests.get(own_world.url("/_codehub/status"), headers=own_world.bearer)
        deadline = 50
        while on_own_origin(own_world, "/x", cookies).status_code == 200 and deadline:
            deadline -= 1
        page = on_own_origin(own_world, "/lab?x=1", cookies, headers=NAVIGATE)
        assert page.status_code == 302
        assert page.headers["location"] == f"http://127.0.0.1:{own_world.port}/w/{own_world.workspace.pk}/lab?x=1&codehub_wait=1"
        own_world.workspace.refresh_from_db()
        assert (own_world.workspace.desired_state == "RUNNING") == (phase == "STANDBY")
        assert on_own_origin(own_world, "/x", cookies).status_code == 503
    finally:
        Workspace.objects.filter(pk=own_world.workspace.pk).update(phase="RUNNING", desired_state="RUNNING")
