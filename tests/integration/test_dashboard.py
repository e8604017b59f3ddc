"""The dashboard's pages as a browser without scripts sees them, on a real database."""

import re
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from workspaces import services
from workspaces.models import Attempt, Image, Installation, Workspace
from workspaces.phases import DesiredState, Operation, Phase

pytestmark = pytest.mark.django_db


@pytest.fixture
def user(settings: Any) -> User:
    # The slow hash is Django's business; here it would only cost seconds.
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    User.objects.create_superuser("root", password="correct horse battery")
    return User.objects.create_user("mina", password="correct horse battery")


@pytest.fixture
def browser(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def make(user: User) -> Callable[..., Workspace]:
    def make(name: str = "notes", **columns: Any) -> Workspace:
        columns.setdefault("desired_state", columns.get("phase", Phase.STANDBY))
        columns.setdefault("owner", user)
        return Workspace.objects.create(name=name, image=Image.objects.all()[0], **columns)

    return make


def page(client: Client, path: str, **kwargs: Any) -> str:
    response = client.get(path, **kwargs)
    assert response.status_code == 200, response.content[:2000]
    return response.content.decode()


def test_nobody_signed_in_is_sent_to_the_login_page_and_back(user: User) -> None:
    client = Client()
    for name in ("dashboard", "savings", "account", "workspace-new"):
        response = client.get(reverse(name))
        assert response.status_code == 302
        assert response["Location"].startswith("/login/?next=")
    assert client.post("/login/", {"username": "mina", "password": "correct horse battery", "next": "/savings/"})["Location"] == "/savings/"


def test_login_never_leads_to_another_host(user: User) -> None:
    for target in ("https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)"):
        response = Client().post("/login/", {"username": "mina", "password": "correct horse battery", "next": target})
        assert response["Location"] == "/"


def test_empty_dashboard_teaches(browser: Client) -> None:
    text = page(browser, "/")
    assert "Your first workspace" in text
    assert "0 of 2" in text


def test_create_without_scripts_makes_the_workspace_and_says_so(browser: Client, user: User) -> None:
    response = browser.post("/workspaces/new/", {"name": "api", "image": "code-server", "start": "on"}, follow=True)
    assert response.redirect_chain == [("/", 302)]
    workspace = Workspace.objects.get(owner=user)
    assert (workspace.name, workspace.desired_state) == ("api", DesiredState.RUNNING)
    assert "“api” was created." in response.content.decode()


def test_create_with_start_off_prepares_without_running(browser: Client, user: User) -> None:
    browser.post("/workspaces/new/", {"name": "api", "image": "code-server"})
    assert Workspace.objects.get(owner=user).desired_state == DesiredState.STANDBY


def test_create_shows_what_is_wrong_at_the_field(browser: Client, user: User) -> None:
    response = browser.post("/workspaces/new/", {"name": "a\u202eb", "image": "code-server"})
    assert response.status_code == 400
    assert "Must not hold control characters." in response.content.decode()
    assert browser.post("/workspaces/new/", {"name": "x", "image": "nothing"}).status_code == 400
    assert not Workspace.objects.filter(owner=user).exists()


def test_create_over_the_running_limit_names_what_runs(browser: Client, make: Callable[..., Workspace]) -> None:
    make("one", phase=Phase.RUNNING)
    make("two", phase=Phase.RUNNING)
    response = browser.post("/workspaces/new/", {"name": "three", "image": "code-server", "start": "on"})
    assert response.status_code == 400
    assert "Running now:" in response.content.decode()
    assert "“two”" in response.content.decode()


ACTIONS = {
    (Phase.RUNNING, DesiredState.RUNNING, Operation.NONE): {"open", "stop", "archive", "awake-1", "awake-4", "edit", "delete"},
    (Phase.STANDBY, DesiredState.STANDBY, Operation.NONE): {"open", "start", "archive", "edit", "delete"},
    (Phase.ARCHIVED, DesiredState.ARCHIVED, Operation.NONE): {"start", "edit", "delete"},
    (Phase.STANDBY, DesiredState.RUNNING, Operation.STARTING): {"open", "stop", "archive", "awake-1", "awake-4", "edit", "delete"},
    (Phase.STANDBY, DesiredState.ARCHIVED, Operation.ARCHIVING): {"start", "stop", "edit", "delete"},
    (Phase.ERROR, DesiredState.RUNNING, Operation.NONE): {"details", "edit", "delete"},
    (Phase.PENDING, DesiredState.RUNNING, Operation.NONE): {"open", "stop", "archive", "awake-1", "awake-4", "edit", "delete"},
}


@pytest.mark.parametrize("state", list(ACTIONS))
def test_card_offers_what_is_possible_and_nothing_else(
    state: tuple[Phase, DesiredState, Operation], browser: Client, make: Callable[..., Workspace]
) -> None:
    phase, desired, operation = state
    workspace = make(phase=phase, desired_state=desired, operation=operation)
    found = set(re.findall(rf'id="([a-z0-9-]+?)-{workspace.pk}"', page(browser, "/"))) - {"card", "name", "item", "more"}
    assert found == ACTIONS[state]


def test_queued_actions_say_that_they_wait(browser: Client, make: Callable[..., Workspace]) -> None:
    make(phase=Phase.STANDBY, desired_state=DesiredState.RUNNING, operation=Operation.STARTING)
    text = page(browser, "/")
    assert "Stop when done" in text
    assert "Delete when done" in text


def test_state_form_without_scripts_redirects_back(browser: Client, make: Callable[..., Workspace]) -> None:
    workspace = make(phase=Phase.RUNNING)
    response = browser.post(f"/workspaces/{workspace.pk}/state/", {"desired_state": "STANDBY", "next": f"/workspaces/{workspace.pk}/"})
    assert response["Location"] == f"/workspaces/{workspace.pk}/"
    workspace.refresh_from_db()
    assert workspace.desired_state == DesiredState.STANDBY


def test_state_form_asked_by_htmx_answers_with_the_card(browser: Client, make: Callable[..., Workspace]) -> None:
    workspace = make(phase=Phase.RUNNING)
    response = browser.post(f"/workspaces/{workspace.pk}/state/", {"desired_state": "STANDBY"}, headers={"HX-Request": "true"})
    text = response.content.decode()
    assert f'id="card-{workspace.pk}"' in text
    assert "Asked to stop" in text
    assert 'id="messages"' in text


def test_state_form_never_redirects_to_another_host(browser: Client, make: Callable[..., Workspace]) -> None:
    workspace = make(phase=Phase.RUNNING)
    response = browser.post(f"/workspaces/{workspace.pk}/state/", {"desired_state": "STANDBY", "next": "https://evil.example/"})
    assert response["Location"] == "/"


def test_refused_wish_is_told(browser: Client, make: Callable[..., Workspace]) -> None:
    workspace = make(phase=Phase.ERROR, desired_state=DesiredState.RUNNING, error_reason="DataLost")
    response = browser.post(f"/workspaces/{workspace.pk}/state/", {"desired_state": "STANDBY"}, follow=True)
    assert "must be recovered first" in response.content.decode()


def test_keep_awake_is_shown_and_can_be_taken_back(browser: Client, make: Callable[..., Workspace]) -> None:
    workspace = make(phase=Phase.RUNNING)
    browser.post(f"/workspaces/{workspace.pk}/keep-awake/", {"seconds": "3600"})
    workspace.refresh_from_db()
    assert workspace.keep_awake_until is not None
    assert "Kept awake" in page(browser, "/")
    browser.post(f"/workspaces/{workspace.pk}/keep-awake/", {"seconds": "0"})
    workspace.refresh_from_db()
    assert workspace.keep_awake_until is None


def test_edit_changes_name_notes_and_idle_times(browser: Client, make: Callable[..., Workspace]) -> None:
    workspace = make(phase=Phase.STANDBY)
    form = {"name": "renamed", "description": "d", "memo": "line\nline", "standby_ttl_seconds": "0", "archive_ttl_seconds": "3600"}
    assert browser.post(f"/workspaces/{workspace.pk}/edit/", form)["Location"] == f"/workspaces/{workspace.pk}/"
    workspace.refresh_from_db()
    assert (workspace.name, workspace.standby_ttl_seconds, workspace.archive_ttl_seconds) == ("renamed", 0, 3600)
    text = page(browser, f"/workspaces/{workspace.pk}/edit/")
    assert '<option value="0" selected>Never</option>' in text


def test_delete_asks_for_the_name_and_says_what_is_lost(browser: Client, make: Callable[..., Workspace]) -> None:
    workspace = make("precious", phase=Phase.ARCHIVED, archive_key="k", archive_size=2048)
    text = page(browser, f"/workspaces/{workspace.pk}/delete/")
    assert "There is no undo" in text
    assert "its archive in object storage" in text
    assert browser.post(f"/workspaces/{workspace.pk}/delete/", {"confirm": "wrong"}).status_code == 400
    workspace.refresh_from_db()
    assert workspace.deleted_at is None
    browser.post(f"/workspaces/{workspace.pk}/delete/", {"confirm": "precious"})
    workspace.refresh_from_db()
    assert workspace.deleted_at is not None


def test_another_users_workspace_is_as_unknown_as_an_unknown_id(browser: Client, make: Callable[..., Workspace]) -> None:
    other = make("secret", owner=User.objects.create_user("other"), phase=Phase.RUNNING)
    unknown = "00000000-0000-4000-8000-000000000000"
    for name in ("workspace", "workspace-edit", "workspace-delete"):
        answers = [browser.get(reverse(name, args=[pk])) for pk in (other.pk, unknown)]
        assert [answer.status_code for answer in answers] == [404, 404]
        assert answers[0].content == answers[1].content
    for name in ("workspace-state", "workspace-keep-awake"):
        for pk in (other.pk, unknown):
            assert browser.post(reverse(name, args=[pk]), {"desired_state": "STANDBY", "seconds": "60"}).status_code == 404
    assert "secret" not in page(browser, "/")


def test_names_are_escaped_wherever_they_appear(browser: Client, make: Callable[..., Workspace]) -> None:
    workspace = make('<img src=x onerror="alert(1)">', memo="<script>alert(1)</script>", description="<b>", phase=Phase.RUNNING)
    for path in ("/", f"/workspaces/{workspace.pk}/", f"/workspaces/{workspace.pk}/edit/", f"/workspaces/{workspace.pk}/delete/"):
        text = page(browser, path)
        assert "<img src=x" not in text
        assert "<script>alert" not in text


def test_search_filter_and_sort_choose_what_is_shown(browser: Client, make: Callable[..., Workspace]) -> None:
    make("alpha", phase=Phase.RUNNING)
    make("beta", phase=Phase.STANDBY, memo="find me")
    make("gamma", phase=Phase.STANDBY, desired_state=DesiredState.ARCHIVED, operation=Operation.ARCHIVING)

    def names(query: str) -> list[str]:
        return re.findall(r'data-name="([a-z]+)"', page(browser, f"/?{query}"))

    assert names("") == ["gamma", "beta", "alpha"]
    assert names("sort=name") == ["alpha", "beta", "gamma"]
    assert names("q=find") == ["beta"]
    assert names("state=running") == ["alpha"]
    assert names("state=busy") == ["gamma"]
    assert names("state=nonsense&sort=nonsense&page=-3") == ["gamma", "beta", "alpha"]
    assert "Nothing matches" in page(browser, "/?q=nothing")


def test_progress_tells_bytes_and_time_left(browser: Client, make: Callable[..., Workspace]) -> None:
    workspace = make(phase=Phase.STANDBY, desired_state=DesiredState.ARCHIVED, operation=Operation.ARCHIVING)
    run = Attempt.objects.create(
        workspace=workspace,
        operation=Operation.ARCHIVING,
        op_id=workspace.pk,
        action="archive",
        state="RUNNING",
        bytes_done=50 * 1024**2,
        bytes_total=100 * 1024**2,
        result={"step_seconds": 10.0},
    )
    text = page(browser, "/").replace("\xa0", " ")
    assert "50.0 MB of 100.0 MB, 10 s left" in text
    assert f'max="{100 * 1024**2}" value="{50 * 1024**2}"' in text
    Attempt.objects.filter(pk=run.pk).update(bytes_total=None)
    text = page(browser, "/").replace("\xa0", " ")
    assert "50.0 MB, 5.0 MB per second" in text


def test_the_history_counts_the_tries_of_each_step(browser: Client, make: Callable[..., Workspace]) -> None:
    workspace = make(phase=Phase.ARCHIVED, desired_state=DesiredState.ARCHIVED)
    op_id, now = uuid4(), services.database_now()
    runs = [("archive", "FAILED"), ("archive", "SUCCEEDED"), ("delete_volume", "SUCCEEDED")]
    for number, (action, state) in enumerate(runs, 1):
        Attempt.objects.create(
            workspace=workspace, operation="ARCHIVING", op_id=op_id, action=action, number=number, state=state, finished_at=now
        )
    text = page(browser, f"/workspaces/{workspace.pk}/")
    assert "Packing: failed" in text
    assert "Packing, try 2: done" in text
    assert "Removing the volume: done" in text


def test_queries_do_not_grow_with_the_number_of_workspaces(browser: Client, make: Callable[..., Workspace]) -> None:
    make("first", phase=Phase.STANDBY, desired_state=DesiredState.RUNNING, operation=Operation.STARTING)
    page(browser, "/")
    with CaptureQueriesContext(
        connection,
    ) as few:
        page(browser, "/")
    for number in range(299):
        make(f"w{number}", phase=Phase.STANDBY, desired_state=DesiredState.RUNNING, operation=Operation.STARTING)
    with CaptureQueriesContext(connection) as many:
        text = page(browser, "/")
    assert len(many) == len(few)
    assert text.count('class="card ') == 24
    assert "Page 1 of 13, 300 workspaces" in text


def test_process_runtime_without_isolation_is_said_on_screen(browser: Client) -> None:
    assert "without isolation" not in page(browser, "/")
    Installation.objects.update(runtime="process")
    assert "without isolation" in page(browser, "/")


def test_workspace_page_tells_why_next_and_history(browser: Client, make: Callable[..., Workspace]) -> None:
    workspace = make(
        phase=Phase.ERROR,
        desired_state=DesiredState.RUNNING,
        error_reason="ActionFailed",
        error_info={"message": "exit status 7", "is_terminal": True},
        conditions={
            "storage.volume_ready": {
                "status": True,
                "reason": "VolumeFound",
                "message": "",
                "last_transition_time": "2026-01-01T00:00:00+00:00",
            }
        },
    )
    workspace.transitions.create(from_phase="STANDBY", to_phase="ERROR", from_operation="STARTING", to_operation="NONE", message="gave up")
    Attempt.objects.create(
        workspace=workspace,
        operation="STARTING",
        op_id=workspace.pk,
        action="start",
        state="FAILED",
        number=3,
        error={"message": "port never answered"},
        log="last words of the IDE",
        started_at=workspace.created_at,
        finished_at=workspace.created_at,
    )
    text = page(browser, f"/workspaces/{workspace.pk}/")
    for sentence in (
        "Nothing, until an operator recovers it.",
        "exit status 7",
        "VolumeFound",
        "gave up",
        "port never answered",
        "last words of the IDE",
    ):
        assert sentence in text


def test_pages_carry_a_strict_content_policy_and_no_inline_code(browser: Client, make: Callable[..., Workspace]) -> None:
    workspace = make(phase=Phase.RUNNING)
    for path in ("/", "/savings/", "/account/", "/workspaces/new/", f"/workspaces/{workspace.pk}/"):
        response = browser.get(path)
        assert "default-src 'self'" in response["Content-Security-Policy"]
        text = response.content.decode()
        assert re.findall(r"<script(?![^>]*(?:src=|application/json))", text) == []
        assert re.findall(r"\son\w+=|\sstyle=|<style", text) == []


def test_error_pages_are_ours_and_need_no_session(user: User) -> None:
    response = Client().get("/nothing/here")
    assert response.status_code == 404
    assert "There is nothing here" in response.content.decode()
    strict = Client(enforce_csrf_checks=True)
    response = strict.post("/login/", {"username": "mina"})
    assert response.status_code == 403
    assert "This form is too old" in response.content.decode()


def test_server_error_page_shows_no_traceback(browser: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr("workspaces.board.load_board", broken)
    browser.raise_request_exception = False
    response = browser.get("/")
    assert response.status_code == 500
    assert "Something broke on our side" in response.content.decode()
    assert "secret detail" not in response.content.decode()
