"""Every call of the API as a stranger, another user, the owner and an operator; and what must look alike."""

from typing import Any, NamedTuple
from uuid import uuid4

import pytest
from django.urls import get_resolver
from django.urls.resolvers import URLPattern

from tests.api import Api, person, workspace_of
from workspaces.api import urls
from workspaces.models import ApiToken, AuditEvent, Workspace

pytestmark = pytest.mark.django_db


class Call(NamedTuple):
    method: str
    path: str
    body: Any
    stranger: int
    other: int
    owner: int
    staff: int


CALLS = [
    Call("POST", "auth/login", {"username": "ada", "password": "wrong"}, 401, 401, 401, 401),
    Call("GET", "auth/login", None, 405, 405, 405, 405),
    Call("POST", "auth/logout", None, 401, 204, 204, 204),
    Call("GET", "tokens", None, 401, 200, 200, 200),
    Call("POST", "tokens", {"name": "x"}, 401, 201, 201, 201),
    Call("DELETE", "tokens/{token}", None, 401, 404, 204, 404),
    Call("GET", "me", None, 401, 200, 200, 200),
    Call("GET", "images", None, 401, 200, 200, 200),
    Call("GET", "schema", None, 401, 200, 200, 200),
    Call("GET", "events", None, 401, 503, 503, 503),
    Call("GET", "workspaces", None, 401, 200, 200, 200),
    Call("GET", "workspaces?all=true", None, 401, 403, 403, 200),
    Call("POST", "workspaces", {"name": "x", "desired_state": "STANDBY"}, 401, 201, 201, 201),
    Call("GET", "workspaces/{id}", None, 401, 404, 200, 200),
    Call("PATCH", "workspaces/{id}", {"memo": "x"}, 401, 404, 200, 200),
    Call("PATCH", "workspaces/{id}", {"desired_state": "RUNNING"}, 401, 404, 200, 200),
    Call("DELETE", "workspaces/{id}", None, 401, 404, 202, 202),
    Call("POST", "workspaces/{id}/recover", None, 401, 404, 403, 409),
    Call("POST", "workspaces/{broken}/recover", None, 401, 404, 403, 200),
    Call("GET", "workspaces/{id}/history", None, 401, 404, 200, 200),
    Call("GET", "workspaces/{id}/logs", None, 401, 404, 200, 200),
    Call("GET", "workspaces/{unknown}", None, 401, 404, 404, 404),
    Call("GET", "nothing/here", None, 401, 404, 404, 404),
]


@pytest.fixture
def world() -> dict[str, Any]:
    ada = person("ada")
    broken = workspace_of(ada, "broken", phase="ERROR", desired_state="STANDBY", error_reason="ActionFailed")
    found: dict[str, Any] = {
        "stranger": Api(None),
        "other": Api(person("bob")),
        "owner": Api(ada),
        "staff": Api(person("root", is_staff=True)),
        "id": workspace_of(ada, "secret name", phase="STANDBY", desired_state="STANDBY").pk,
        "broken": broken.pk,
        "unknown": uuid4(),
    }
    found["token"] = ApiToken.objects.get(auth_token__user=ada).pk
    return found


@pytest.mark.parametrize("who", ["stranger", "other", "owner", "staff"])
@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call.method} {call.path}")
def test_who_may_call_what(world: dict[str, Any], call: Call, who: str) -> None:
    path = call.path.format(**{name: world[name] for name in ("id", "broken", "unknown", "token")})
    answer = world[who].send(call.method, path, call.body)
    assert answer.status_code == getattr(call, who)
    if answer.status_code >= 400:
        assert {"detail", "code"} <= set(answer.json())
    if answer.status_code == 401:
        assert answer["WWW-Authenticate"].startswith("Bearer")


def test_the_table_names_every_address_of_the_api() -> None:
    named = {call.path.partition("?")[0].format(id=1, broken=1, unknown=1, token=1) for call in CALLS}
    for pattern in urls.urlpatterns:
        assert isinstance(pattern, URLPattern)
        if pattern.name not in {"api-unknown", "api-docs"}:
            assert any(pattern.resolve("v1/" + path) for path in named), pattern.name


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "", None),
        ("PATCH", "", {"memo": "x"}),
        ("PATCH", "", {"desired_state": "RUNNING"}),
        ("PATCH", "?queue=true", {"desired_state": "RUNNING"}),
        ("DELETE", "", None),
        ("GET", "/history", None),
        ("GET", "/logs", None),
        ("POST", "/recover", None),
    ],
)
def test_another_users_id_and_no_id_at_all_look_alike_and_change_nothing(world: dict[str, Any], method: str, path: str, body: Any) -> None:
    before = list(Workspace.objects.order_by("id").values())
    audited = AuditEvent.objects.filter(workspace_id__isnull=False).count()
    theirs = world["other"].send(method, f"workspaces/{world['id']}{path}", body)
    nobodys = world["other"].send(method, f"workspaces/{world['unknown']}{path}", body)
    no_id = world["other"].send(method, f"workspaces/not-an-id{path}", body)
    assert theirs.status_code == nobodys.status_code == no_id.status_code == 404
    assert theirs.content == nobodys.content == no_id.content
    assert dict(theirs.items()) == dict(nobodys.items())
    assert list(Workspace.objects.order_by("id").values()) == before
    assert AuditEvent.objects.filter(workspace_id__isnull=False).count() == audited


def test_other_peoples_workspaces_are_in_no_list_or_search(world: dict[str, Any]) -> None:
    for query in ({}, {"search": "secret"}, {"phase": "STANDBY"}, {"ordering": "name"}):
        assert world["other"].get("workspaces", query).json()["results"] == []


OBSERVED = [
    *("conditions", "observed_at", "phase", "phase_changed_at", "operation", "op_started_at", "archive_op_id", "archive_key"),
    *("archive_sha256", "archive_size", "archived_at", "error_reason", "error_info", "error_count", "previous_phase", "home_ctx"),
    *("endpoint", "owner", "owner_id", "id", "pk", "created_at", "updated_at", "deleted_at", "last_access_at", "last_activity"),
    *("keep_awake_until", "recovery_strategy", "image_id", "__class__"),
]


@pytest.mark.parametrize("field", OBSERVED)
def test_no_body_reaches_a_column_that_is_not_the_callers_to_set(world: dict[str, Any], field: str) -> None:
    before = Workspace.objects.filter(pk=world["id"]).values().get()
    for api in (world["owner"], world["staff"]):
        values: tuple[Any, ...] = ("RUNNING", None, 1, {}, "2026-01-01T00:00:00Z")
        for value in values:
            assert api.patch(f"workspaces/{world['id']}", {field: value}).status_code == 400
        assert api.post("workspaces", {"name": "x", "desired_state": "STANDBY", field: "x"}).status_code == 400
    assert Workspace.objects.filter(pk=world["id"]).values().get() == before


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/workspaces/../me",
        "/api/v1/workspaces/%2e%2e/me",
        "/api/v1//me",
        "/api/v1/workspaces/%00",
        "/api/v1/me%2f..%2ftokens",
        "/api/v1/workspaces/%5c",
    ],
)
def test_odd_paths_are_404_for_users_and_401_for_strangers(world: dict[str, Any], path: str) -> None:
    assert world["owner"].get(path).status_code == 404
    assert world["stranger"].get(path).status_code == 401


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
def test_what_a_foreign_page_can_post_without_asking_is_refused(world: dict[str, Any], content_type: str) -> None:
    answer = world["owner"].client.generic("POST", "/api/v1/workspaces", b'{"name": "x"}', content_type=content_type)
    assert answer.status_code == 415


def test_markup_goes_out_as_data_with_a_type_no_browser_renders(world: dict[str, Any]) -> None:
    name = "<script>alert(1)</script>"
    answer = world["owner"].post("workspaces", {"name": name, "desired_state": "STANDBY"})
    assert answer.json()["name"] == name
    assert answer["Content-Type"] == "application/json"
    assert answer["X-Content-Type-Options"] == "nosniff"
    assert answer["Cache-Control"] == "no-store"


def test_the_resolver_has_nothing_else_below_api() -> None:
    prefixes = [str(pattern.pattern) for pattern in get_resolver().url_patterns if str(pattern.pattern).startswith("api")]
    assert prefixes == ["api/"]
