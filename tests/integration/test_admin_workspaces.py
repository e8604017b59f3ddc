"""Operators find what is broken and mend it, many at once with a result for each; what is observed cannot be typed in."""

from typing import Any
from uuid import uuid4

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django_redis import get_redis_connection

from tests.integration import admin_world as world
from workspaces.models import AuditEvent, Workspace

pytestmark = pytest.mark.django_db

LIST = "/admin/workspaces/workspace/"


@pytest.fixture
def owner() -> User:
    return User.objects.create_user("owner", email="owner@example.org")


@pytest.fixture
def desk() -> Client:
    """A browser in which an operator is signed in."""
    client = Client()
    client.force_login(world.operator())
    return client


def names(client: Client, query: str) -> set[str]:
    response = client.get(f"{LIST}{query}")
    assert response.status_code == 200, response.content
    return {row.name for row in response.context["cl"].result_list}


def change(workspace: Workspace) -> str:
    return reverse("admin:workspaces_workspace_change", args=[workspace.pk])


def ask(client: Client, name: str, chosen: list[Workspace], **answers: Any) -> Any:
    body = {"ids": " ".join(str(workspace.pk) for workspace in chosen), "confirmed": "1", **answers}
    return client.post(f"{LIST}ask/{name}/", body, follow=True)


def test_an_operator_finds_broken_workspaces_by_every_filter(desk: Client, owner: User) -> None:
    world.realistic(owner)
    other = User.objects.create_user("other")
    world.broken(other, "elsewhere", "Timeout")
    assert names(desk, "?trouble=person") == {"lost 0", "no image 0", "elsewhere"}
    assert names(desk, "?phase=ERROR&error_reason__exact=DataLost") == {"lost 0"}
    assert names(desk, "?operation__exact=ARCHIVING") == {"thesis 0"}
    assert names(desk, "?desired_state__exact=ARCHIVED") == {"stuck 0"}
    assert names(desk, "?trouble=stuck") == {"stuck 0"}
    assert names(desk, "?owner_name=OTHER") == {"elsewhere"}
    assert names(desk, "?phase_age=gt-hour") == {"no image 0"}
    assert names(desk, "?age=gt-day") == set()
    assert len(names(desk, "?age=lt-hour")) == 6


def test_search_goes_by_id_name_and_owner(desk: Client, owner: User) -> None:
    found = world.workspace(owner, "needle")
    world.workspace(User.objects.create_user("other"), "hay")
    for query in (str(found.pk), "needle", "owner", "owner@example.org"):
        assert names(desk, f"?q={query}") == {"needle"}
    assert desk.get(f"{LIST}?q=%00").status_code == 400


def test_deleted_workspaces_stay_out_of_the_list_until_asked_for(desk: Client, owner: User) -> None:
    world.workspace(owner, "there")
    gone = world.workspace(owner, "gone")
    Workspace.objects.filter(pk=gone.pk).update(phase="DELETED", deleted_at="2026-01-01T00:00Z", desired_state="DELETED")
    assert names(desk, "") == {"there"}
    assert names(desk, "?phase=DELETED") == {"gone"}
    assert names(desk, "?phase=any") == {"there", "gone"}


def test_the_list_costs_the_same_queries_for_one_and_for_many(desk: Client, owner: User) -> None:
    world.realistic(owner)
    desk.get(LIST)  # the first page of a session also notes where it came from
    with CaptureQueriesContext(connection) as few:
        desk.get(LIST)
    for number in range(20):
        world.broken(owner, f"more {number}")
    with CaptureQueriesContext(connection) as many:
        desk.get(LIST)
    assert len(few) == len(many)


def test_a_workspace_page_shows_conditions_attempts_transitions_audit_and_logs(desk: Client, owner: User) -> None:
    failed = world.realistic(owner)[3]
    Workspace.objects.filter(pk=failed.pk).update(
        conditions={
            "storage.volume_ready": {
                "status": True,
                "reason": "VolumeFound",
                "message": "whole",
                "last_transition_time": "2026-01-01T00:00:00Z",
            }
        }
    )
    page = desk.get(change(failed)).content.decode()
    for expected in ("VolumeFound", "ImagePullFailed", "no such image", "killed", "create", "STANDBY →", "not observed yet"):
        assert expected in page


def test_posting_controller_owned_columns_changes_nothing_but_the_description(desk: Client, owner: User) -> None:
    made = world.broken(owner, "broken")
    before: dict[str, Any] = dict(Workspace.objects.filter(pk=made.pk).values().get())
    forged = {
        "name": "renamed",
        "description": "",
        "memo": "",
        "phase": "RUNNING",
        "operation": "STARTING",
        "error_reason": "",
        "error_info": "null",
        "error_count": "0",
        "archive_key": "stolen/key",
        "archive_sha256": "0" * 64,
        "endpoint": "http://169.254.169.254",
        "home_ctx": "{}",
        "conditions": "{}",
        "deleted_at": "2020-01-01",
        "desired_state": "RUNNING",
        "recovery_strategy": "start_empty",
        "owner": str(User.objects.get(username="operator").pk),
        "image": "1",
    }
    response = desk.post(change(made), forged)
    assert response.status_code == 302
    after: dict[str, Any] = dict(Workspace.objects.filter(pk=made.pk).values().get())
    assert {key for key in after if after[key] != before[key]} == {"name", "updated_at"}
    event = AuditEvent.objects.latest("id")
    assert (event.action, event.actor_name, event.address, event.detail) == ("describe", "operator", "127.0.0.1", {"fields": ["name"]})


def test_a_wish_typed_on_the_page_goes_through_the_services(desk: Client, owner: User) -> None:
    made = world.workspace(owner, phase="RUNNING", desired_state="RUNNING")
    seen = made.updated_at.isoformat()
    desk.post(change(made), {"name": made.name, "wish": "STANDBY", "seen_at": seen})
    made.refresh_from_db()
    assert made.desired_state == "STANDBY"
    assert AuditEvent.objects.latest("id").detail["asked"] == "STANDBY"


def test_a_page_that_is_out_of_date_overwrites_nothing(desk: Client, owner: User) -> None:
    made = world.workspace(owner, "first")
    seen = made.updated_at.isoformat()
    Workspace.objects.filter(pk=made.pk).update(name="changed by the owner", updated_at="2030-01-01T00:00Z")
    response = desk.post(change(made), {"name": "changed by the operator", "seen_at": seen}, follow=True)
    made.refresh_from_db()
    assert made.name == "changed by the owner"
    assert "changed in the meantime" in response.content.decode()


@pytest.mark.parametrize("name", ["", "\u202eevil", "a\0b", "line\nbreak", "x" * 101])
def test_a_bad_name_is_refused_beside_its_field(desk: Client, owner: User, name: str) -> None:
    made = world.workspace(owner, "good")
    response = desk.post(change(made), {"name": name})
    assert response.status_code == 200
    assert response.context["adminform"].form.errors["name"]
    made.refresh_from_db()
    assert made.name == "good"


def test_rows_cannot_be_added_or_removed_for_good(desk: Client, owner: User) -> None:
    made = world.workspace(owner)
    assert desk.get(f"{LIST}add/").status_code == 403
    assert desk.post(f"{LIST}{made.pk}/delete/", {"post": "yes"}).status_code == 403
    desk.post(LIST, {"action": "delete_selected", "_selected_action": [made.pk], "post": "yes"})
    assert Workspace.objects.filter(pk=made.pk).exists()


def test_recover_first_shows_what_each_strategy_does_and_which_are_refused(desk: Client, owner: User) -> None:
    lost = world.broken(owner, "lost", archive_key="a/b/home.tar.zst", archive_size=5 * 1024**2, archived_at="2026-02-03T04:05Z")
    pull = world.broken(owner, "pull", "ImagePullFailed")
    fine = world.workspace(owner, "fine")
    response = desk.post(LIST, {"action": "recover", "_selected_action": [lost.pk, pull.pk, fine.pk]})
    page = response.content.decode()
    assert response.status_code == 200
    assert "2026-02-03 04:05" in page
    assert "5.0" in page
    refusals = {row.workspace.name: set(row.refusals) for row in response.context["rows"]}
    assert refusals == {
        "lost": set(),
        "pull": {"restore_archive", "start_empty"},
        "fine": {"reobserve", "restore_archive", "start_empty"},
    }
    assert not Workspace.objects.filter(recovery_strategy__isnull=False).exists()


def test_recovering_many_says_for_each_what_became_of_it(desk: Client, owner: User) -> None:
    lost = world.broken(owner, "lost", archive_key="a/b/home.tar.zst")
    empty = world.broken(owner, "never archived")
    fine = world.workspace(owner, "fine")
    page = ask(desk, "recover", [lost, empty, fine], strategy="restore_archive", understood="on").content.decode()
    assert Workspace.objects.get(pk=lost.pk).recovery_strategy == "restore_archive"
    assert Workspace.objects.get(pk=empty.pk).recovery_strategy is None
    for code in ("granted", "recovery_refused", "not_in_error"):
        assert code in page
    assert "1 of 3" in page
    event = AuditEvent.objects.get(action="recover")
    assert (event.actor_name, event.address, event.detail["strategy"]) == ("operator", "127.0.0.1", "restore_archive")


@pytest.mark.parametrize(("name", "strategy"), [("delete", ""), ("recover", "start_empty"), ("recover", "restore_archive")])
def test_what_loses_data_needs_a_tick_that_it_was_read(desk: Client, owner: User, name: str, strategy: str) -> None:
    made = world.broken(owner, archive_key="a/b/home.tar.zst")
    response = ask(desk, name, [made], strategy=strategy)
    assert response.status_code == 400
    made.refresh_from_db()
    assert (made.deleted_at, made.recovery_strategy) == (None, None)


def test_stop_archive_and_delete_many_at_once(desk: Client, owner: User) -> None:
    running = world.workspace(owner, "running", phase="RUNNING", desired_state="RUNNING")
    busy = world.workspace(owner, "busy", phase="STANDBY", operation="STARTING", desired_state="RUNNING")
    error = world.broken(owner, "error")
    page = ask(desk, "stop", [running, busy, error], queue="on").content.decode()
    assert {w.name: w.desired_state for w in Workspace.objects.all()} == {"running": "STANDBY", "busy": "STANDBY", "error": "STANDBY"}
    assert "recover_first" in page
    assert "STARTING" in page
    page = ask(desk, "archive", [busy]).content.decode()
    assert "operation_in_progress" in page
    ask(desk, "delete", [running, busy, error], queue="on", understood="on")
    assert Workspace.objects.filter(deleted_at__isnull=False, desired_state="DELETED").count() == 3
    assert AuditEvent.objects.filter(action="delete", actor_name="operator").count() == 3


def test_delete_says_honestly_what_is_lost_before_it_acts(desk: Client, owner: User) -> None:
    made = world.workspace(owner)
    page = desk.post(LIST, {"action": "delete", "_selected_action": [made.pk]}).content.decode()
    assert "every archive" in page
    assert "Nobody can bring them back" in page
    made.refresh_from_db()
    assert made.deleted_at is None


def test_reobserve_wakes_the_controller_with_the_workspace_id(desk: Client, owner: User) -> None:
    made = world.workspace(owner)
    ears = get_redis_connection("default").pubsub(ignore_subscribe_messages=True)
    try:
        ears.subscribe(f"{settings.CONFIG.redis_channel_wake_prefix}:ob")
        ears.get_message(timeout=5)
        page = desk.post(LIST, {"action": "reobserve", "_selected_action": [made.pk]}, follow=True).content.decode()
        heard = ears.get_message(timeout=5)
    finally:
        ears.close()
    assert heard["data"].decode() == str(made.pk)
    assert "granted" in page


def test_ids_that_are_unknown_or_nonsense_are_no_traceback(desk: Client) -> None:
    for ids in ("", "nonsense", str(uuid4()), "\0", "'; drop table"):
        assert desk.post(f"{LIST}ask/stop/", {"ids": ids, "confirmed": "1"}, follow=True).status_code in (200, 404)
    assert desk.post(f"{LIST}ask/explode/", {"ids": ""}).status_code == 403
    assert desk.get(f"{LIST}ask/stop/").status_code == 405


def test_a_workspace_that_is_going_can_only_be_looked_at(desk: Client, owner: User) -> None:
    made = world.workspace(owner)
    ask(desk, "delete", [made], understood="on")
    assert desk.get(change(made)).status_code == 200
    assert desk.post(change(made), {"name": "renamed"}).status_code == 403


@pytest.mark.parametrize("path", [LIST, "/admin/", "/admin/overview/", f"{LIST}ask/delete/", "/admin/workspaces/auditevent/"])
def test_strangers_are_sent_to_the_one_login_page_and_users_are_refused(owner: User, path: str) -> None:
    client = Client()
    response = client.get(path, follow=False)
    assert response.status_code == 302
    last = client.get(response["Location"])
    assert last.status_code == 302
    assert last["Location"].startswith("/login/?next=/admin/")
    client.force_login(owner)
    assert client.get(path, follow=True).status_code == 403


def test_the_login_detour_never_leads_to_another_site() -> None:
    response = Client().get("/admin/login/?next=https://evil.example.org/")
    assert response["Location"] == "/login/?next=/admin/"
