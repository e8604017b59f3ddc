"""Workspaces over HTTP: what is read, created, changed and deleted, and how each wrong request is answered."""

import json
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tests.api import Api, person, workspace_of
from workspaces import services
from workspaces.models import Attempt, LogTail, Transition, UserProfile, Workspace

pytestmark = pytest.mark.django_db

FIELDS = {
    "id",
    "name",
    "description",
    "memo",
    "owner",
    "image",
    "phase",
    "operation",
    "desired_state",
    "conditions",
    "has_archive",
    "archive_key",
    "error_reason",
    "error_info",
    "error_count",
    "previous_phase",
    "standby_ttl_seconds",
    "archive_ttl_seconds",
    "stops_at",
    "archives_at",
    "last_access_at",
    "last_activity",
    "phase_changed_at",
    "op_started_at",
    "progress",
    "archive_size",
    "archived_at",
    "observed_at",
    "created_at",
    "updated_at",
    "url",
}


@pytest.fixture
def ada() -> Any:
    return person("ada")


@pytest.fixture
def api(ada: Any) -> Api:
    return Api(ada)


def test_a_created_workspace_reads_back_with_every_field_and_no_other(api: Api) -> None:
    made = api.post("workspaces", {"name": "thesis", "memo": "a\nb"})
    assert made.status_code == 201
    body = made.json()
    assert set(body) == FIELDS
    assert (body["owner"], body["phase"], body["operation"], body["desired_state"]) == ("ada", "PENDING", "NONE", "RUNNING")
    assert body["url"] == f"http://testserver/w/{body['id']}/"
    assert body["conditions"]["policy.healthy"]["status"] is True
    assert made["Location"] == f"/api/v1/workspaces/{body['id']}"
    read = api.get(f"workspaces/{body['id']}")
    assert read.status_code == 200
    assert read.json() == body
    assert read["ETag"] == f'"{body["updated_at"]}"'


@pytest.mark.parametrize("path", ["workspaces", "me", "images", "tokens", "schema"])
def test_a_slash_at_the_end_changes_nothing(api: Api, path: str) -> None:
    plain, slashed = api.get(path), api.get(path + "/")
    assert plain.status_code == slashed.status_code == 200
    assert plain["Content-Type"] == "application/json"


def test_times_of_expiry_and_progress_are_shown(api: Api, ada: Any) -> None:
    now = timezone.now()
    running = workspace_of(ada, phase="RUNNING", desired_state="RUNNING", last_access_at=now, phase_changed_at=now - timedelta(hours=1))
    body = api.get(f"workspaces/{running.pk}").json()
    assert body["stops_at"] == (now + timedelta(seconds=600)).isoformat().replace("+00:00", "Z")
    assert body["archives_at"] is None
    assert body["progress"] is None
    busy = workspace_of(ada, "busy", phase="STANDBY", desired_state="ARCHIVED", operation="ARCHIVING")
    Attempt.objects.create(workspace=busy, operation="ARCHIVING", op_id=uuid4(), action="archive", state="SUCCEEDED", finished_at=now)
    Attempt.objects.create(
        workspace=busy, operation="ARCHIVING", op_id=uuid4(), action="archive", state="RUNNING", step="upload", bytes_done=5, bytes_total=10
    )
    body = api.get(f"workspaces/{busy.pk}").json()
    assert body["archives_at"] is None
    assert body["progress"] == {"action": "archive", "step": "upload", "bytes_done": 5, "bytes_total": 10, "started_at": None}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "x", "phase": "RUNNING"}, "phase"),
        ({"name": "x", "owner": 1}, "owner"),
        ({"name": "x", "id": str(uuid4())}, "id"),
        ({"name": "x", "archive_key": "k"}, "archive_key"),
        ({"name": "x", "colour": "red"}, "colour"),
        ({}, "name"),
        ({"name": ""}, "name"),
        ({"name": 5}, "name"),
        ({"name": None}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"name": "a\u202eb"}, "name"),
        ({"name": "x", "image": 5}, "image"),
        ({"name": "x", "image": "nothing-like-it"}, "image"),
        ({"name": "x", "image": None}, "image"),
        ({"name": "x", "desired_state": "DELETED"}, "desired_state"),
        ({"name": "x", "desired_state": []}, "desired_state"),
        ({"name": "x", "standby_ttl_seconds": 5}, "standby_ttl_seconds"),
        ({"name": "x", "standby_ttl_seconds": True}, "standby_ttl_seconds"),
        ({"name": "x", "archive_ttl_seconds": "60"}, "archive_ttl_seconds"),
        ({"name": "x", "archive_ttl_seconds": 60.5}, "archive_ttl_seconds"),
    ],
)
def test_a_wrong_field_is_refused_by_name_and_nothing_is_made(api: Api, body: dict[str, Any], field: str) -> None:
    answer = api.post("workspaces", body)
    assert answer.status_code == 400
    assert answer.json()["code"] == "invalid"
    assert field in answer.json()["fields"]
    assert not Workspace.objects.exists()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"name"',
        b'{"name": "x", "name": "y"}',
        b'{"name": NaN}',
        b'{"name": "a\\u0000b"}',
        b'{"name": "\\ud800"}',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"standby_ttl_seconds": ' + b"9" * 5000 + b', "name": "x"}',
    ],
)
def test_what_is_not_a_json_object_is_refused(api: Api, raw: bytes) -> None:
    answer = api.post("workspaces", raw)
    assert answer.status_code == 400
    assert answer.json()["code"] == "invalid"


def test_other_content_types_and_large_bodies_are_refused(api: Api) -> None:
    answer = api.client.post("/api/v1/workspaces", "name=x", content_type="text/plain")
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")
    answer = api.post("workspaces", {"name": "x", "memo": "x" * 300_000})
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


def test_a_key_and_body_sent_twice_make_one_workspace(api: Api) -> None:
    first = api.post("workspaces", {"name": "x"}, Idempotency_Key="k1")
    again = api.post("workspaces", {"name": "x"}, Idempotency_Key="k1")
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json() == again.json()
    assert again["Idempotent-Replayed"] == "true"
    other = api.post("workspaces", {"name": "y"}, Idempotency_Key="k1")
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_conflict")
    assert api.post("workspaces", {"name": "x"}, Idempotency_Key="k" * 300).status_code == 400
    assert Workspace.objects.count() == 1


def test_if_match_keeps_two_tabs_from_overwriting_each_other(api: Api) -> None:
    made = api.post("workspaces", {"name": "x"})
    path = f"workspaces/{made.json()['id']}"
    first = api.patch(path, {"memo": "one"}, If_Match=made["ETag"])
    assert first.status_code == 200
    assert first["ETag"] != made["ETag"]
    second = api.patch(path, {"memo": "two"}, If_Match=made["ETag"])
    assert (second.status_code, second.json()["code"]) == (412, "stale")
    assert api.patch(path, {"memo": "three"}, If_Match='"something"').status_code == 412
    assert api.patch(path, {"memo": "three"}, If_Match="no quotes").status_code == 412
    refused = api.delete(path, If_Match=made["ETag"])
    assert (refused.status_code, refused.json()["code"]) == (412, "stale")
    assert api.get(path).json()["memo"] == "one"
    assert api.patch(path, {"memo": "three"}, If_Match="*").status_code == 200
    assert api.patch(path, {"memo": "four"}).status_code == 200


@pytest.mark.parametrize(
    "body",
    [{"phase": "RUNNING"}, {"deleted_at": None}, {"desired_state": "DELETED"}, {"desired_state": None}, {"image": "x"}, {"name": ""}],
)
def test_a_change_that_is_not_allowed_leaves_the_row_as_it_was(api: Api, ada: Any, body: dict[str, Any]) -> None:
    workspace = workspace_of(ada, phase="STANDBY", desired_state="STANDBY")
    before = Workspace.objects.filter(pk=workspace.pk).values().get()
    answer = api.patch(f"workspaces/{workspace.pk}", {"memo": "changed", **body})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid")
    assert Workspace.objects.filter(pk=workspace.pk).values().get() == before


def test_a_wish_during_an_operation_is_409_unless_it_is_queued(api: Api, ada: Any) -> None:
    workspace = workspace_of(ada, phase="STANDBY", desired_state="RUNNING", operation="STARTING")
    path = f"workspaces/{workspace.pk}"
    answer = api.patch(path, {"desired_state": "STANDBY"})
    assert (answer.status_code, answer.json()["code"], answer.json()["operation"]) == (409, "operation_in_progress", "STARTING")
    answer = api.delete(path)
    assert (answer.status_code, answer.json()["code"]) == (409, "operation_in_progress")
    answer = api.patch(path + "?queue=true", {"desired_state": "STANDBY"})
    assert (answer.status_code, answer.json()["desired_state"]) == (200, "STANDBY")
    assert api.patch(path + "?queue=perhaps", {"desired_state": "STANDBY"}).status_code == 400
    answer = api.delete(path + "?queue=true")
    assert (answer.status_code, answer.json()["desired_state"]) == (202, "DELETED")


def test_delete_answers_with_the_workspace_which_reads_until_it_is_gone(api: Api, ada: Any) -> None:
    workspace = workspace_of(ada, phase="STANDBY", desired_state="STANDBY")
    path = f"workspaces/{workspace.pk}"
    assert api.delete(path).status_code == 202
    assert api.delete(path).status_code == 202
    Workspace.objects.filter(pk=workspace.pk).update(phase="DELETING")
    assert api.get(path).json()["phase"] == "DELETING"
    answer = api.patch(path, {"desired_state": "RUNNING"})
    assert (answer.status_code, answer.json()["code"]) == (409, "operation_in_progress")
    Workspace.objects.filter(pk=workspace.pk).update(phase="DELETED")
    assert api.get(path).status_code == api.delete(path).status_code == 404
    assert api.get("workspaces").json()["results"] == []


def test_running_limits_answer_429_with_what_runs(api: Api, ada: Any) -> None:
    UserProfile.objects.create(user=ada, max_running=1)
    one = api.post("workspaces", {"name": "one"}).json()
    answer = api.post("workspaces", {"name": "two"})
    assert (answer.status_code, answer.json()["code"]) == (429, "limit_exceeded")
    assert answer.json()["running"] == [{"id": one["id"], "name": "one", "phase": "PENDING"}]
    asleep = api.post("workspaces", {"name": "three", "desired_state": "STANDBY"}).json()
    assert api.patch(f"workspaces/{asleep['id']}", {"desired_state": "RUNNING"}).status_code == 429


def test_a_workspace_in_error_must_be_recovered_first_by_an_operator(api: Api, ada: Any) -> None:
    staff = Api(person("root", is_staff=True))
    broken = workspace_of(ada, phase="ERROR", desired_state="STANDBY", error_reason="ActionFailed", error_info={"reason": "ActionFailed"})
    path = f"workspaces/{broken.pk}"
    answer = api.patch(path, {"desired_state": "RUNNING"})
    assert (answer.status_code, answer.json()["code"]) == (409, "recover_first")
    assert api.post(path + "/recover").json()["code"] == "permission_denied"
    answer = staff.post(path + "/recover", {"strategy": "start_empty"})
    assert (answer.status_code, answer.json()["code"]) == (409, "recovery_refused")
    for wrong in ({"strategy": "magic"}, {"strategy": 5}, {"strategy": None}, {"force": True}):
        assert staff.post(path + "/recover", wrong).status_code == 400
    assert staff.post(path + "/recover").status_code == 200
    assert Workspace.objects.get(pk=broken.pk).recovery_strategy == "reobserve"
    fine = workspace_of(ada, "fine", phase="STANDBY", desired_state="STANDBY")
    answer = staff.post(f"workspaces/{fine.pk}/recover", {})
    assert (answer.status_code, answer.json()["code"]) == (409, "not_in_error")


@pytest.mark.parametrize(
    "ordering", ["-created_at", "created_at", "name", "-name", "last_access_at", "-last_access_at", "phase_changed_at"]
)
def test_pages_hold_every_row_once_in_order_both_ways(api: Api, ada: Any, ordering: str) -> None:
    base = timezone.now()
    for number in range(11):
        used = base - timedelta(minutes=number % 3) if number % 2 else None
        workspace_of(
            ada, f"w{number % 4}", desired_state="STANDBY", last_access_at=used, phase_changed_at=base + timedelta(seconds=number % 2)
        )
    page = api.get("workspaces", {"ordering": ordering, "page_size": 3}).json()
    assert page["previous"] is None
    forward = [[row["id"] for row in page["results"]]]
    while page["next"]:
        page = api.get(page["next"].removeprefix("http://testserver")).json()
        forward.append([row["id"] for row in page["results"]])
    assert [len(ids) for ids in forward] == [3, 3, 3, 2]
    everything = [row for ids in forward for row in ids]
    assert len(set(everything)) == 11
    whole = api.get("workspaces", {"ordering": ordering}).json()["results"]
    assert [row["id"] for row in whole] == everything
    field = ordering.lstrip("-")
    keys = [row[field] or "" for row in whole]
    assert keys == sorted(keys, reverse=ordering.startswith("-"))
    backward = [forward[-1]]
    while page["previous"]:
        page = api.get(page["previous"].removeprefix("http://testserver")).json()
        backward.insert(0, [row["id"] for row in page["results"]])
    assert backward == forward


def test_filters_narrow_the_list(api: Api, ada: Any) -> None:
    workspace_of(ada, "alpha", phase="STANDBY", desired_state="STANDBY", memo="find 100%_me")
    workspace_of(ada, "beta", phase="ARCHIVED", desired_state="ARCHIVED")
    workspace_of(ada, "gamma", phase="RUNNING", desired_state="RUNNING")

    def names(**query: Any) -> list[str]:
        return sorted(row["name"] for row in api.get("workspaces", query).json()["results"])

    assert names(phase="STANDBY") == ["alpha"]
    assert names(phase="STANDBY,ARCHIVED") == names(phase=["STANDBY", "ARCHIVED"]) == ["alpha", "beta"]
    assert names(search="ALPHA") == names(search="100%_") == ["alpha"]
    assert names(search="%") == ["alpha"]


@pytest.mark.parametrize(
    "query",
    [
        {"phase": "SLEEPING"},
        {"phase": "DELETED"},
        {"ordering": "owner"},
        {"page_size": "0"},
        {"page_size": "201"},
        {"page_size": "ten"},
        {"search": "a\x00b"},
        {"search": "x" * 201},
        {"all": "maybe"},
    ],
)
def test_a_wrong_query_is_refused(api: Api, query: dict[str, str]) -> None:
    answer = api.get("workspaces", query)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid")


@pytest.mark.parametrize("cursor", ["nonsense", "WyJhIl0", "é", "WzEsMiwzLDRd", "x" * 1001, "a\x00b"])
def test_a_cursor_that_was_not_made_here_leads_nowhere(api: Api, cursor: str) -> None:
    answer = api.get("workspaces", {"cursor": cursor})
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


def test_a_cursor_of_another_ordering_leads_nowhere(api: Api, ada: Any) -> None:
    for number in range(2):
        workspace_of(ada, str(number), desired_state="STANDBY")
    cursor = api.get("workspaces", {"page_size": 1}).json()["next"].partition("cursor=")[2].partition("&")[0]
    assert api.get("workspaces", {"cursor": cursor, "ordering": "name"}).status_code == 404


def test_the_number_of_queries_does_not_grow_with_the_list(api: Api, ada: Any) -> None:
    def queries() -> int:
        with CaptureQueriesContext(
            connection,
        ) as seen:
            assert api.get("workspaces").status_code == 200
        return len(seen)

    for number in range(3):
        made = workspace_of(ada, str(number), desired_state="STANDBY")
        Attempt.objects.create(workspace=made, operation="STARTING", op_id=uuid4(), action="start")
    api.get("me")
    few = queries()
    for number in range(47):
        made = workspace_of(ada, f"more{number}", desired_state="STANDBY")
        Attempt.objects.create(workspace=made, operation="STARTING", op_id=uuid4(), action="start")
    assert queries() == few
    assert few <= 3


def test_history_merges_runs_and_transitions_in_pages(api: Api, ada: Any) -> None:
    workspace = workspace_of(ada)
    base = timezone.now()
    for number in range(5):
        at = base + timedelta(seconds=number)
        Attempt.objects.create(
            workspace=workspace,
            operation="STARTING",
            op_id=uuid4(),
            action="start",
            state="FAILED",
            queued_at=at,
            finished_at=at,
            error={"reason": "Unreachable"},
        )
        for _ in range(2):
            Transition.objects.create(
                workspace=workspace, at=at, from_phase="STANDBY", to_phase="RUNNING", from_operation="STARTING", to_operation="NONE"
            )
    path = f"workspaces/{workspace.pk}/history"
    whole = api.get(path).json()
    assert whole["next"] is None
    assert len(whole["results"]) == 15
    assert [row["at"] for row in whole["results"]] == sorted((row["at"] for row in whole["results"]), reverse=True)
    paged = []
    page = api.get(path, {"page_size": 4}).json()
    while True:
        paged += page["results"]
        if not page["next"]:
            break
        page = api.get(page["next"].removeprefix("http://testserver")).json()
    assert paged == whole["results"]
    for cursor in ("nonsense", "WyJhIl0", "WzEsMiwzXQ"):
        assert api.get(path, {"cursor": cursor}).status_code == 404


def test_logs_show_the_ides_last_lines_and_failed_runs(api: Api, ada: Any) -> None:
    workspace = workspace_of(ada)
    path = f"workspaces/{workspace.pk}/logs"
    assert api.get(path).json() == {"ide": None, "failed_runs": []}
    LogTail.objects.create(workspace=workspace, text="hello\n")
    Attempt.objects.create(
        workspace=workspace, operation="STARTING", op_id=uuid4(), action="start", state="FAILED", finished_at=timezone.now(), log="no space"
    )
    body = api.get(path, {"fresh": "true"}).json()
    assert body["ide"]["text"] == "hello\n"
    assert [run["log"] for run in body["failed_runs"]] == ["no space"]


def test_unknown_addresses_and_methods_are_json(api: Api) -> None:
    for path in ("/api/", "/api/v1/", "/api/v1/nothing", "/api/v2/workspaces", "/api/v1/workspaces/x/y/z"):
        answer = api.get(path)
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), path
    answer = api.client.get("/api/v1/me", headers={"Host": "elsewhere.example"})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid")
    answer = api.put("workspaces", {})
    assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")
    assert {"GET", "POST"} <= set(answer["Allow"].split(", "))


def test_staff_lists_its_own_unless_it_asks_for_all(api: Api, ada: Any) -> None:
    staff_user = person("root", is_staff=True)
    staff = Api(staff_user)
    workspace_of(ada, "hers")
    workspace_of(staff_user, "own")
    assert [row["name"] for row in staff.get("workspaces").json()["results"]] == ["own"]
    assert {row["name"] for row in staff.get("workspaces", {"all": "true"}).json()["results"]} == {"own", "hers"}
    assert api.get("workspaces", {"all": "true"}).status_code == 403


def test_me_shows_limits_and_usage(api: Api, ada: Any) -> None:
    workspace_of(ada, "a")
    workspace_of(ada, "b", phase="ERROR", desired_state="STANDBY")
    body = api.get("me").json()
    assert body["username"] == "ada"
    assert body["usage"] == {"workspaces": 2, "running": 1, "in_error": 1}
    assert body["limits"] == {"max_running": 2, "max_running_global": 100, "max_workspaces": 100}


def test_images_are_the_catalogue_with_one_default(api: Api) -> None:
    results = api.get("images").json()["results"]
    assert [image["default"] for image in results] == [True] + [False] * (len(results) - 1)


def test_error_info_and_activity_go_out_as_they_were_recorded(api: Api, ada: Any) -> None:
    info = {"reason": "DataLost", "message": "gone", "context": {"archive_key": "k"}}
    workspace = workspace_of(
        ada, phase="ERROR", desired_state="STANDBY", error_info=info, last_activity={"kind": "input", "at": "2026-01-01"}
    )
    body = json.loads(api.get(f"workspaces/{workspace.pk}").content)
    assert body["error_info"] == info
    assert body["last_activity"]["kind"] == "input"


def test_a_fault_of_ours_is_a_500_that_tells_nothing_of_it(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_args: Any, **_kwargs: Any) -> Any:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(services, "limits_of", broken)
    answer = api.get("me")
    assert (answer.status_code, answer.json()["code"]) == (500, "server_error")
    assert "secret" not in answer.content.decode()


def test_a_database_that_does_not_answer_is_a_503_with_a_time_to_come_back(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_args: Any, **_kwargs: Any) -> Any:
        raise OperationalError("connection to server at 10.0.0.1 failed")

    monkeypatch.setattr(services, "limits_of", away)
    answer = api.get("me")
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert int(answer["Retry-After"]) > 0
    assert "10.0.0.1" not in answer.content.decode()
