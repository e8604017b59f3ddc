"""The operators' overview: everything that matters on one page, for a fixed number of queries, and orphans confirmed there."""

import re
from datetime import timedelta
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tests.integration import admin_world as world
from workspaces.admin.overview import loop_health, orphan_row
from workspaces.models import AuditEvent, LoopLease, Orphan, UserProfile

pytestmark = pytest.mark.django_db

STATIC = Path(__file__).resolve().parents[2] / "static"


@pytest.fixture
def owner() -> User:
    return User.objects.create_user("owner")


@pytest.fixture
def desk() -> Client:
    client = Client()
    client.force_login(world.operator())
    return client


def test_the_overview_tells_what_is_broken_busy_led_and_left_over(desk: Client, owner: User) -> None:
    world.realistic(owner)
    response = desk.get("/admin/overview/")
    page = response.content.decode()
    assert response.status_code == 200
    for expected in (
        "lost 0",
        "ImagePullFailed",
        "thesis 0",
        "68 %",
        "stuck 0",
        "host-1:4711",
        "connection refused",
        "Confirm removal",
        "webhook: failed",
    ):
        assert expected in page
    assert dict(response.context["phases"])["ERROR"] == 2
    assert {health.loop: bool(health.trouble) for health in response.context["loops"]} == {
        "events": False,
        "reconcile": False,
        "ttl": False,
        "gc": True,
    }


def test_the_overview_shows_who_uses_how_much_of_which_limit(desk: Client, owner: User) -> None:
    world.workspace(owner, phase="RUNNING", desired_state="RUNNING")
    other = User.objects.create_user("other")
    UserProfile.objects.create(user=other, max_running=9)
    world.workspace(other, phase="RUNNING", desired_state="RUNNING")
    usage = {user.username: (count, limit) for user, count, limit in desk.get("/admin/overview/").context["busiest"]}
    assert usage == {"owner": (1, 2), "other": (1, 9)}


def test_the_overview_of_an_empty_site_is_a_page_too(desk: Client) -> None:
    page = desk.get("/admin/overview/").content.decode()
    assert "Nothing is broken." in page
    assert "Nothing is left over." in page


def test_the_overview_costs_the_same_queries_for_one_and_for_many(desk: Client, owner: User) -> None:
    world.realistic(owner)
    desk.get("/admin/overview/")  # the first page of a session also notes where it came from
    with CaptureQueriesContext(connection) as few:
        desk.get("/admin/overview/")
    for number in range(5):
        other = User.objects.create_user(f"user {number}")
        world.realistic(other)
        world.workspace(other, "runs", phase="RUNNING", desired_state="RUNNING")
    with CaptureQueriesContext(connection) as many:
        desk.get("/admin/overview/")
    assert len(few) == len(many)
    assert len(many) < 30


def test_the_index_leads_to_the_overview_and_to_what_is_broken(desk: Client) -> None:
    page = desk.get("/admin/").content.decode()
    assert 'href="/admin/overview/"' in page
    assert "?trouble=person" in page


def test_a_leader_whose_heartbeat_is_stale_is_called_so() -> None:
    now = timezone.now()
    stale = LoopLease(loop="gc", holder="host", heartbeat_at=now - timedelta(seconds=16))
    fresh = LoopLease(loop="ttl", holder="host", heartbeat_at=now - timedelta(seconds=14))
    nobody = LoopLease(loop="events", holder="", heartbeat_at=now)
    troubles = {health.loop: health.trouble for health in loop_health([stale, fresh, nobody], now=now)}
    assert troubles["ttl"] == ""
    assert "stale" in troubles["gc"]
    assert "Nobody leads" in troubles["events"]
    assert "ever" in troubles["reconcile"]


def test_an_orphan_says_what_will_become_of_it() -> None:
    now = timezone.now()
    young = Orphan(kind="volume", name="v", known=True, first_seen_at=now)
    old = Orphan(kind="volume", name="v", known=True, first_seen_at=now - timedelta(days=1))
    unknown = Orphan(kind="archive", name="a", known=False, first_seen_at=now - timedelta(days=1))
    confirmed = Orphan(kind="archive", name="a", known=False, first_seen_at=now - timedelta(days=1), confirmed_at=now)
    assert [orphan_row(orphan, now=now).confirmable for orphan in (young, old, unknown, confirmed)] == [False, False, True, False]
    assert "grace" in orphan_row(young, now=now).fate
    assert "next clean-up" in orphan_row(confirmed, now=now).fate


def test_confirming_an_unknown_orphan_is_stored_and_audited(desk: Client) -> None:
    orphan = Orphan.objects.create(kind="archive", name="x/home.tar.zst", known=False, size=5)
    response = desk.post(f"/admin/overview/orphans/{orphan.pk}/confirm/", follow=True)
    orphan.refresh_from_db()
    assert orphan.confirmed_at is not None
    assert orphan.confirmed_by is not None
    assert "next clean-up" in response.content.decode()
    event = AuditEvent.objects.get(action="confirm_orphan")
    assert (event.actor_name, event.address, event.detail["name"]) == ("operator", "127.0.0.1", "x/home.tar.zst")


def test_a_known_orphan_and_one_that_is_gone_are_refused_in_words(desk: Client) -> None:
    known = Orphan.objects.create(kind="volume", name="v", known=True)
    assert "goes by itself" in desk.post(f"/admin/overview/orphans/{known.pk}/confirm/", follow=True).content.decode()
    assert "no such orphan" in desk.post("/admin/overview/orphans/999999/confirm/", follow=True).content.decode()
    assert desk.get(f"/admin/overview/orphans/{known.pk}/confirm/").status_code == 405
    response = desk.post("/admin/workspaces/orphan/", {"action": "confirm_removal", "_selected_action": [known.pk]}, follow=True)
    assert "goes by itself" in response.content.decode()


def test_users_who_are_no_operators_confirm_nothing(owner: User) -> None:
    orphan = Orphan.objects.create(kind="archive", name="x", known=False)
    client = Client()
    client.force_login(owner)
    assert client.post(f"/admin/overview/orphans/{orphan.pk}/confirm/", follow=True).status_code == 403
    orphan.refresh_from_db()
    assert orphan.confirmed_at is None


RECORDS = ["attempt", "transition", "auditevent", "alert", "looplease", "breaker", "orphan", "installation", "apitoken"]


@pytest.mark.parametrize("model", RECORDS)
def test_records_can_be_read_and_nothing_else(desk: Client, owner: User, model: str) -> None:
    world.realistic(owner)
    address = f"/admin/workspaces/{model}/"
    response = desk.get(address)
    assert response.status_code == 200
    assert desk.get(f"{address}add/").status_code == 403
    for row in response.context["cl"].result_list:
        assert desk.get(f"{address}{row.pk}/change/").status_code == 200
        assert desk.post(f"{address}{row.pk}/change/", {"state": "SUCCEEDED"}).status_code == 403
        assert desk.post(f"{address}{row.pk}/delete/", {"post": "yes"}).status_code == 403


def test_the_links_from_a_workspace_to_its_records_work(desk: Client, owner: User) -> None:
    failed = world.realistic(owner, copies=2)[3]
    for address in (
        f"/admin/workspaces/attempt/?workspace__id__exact={failed.pk}",
        f"/admin/workspaces/transition/?workspace__id__exact={failed.pk}",
        f"/admin/workspaces/auditevent/?workspace_id={failed.pk}",
    ):
        response = desk.get(address)
        assert response.status_code == 200
        assert len(response.context["cl"].result_list) == 1


def test_the_desk_uses_the_tokens_of_the_one_stylesheet() -> None:
    blocks = [re.search(r":root \{\n.*?\n\}\n", (STATIC / name).read_text(), re.DOTALL) for name in ("codehub.css", "admin-codehub.css")]
    assert blocks[0]
    assert blocks[1]
    assert blocks[0][0] == blocks[1][0]
    accents = re.findall(r"--accent: light-dark\([^)]*\);", (STATIC / "admin-codehub.css").read_text())
    assert len(accents) == 2
    assert len(set(accents)) == 1
