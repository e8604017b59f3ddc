"""What tests of the API share: people, a client that speaks as one of them, and workspaces in a given state.

Rows are put into observed states directly, as the controller would have left them: no coordinator runs in these tests.
"""

import json
from functools import lru_cache
from typing import Any, NamedTuple

from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.contrib.auth.models import User
from django.test import Client
from django.urls import resolve

from workspaces.api.documents import openapi_document
from workspaces.models import Image, Workspace
from workspaces.tokens import request_token

PASSWORD = "correct-horse-battery"
BASE = "/api/v1/"


def person(name: str, *, password: str = PASSWORD, **fields: Any) -> User:
    """A user. The password's hash is a quick one: half a second for each person would be most of a test's time."""
    return User.objects.create(username=name, password=PBKDF2PasswordHasher().encode(password, "salt", iterations=1), **fields)


def workspace_of(owner: User, name: str = "one", **columns: Any) -> Workspace:
    made = Workspace.objects.create(owner=owner, image=Image.objects.all()[0], name=name, **columns)
    made.refresh_from_db()
    return made


class Answer(NamedTuple):
    """One answer the schema documents; no code when it is a success."""

    operation: str
    status: int
    code: str

    def __str__(self) -> str:
        return f"{self.operation} {self.status} {self.code}".rstrip()


@lru_cache(maxsize=1)
def documented_answers() -> tuple[Answer, ...]:
    """Every answer of every call, as the schema has them."""
    return tuple(
        Answer(call["operationId"], int(status), code)
        for calls in openapi_document()["paths"].values()
        for call in calls.values()
        for status, answer in call["responses"].items()
        for code in (
            [""] if int(status) < 400 else [shown["value"]["code"] for shown in answer["content"]["application/json"]["examples"].values()]
        )
    )


@lru_cache(maxsize=1)
def _operations() -> dict[tuple[str, str], str]:
    """The schema's name for each method of each address."""
    return {
        (method.upper(), str(resolve(path.replace("{", "").replace("}", "")).url_name)): call["operationId"]
        for path, calls in openapi_document()["paths"].items()
        for method, call in calls.items()
    }


class Api:
    """Calls as one person, with a token; `Api(None)` is a stranger. Answers have `.status_code` and `.json()`.

    Whatever is tried, an answer that the schema does not document for its call is a failure.
    """

    def __init__(self, user: User | None, **extra: Any) -> None:
        self.token = request_token(user, name="tests").token if user is not None else None
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        self.client = Client(headers=headers, raise_request_exception=False, **extra)

    def get(self, path: str, query: dict[str, Any] | None = None, **headers: Any) -> Any:
        return _checked(self.client.get(_address(path), query or {}, headers=_named(headers)))

    def post(self, path: str, body: Any = None, **headers: Any) -> Any:
        return self.send("POST", path, body, **headers)

    def patch(self, path: str, body: Any = None, **headers: str) -> Any:
        return self.send("PATCH", path, body, **headers)

    def put(self, path: str, body: Any = None, **headers: str) -> Any:
        return self.send("PUT", path, body, **headers)

    def delete(self, path: str, **headers: str) -> Any:
        return self.send("DELETE", path, **headers)

    def send(self, method: str, path: str, body: Any = None, *, content_type: str = "application/json", **headers: Any) -> Any:
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        kind = "" if body is None else content_type
        return _checked(self.client.generic(method, _address(path), data, content_type=kind, headers=_named(headers)))


def _checked(answer: Any) -> Any:
    """The answer, when the schema documents it for this call (or says nothing of the call: unknown addresses and methods)."""
    asked = answer.wsgi_request
    operation = _operations().get((asked.method, str(resolve(asked.path_info).url_name)))
    if operation is not None:
        code = answer.json()["code"] if answer.status_code >= 400 else ""
        assert Answer(operation, answer.status_code, code) in documented_answers(), (operation, answer.status_code, code)
    return answer


def _address(path: str) -> str:
    return path if path.startswith(("/", "http")) else BASE + path


def _named(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}
