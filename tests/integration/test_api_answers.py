"""Every answer the schema documents, of every call, is produced; and a call documents every answer it gives.

The cases come from the schema itself: a status or code that is documented and that nothing here produces is a failure.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
from django.conf import settings
from django.db import OperationalError, connection, transaction
from django.test import Client

from tests.api import BASE, PASSWORD, Answer, Api, documented_answers, person, workspace_of
from tests.live import OpenStream
from workspaces import tokens
from workspaces.api import stream
from workspaces.models import ApiToken, UserProfile, Workspace


class Call(NamedTuple):
    method: str
    path: str
    body: Any = None
    headers: dict[str, str] = {}


CALLS = {
    "auth_login": Call("POST", "auth/login", {"username": "root", "password": PASSWORD}),
    "auth_logout": Call("POST", "auth/logout"),
    "tokens_list": Call("GET", "tokens"),
    "tokens_create": Call("POST", "tokens", {"name": "new"}),
    "tokens_revoke": Call("DELETE", "tokens/{token}"),
    "me": Call("GET", "me"),
    "workspaces_list": Call("GET", "workspaces"),
    "workspaces_create": Call("POST", "workspaces", {"name": "new"}),
    "workspaces_read": Call("GET", "workspaces/{id}"),
    "workspaces_change": Call("PATCH", "workspaces/{id}", {"desired_state": "RUNNING"}),
    "workspaces_delete": Call("DELETE", "workspaces/{id}"),
    "workspaces_recover": Call("POST", "workspaces/{broken}/recover", {"strategy": "reobserve"}),
    "workspaces_history": Call("GET", "workspaces/{id}/history"),
    "workspaces_logs": Call("GET", "workspaces/{id}/logs"),
    "images_list": Call("GET", "images"),
    "schema": Call("GET", "schema"),
}
# What is asked instead to be told this code, where it is not the same thing for every call.
WRONG: dict[tuple[str, str], Call] = {
    ("auth_login", "not_authenticated"): Call("POST", "auth/login", {"username": "root", "password": "wrong"}),
    ("workspaces_list", "invalid"): Call("GET", "workspaces?ordering=colour"),
    ("workspaces_list", "not_found"): Call("GET", "workspaces?cursor=nonsense"),
    ("workspaces_delete", "invalid"): Call("DELETE", "workspaces/{id}?queue=perhaps"),
    ("workspaces_history", "invalid"): Call("GET", "workspaces/{id}/history?page_size=0"),
    ("workspaces_logs", "invalid"): Call("GET", "workspaces/{id}/logs?fresh=perhaps"),
    ("workspaces_create", "idempotency_conflict"): Call("POST", "workspaces", {"name": "other"}, {"Idempotency-Key": "used"}),
    ("workspaces_change", "operation_in_progress"): Call("PATCH", "workspaces/{busy}", {"desired_state": "STANDBY"}),
    ("workspaces_change", "recover_first"): Call("PATCH", "workspaces/{broken}", {"desired_state": "RUNNING"}),
    ("workspaces_change", "stale"): Call("PATCH", "workspaces/{id}", {"memo": "x"}, {"If-Match": '"2026-01-01T00:00:00Z"'}),
    ("workspaces_delete", "stale"): Call("DELETE", "workspaces/{id}", None, {"If-Match": '"2026-01-01T00:00:00Z"'}),
    ("workspaces_delete", "operation_in_progress"): Call("DELETE", "workspaces/{busy}"),
    ("workspaces_recover", "not_in_error"): Call("POST", "workspaces/{id}/recover"),
    ("workspaces_recover", "recovery_refused"): Call("POST", "workspaces/{broken}/recover", {"strategy": "start_empty"}),
}


class Scene:
    """An operator with something of everything; `ask` makes a call as that person."""

    def __init__(self) -> None:
        self.root = person("root", is_staff=True)
        self.api = Api(self.root)
        self.api.post("workspaces", {"name": "once", "desired_state": "STANDBY"}, Idempotency_Key="used")
        self.names = {
            "id": workspace_of(self.root, "fine", phase="STANDBY", desired_state="STANDBY").pk,
            "busy": workspace_of(self.root, "busy", phase="STANDBY", desired_state="RUNNING", operation="STARTING").pk,
            "broken": workspace_of(self.root, "broken", phase="ERROR", desired_state="STANDBY", error_reason="ActionFailed").pk,
            "token": ApiToken.objects.get().pk,
        }

    def ask(self, call: Call, *, client: Client | None = None, content_type: str = "application/json", **names: Any) -> Any:
        raw = b"" if call.body is None else call.body if isinstance(call.body, bytes) else json.dumps(call.body).encode()
        path = BASE + call.path.format(**{**self.names, **names})
        return (client or self.api.client).generic(call.method, path, raw, content_type=content_type if raw else "", headers=call.headers)


def _stranger(scene: Scene, call: Call, _patch: pytest.MonkeyPatch) -> Any:
    return scene.ask(call, client=Api(None).client)


def _throttled(scene: Scene, call: Call, patch: pytest.MonkeyPatch) -> Any:
    patch.setattr(settings, "CONFIG", settings.CONFIG.model_copy(update={"api_throttle_user": "0/day", "api_throttle_anon": "0/day"}))
    return scene.ask(call)


def _with_a_fault(fault: Exception) -> Callable[[Scene, Call, pytest.MonkeyPatch], Any]:
    def ask(scene: Scene, call: Call, _patch: pytest.MonkeyPatch) -> Any:
        def fail(*_args: Any) -> Any:
            raise fault

        with connection.execute_wrapper(fail):
            return scene.ask(call)

    return ask


def _not_allowed(scene: Scene, call: Call, _patch: pytest.MonkeyPatch) -> Any:
    if call.method == "GET":
        return scene.ask(call._replace(path=call.path + "?all=true"), client=Api(person("ada")).client)
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(scene.root, backend=settings.AUTHENTICATION_BACKENDS[1])
    return scene.ask(call, client=browser)


def _over_a_limit(scene: Scene, call: Call, patch: pytest.MonkeyPatch) -> Any:
    UserProfile.objects.create(user=scene.root, max_running=1)
    patch.setattr(tokens, "MAX_TOKENS_PER_USER", 1)
    return scene.ask(call)


ANYWHERE: dict[str, Callable[[Scene, Call, pytest.MonkeyPatch], Any]] = {
    "": lambda scene, call, _patch: scene.ask(call),
    "invalid": lambda scene, call, _patch: scene.ask(call._replace(body={"colour": "red"})),
    "not_authenticated": _stranger,
    "permission_denied": _not_allowed,
    "not_found": lambda scene, call, _patch: scene.ask(call, id=uuid4(), broken=uuid4(), token=uuid4()),
    "too_large": lambda scene, call, _patch: scene.ask(call._replace(body=b" " * 300_000)),
    "unsupported_media_type": lambda scene, call, _patch: scene.ask(call._replace(body=b"name=x"), content_type="text/plain"),
    "limit_exceeded": _over_a_limit,
    "throttled": _throttled,
    "server_error": _with_a_fault(RuntimeError("a fault")),
    "unavailable": _with_a_fault(OperationalError("gone")),
}


@pytest.mark.django_db
@pytest.mark.parametrize("operation", CALLS)
def test_every_documented_answer_of_a_call_is_given(operation: str, settings: Any) -> None:
    # What is tried here is the answer, not the cost of a hash.
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher", "django.contrib.auth.hashers.PBKDF2PasswordHasher"]
    scene = Scene()
    before = list(Workspace.objects.order_by("pk").values())
    for answer in (known for known in documented_answers() if known.operation == operation):
        as_it_was = transaction.savepoint()
        with pytest.MonkeyPatch.context() as patch:
            wrong = WRONG.get((operation, answer.code))
            given = scene.ask(wrong) if wrong else ANYWHERE[answer.code](scene, CALLS[operation], patch)
        assert given.status_code == answer.status, (answer, given.content)
        assert ("Retry-After" in given) == (answer.code in {"throttled", "unavailable"}), answer
        assert ("WWW-Authenticate" in given) == (answer.status == 401), answer
        if answer.code:
            assert given.json()["code"] == answer.code, answer
            # Whoever is refused changed nothing.
            assert list(Workspace.objects.order_by("pk").values()) == before, answer
        transaction.savepoint_rollback(as_it_was)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("answer", [known for known in documented_answers() if known.operation == "events"], ids=str)
def test_every_documented_answer_of_the_stream_is_given(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    token = tokens.request_token(person("ada"), name="stream").token if answer.code != "not_authenticated" else "wrong"
    faults = {"server_error": RuntimeError("a fault"), "unavailable": OperationalError("gone")}
    if answer.code in faults:
        monkeypatch.setattr(stream, "user_of_request", lambda _request: (_ for _ in ()).throw(faults[answer.code]))
    if answer.code == "throttled":
        monkeypatch.setattr(settings, "CONFIG", settings.CONFIG.model_copy(update={"api_throttle_user": "0/day"}))

    async def listen() -> OpenStream:
        opened = OpenStream(token)
        await opened.told.wait()
        opened.left.set()
        await opened.ended
        return opened

    given = asyncio.run(listen())
    assert given.status == answer.status
    if answer.code:
        assert json.loads(given.sent[1]["body"])["code"] == answer.code
    else:
        assert given.headers["content-type"].startswith("text/event-stream")
    assert ("retry-after" in given.headers) == (answer.code in {"throttled", "unavailable"})


def test_every_call_of_the_schema_is_tried_here() -> None:
    assert {answer.operation for answer in documented_answers()} == {*CALLS, "events"}
