"""Names and notes that try to be markup, control a terminal, reorder a line or fill the memory, through every door.

What is harmless as text is kept as it was typed and shown escaped; what is not text is refused with the field's name.
"""

import json
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client

from tests.integration import admin_world as world
from workspaces.models import AuditEvent, Workspace

pytestmark = pytest.mark.django_db

MARKUP = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror=alert('1')>",
    "'; DROP TABLE workspaces_workspace; --",
    "{{ 7|add:7 }}{% now 'Y' %}",
    "</textarea></title><svg onload=alert(1)>",
    "javascript:alert(1)",
    "%(name)s %s {0} ${x}",
]
NOT_TEXT = [
    "nul\x00byte",
    "bell\x07",
    "\x1b[31mred",
    "two\nlines",
    "right\u202eto left",
    "isolate\u2066x\u2069",
    "mark\u200f",
    "del\x7f",
    "c1\x85x",
    "x" * 101,
    "   ",
    "",
]


@pytest.fixture
def owner() -> User:
    return User.objects.create_superuser("owner")


@pytest.fixture
def browser(owner: User) -> Client:
    client = Client()
    client.force_login(owner)
    return client


def api(client: Client, method: str, path: str, body: Any) -> Any:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return client.generic(method, f"/api/v1/{path}", data, content_type="application/json")


@pytest.mark.parametrize("text", MARKUP)
def test_markup_is_kept_as_typed_and_escaped_on_every_page(browser: Client, owner: User, text: str) -> None:
    response = api(browser, "POST", "workspaces", {"name": text, "description": text, "memo": text, "desired_state": "STANDBY"})
    assert response.status_code == 201, response.content
    made = Workspace.objects.get()
    assert (made.name, made.description, made.memo) == (text, text, text)
    Workspace.objects.update(
        phase="ERROR",
        error_reason="DataLost",
        error_info={"reason": "DataLost", "message": text, "context": {"detail": text}, "operation": text},
    )
    pages = [
        "/",
        f"/workspaces/{made.pk}/",
        f"/workspaces/{made.pk}/edit/",
        f"/workspaces/{made.pk}/delete/",
        "/savings/",
        "/admin/overview/",
        "/admin/workspaces/workspace/",
        f"/admin/workspaces/workspace/{made.pk}/change/",
        "/admin/workspaces/auditevent/",
    ]
    for page in pages:
        content = browser.get(page).content.decode()
        for piece in ("<script>alert", "<img src=x", "<svg onload"):
            assert piece not in content, page
        assert "1414" not in content, page
    chosen = {"action": "recover", "_selected_action": [made.pk]}
    confirmation = browser.post("/admin/workspaces/workspace/", chosen).content.decode()
    result = browser.post("/admin/workspaces/workspace/ask/stop/", {"ids": str(made.pk), "confirmed": "1"}, follow=True).content.decode()
    for content in (confirmation, result):
        assert not any(piece in content for piece in ("<script>alert", "<img src=x", "<svg onload"))


@pytest.mark.parametrize("text", NOT_TEXT)
@pytest.mark.parametrize("door", ["api create", "api change", "form create", "form edit", "admin"])
def test_a_name_that_is_not_a_line_of_text_is_refused_at_every_door(browser: Client, owner: User, door: str, text: str) -> None:
    made = world.workspace(owner, "as it was")
    match door:
        case "api create":
            response = api(browser, "POST", "workspaces", {"name": text})
            assert response.status_code == 400
            assert response.json()["code"] == "invalid"
        case "api change":
            response = api(browser, "PATCH", f"workspaces/{made.pk}", {"name": text})
            assert response.status_code == 400
        case "form create":
            response = browser.post("/workspaces/new/", {"name": text, "image": made.image.name})
            assert response.status_code in (200, 400, 422)
        case "form edit":
            response = browser.post(f"/workspaces/{made.pk}/edit/", {"name": text})
            assert response.status_code in (200, 400, 422)
        case _:
            response = browser.post(f"/admin/workspaces/workspace/{made.pk}/change/", {"name": text})
            assert response.status_code == 200
    assert [workspace.name for workspace in Workspace.objects.all()] == ["as it was"]


@pytest.mark.parametrize("value", [None, 5, True, ["a"], {"a": 1}, 1.5])
def test_a_name_of_another_type_is_refused(browser: Client, value: Any) -> None:
    assert api(browser, "POST", "workspaces", {"name": value}).status_code == 400
    assert not Workspace.objects.exists()


@pytest.mark.parametrize(
    "body",
    [
        b'{"name": "\\ud800"}',
        b'{"name": "\\u0000"}',
        b'{"name": "\xff\xfe"}',
        b"\xef\xbb\xbf{}",
        b"[" * 50_000,
        b'{"name": NaN}',
        b'{"name": 1e999}',
        b"null",
        b"",
        b'{"name": "a", "name": "b\\u202e"}',
    ],
)
def test_bodies_that_are_not_quite_json_are_refused_without_a_traceback(browser: Client, body: bytes) -> None:
    response = api(browser, "POST", "workspaces", body)
    assert response.status_code == 400, response.content[:200]
    assert not Workspace.objects.exists()


def test_memos_keep_lines_and_lose_nothing_but_control_characters_are_refused(browser: Client, owner: User) -> None:
    made = world.workspace(owner)
    memo = "first\nsecond\tindented\r\nthird 한국어 🙂 e\u0301"
    assert api(browser, "PATCH", f"workspaces/{made.pk}", {"memo": memo}).status_code == 200
    made.refresh_from_db()
    assert made.memo == memo
    for bad in ("a\x00b", "a\x1bb", "a\u202eb", "x" * 10_001):
        assert api(browser, "PATCH", f"workspaces/{made.pk}", {"memo": bad}).status_code == 400
    made.refresh_from_db()
    assert made.memo == memo


@pytest.mark.parametrize("door", ["api", "form", "admin"])
def test_a_megabyte_is_refused_at_every_door(browser: Client, owner: User, door: str) -> None:
    made = world.workspace(owner, "as it was")
    megabyte = "m" * max(1_048_576, settings.DATA_UPLOAD_MAX_MEMORY_SIZE + 1)
    match door:
        case "api":
            response = api(browser, "PATCH", f"workspaces/{made.pk}", {"memo": megabyte})
        case "form":
            response = browser.post(
                f"/workspaces/{made.pk}/edit/", f"name=a&memo={megabyte}", content_type="application/x-www-form-urlencoded"
            )
        case _:
            response = browser.post(
                f"/admin/workspaces/workspace/{made.pk}/change/",
                f"name=a&memo={megabyte}",
                content_type="application/x-www-form-urlencoded",
            )
    assert response.status_code in (400, 413)
    made.refresh_from_db()
    assert (made.name, made.memo) == ("as it was", "")


def test_hostile_search_words_and_filters_are_answered(browser: Client, owner: User) -> None:
    world.workspace(owner, "there")
    for word in ["%00", "%27", "%5C", "%25_", "%E2%80%AE", "%F0%9F%99%82", "a" * 5000, "%FF"]:
        for address in (f"/?q={word}", f"/api/v1/workspaces?search={word}", f"/admin/workspaces/workspace/?q={word}"):
            assert browser.get(address).status_code in (200, 302, 400), address
        for parameter in ("phase", "trouble", "owner_name", "age", "phase_age", "error_reason__exact", "o", "p", "e"):
            assert browser.get(f"/admin/workspaces/workspace/?{parameter}={word}").status_code in (200, 302, 400), parameter


def test_the_audit_trail_keeps_hostile_agents_and_addresses_as_data(owner: User) -> None:
    client = Client(HTTP_USER_AGENT="<script>alert(1)</script>", HTTP_X_FORWARDED_FOR="<script>, 1.2.3.4")
    client.force_login(owner)
    assert api(client, "POST", "workspaces", {"name": "x", "desired_state": "STANDBY"}).status_code == 201
    assert AuditEvent.objects.get(action="create").address == "127.0.0.1"
    assert "<script>alert" not in client.get("/account/").content.decode()
