"""Signing in and out, tokens, sessions with CSRF, throttling: who gets in, and how those who do not are told."""

import time
from datetime import timedelta
from typing import Any

import pytest
from axes.models import AccessAttempt
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from django_redis import get_redis_connection
from knox.models import AuthToken
from redis.exceptions import RedisError

from tests.api import PASSWORD, Api, person, workspace_of
from workspaces import access, tokens
from workspaces.api import throttles
from workspaces.models import ApiToken, AuditEvent

pytestmark = pytest.mark.django_db

LOGIN = "auth/login"


@pytest.fixture(autouse=True)
def _fresh_counters(settings: Any) -> None:
    # What is tried here is counting and answering, not the cost of a hash.
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher", "django.contrib.auth.hashers.PBKDF2PasswordHasher"]
    client = get_redis_connection("default")
    for key in client.scan_iter("codehub:throttle:*"):
        client.delete(key)


@pytest.fixture
def ada() -> User:
    return person("ada")


@pytest.fixture
def stranger() -> Api:
    return Api(None)


def test_login_gives_a_token_that_works_until_logout(stranger: Api, ada: User) -> None:
    answer = stranger.post(LOGIN, {"username": "ada", "password": PASSWORD})
    assert answer.status_code == 200
    assert set(answer.json()) == {"token", "expiry"}
    bearer: dict[str, Any] = {"Authorization": f"Bearer {answer.json()['token']}"}
    assert stranger.get("me", **bearer).json()["username"] == "ada"
    assert stranger.post("auth/logout", **bearer).status_code == 204
    assert stranger.get("me", **bearer).status_code == 401
    assert AuditEvent.objects.filter(actor=ada, action="login").exists()


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"username": "ada"},
        {"username": "ada", "password": 5},
        {"username": ["ada"], "password": "x"},
        {"username": "", "password": "x"},
        {"username": "ada", "password": "x", "remember": True},
        {"username": "a\x00da", "password": "x"},
        {"username": "a" * 151, "password": "x"},
        {"username": "ada", "password": "x" * 5000},
    ],
)
def test_a_malformed_login_is_refused_before_anything_is_looked_up(stranger: Api, body: dict[str, Any]) -> None:
    answer = stranger.post(LOGIN, body)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid")


def test_wrong_passwords_and_unknown_users_are_answered_alike(stranger: Api, ada: User) -> None:
    wrong = stranger.post(LOGIN, {"username": "ada", "password": "nope"})
    unknown = stranger.post(LOGIN, {"username": "nobody", "password": "nope"})
    assert wrong.status_code == unknown.status_code == 401
    assert wrong.json() == unknown.json()
    assert wrong["WWW-Authenticate"].startswith("Bearer")


def test_a_disabled_user_cannot_sign_in_and_its_tokens_stop_working(stranger: Api, ada: User) -> None:
    api = Api(ada)
    assert api.get("me").status_code == 200
    User.objects.filter(pk=ada.pk).update(is_active=False)
    assert api.get("me").status_code == 401
    assert stranger.post(LOGIN, {"username": "ada", "password": PASSWORD}).status_code == 401


def test_repeated_failures_must_wait_and_headers_do_not_help(stranger: Api, ada: User) -> None:
    limit = settings.CONFIG.login_failure_limit
    codes = [
        stranger.post(LOGIN, {"username": "ada", "password": "nope"}, X_Forwarded_For=f"10.0.0.{number}", X_Real_IP=f"10.1.0.{number}")
        for number in range(limit)
    ]
    assert [answer.status_code for answer in codes[:-1]] == [401] * (limit - 1)
    assert codes[-1].status_code == 429
    locked = stranger.post(LOGIN, {"username": "ada", "password": PASSWORD}, X_Forwarded_For="10.9.9.9")
    assert (locked.status_code, locked.json()["code"]) == (429, "throttled")
    assert int(locked["Retry-After"]) > 0
    assert stranger.post(LOGIN, {"username": "other", "password": "nope"}).status_code == 401


def test_a_success_forgets_earlier_failures(stranger: Api, ada: User) -> None:
    for _ in range(settings.CONFIG.login_failure_limit - 1):
        stranger.post(LOGIN, {"username": "ada", "password": "nope"})
    assert stranger.post(LOGIN, {"username": "ada", "password": PASSWORD}).status_code == 200
    assert not AccessAttempt.objects.filter(username="ada").exists()


def test_logins_keep_only_the_newest_tokens(ada: User) -> None:
    made = [tokens.request_login_token(ada) for _ in range(tokens.MAX_LOGIN_TOKENS + 3)]
    assert ApiToken.objects.filter(name="login").count() == tokens.MAX_LOGIN_TOKENS
    assert access.user_of_token(made[-1].token) is not None
    assert access.user_of_token(made[0].token) is None


def test_tokens_are_listed_without_their_secret_and_revoked_by_id(ada: User) -> None:
    api = Api(ada)
    made = api.post("tokens", {"name": "backup", "expires_in_days": 7})
    assert made.status_code == 201
    secret = made.json()["token"]
    listed = api.get("tokens").json()["results"]
    assert {row["name"] for row in listed} == {"backup", "tests"}
    assert [row["current"] for row in listed if row["name"] == "tests"] == [True]
    assert secret not in str(listed)
    assert not AuthToken.objects.filter(digest=secret).exists()
    other = Api(None)
    bearer: dict[str, Any] = {"Authorization": f"Bearer {secret}"}
    assert other.get("me", **bearer).status_code == 200
    assert api.delete(f"tokens/{made.json()['id']}").status_code == 204
    assert other.get("me", **bearer).status_code == 401
    assert api.delete(f"tokens/{made.json()['id']}").status_code == 404
    assert {"token_create", "token_revoke"} <= set(AuditEvent.objects.values_list("action", flat=True))


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": ""},
        {"name": 5},
        {"name": "x", "expires_in_days": 0},
        {"name": "x", "expires_in_days": 3651},
        {"name": "x", "expires_in_days": "7"},
        {"name": "a\nb"},
        {"name": "x", "user": 1},
    ],
)
def test_a_wrong_token_wish_is_refused(ada: User, body: dict[str, Any]) -> None:
    answer = Api(ada).post("tokens", body)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid")


def test_tokens_are_capped(ada: User) -> None:
    api = Api(ada)
    for number in range(tokens.MAX_TOKENS_PER_USER - 1):
        tokens.request_token(ada, name=str(number))
    answer = api.post("tokens", {"name": "one too many"})
    assert (answer.status_code, answer.json()["code"]) == (429, "limit_exceeded")


def test_an_expired_token_is_no_token(ada: User) -> None:
    api = Api(ada)
    AuthToken.objects.update(expiry=timezone.now() - timedelta(seconds=1))
    answer = api.get("me")
    assert (answer.status_code, answer.json()["code"]) == (401, "not_authenticated")


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Bearer x y", "Basic YTpi", "Token abc", "Bearer " + "é" * 3, "Bearer " + "a" * 5000]
)
def test_a_bad_authorization_header_is_401_even_beside_a_good_session(ada: User, header: str) -> None:
    client = Client()
    client.force_login(ada, backend=settings.AUTHENTICATION_BACKENDS[1])
    answer = client.get("/api/v1/me", headers={"Authorization": header.encode().decode("latin-1")})
    assert (answer.status_code, answer.json()["code"]) == (401, "not_authenticated")


def test_use_of_a_token_is_noted_at_most_once_a_minute(ada: User) -> None:
    api = Api(ada)
    api.get("me")
    with CaptureQueriesContext(connection) as seen:
        api.get("me")
    assert not [query for query in seen.captured_queries if query["sql"].startswith("UPDATE")]
    assert ApiToken.objects.get().last_used_at is not None


def test_a_session_reads_freely_and_writes_with_its_csrf_token(ada: User) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(ada, backend=settings.AUTHENTICATION_BACKENDS[1])
    assert client.get("/api/v1/me").status_code == 200
    body = {"name": "x", "desired_state": "STANDBY"}
    refused = client.post("/api/v1/workspaces", body, content_type="application/json")
    assert (refused.status_code, refused.json()["code"]) == (403, "permission_denied")
    csrf = "a" * 32
    client.cookies[settings.CSRF_COOKIE_NAME] = csrf
    allowed = client.post("/api/v1/workspaces", body, content_type="application/json", headers={"X-CSRFToken": csrf})
    assert allowed.status_code == 201
    foreign = client.post(
        "/api/v1/workspaces", body, content_type="application/json", headers={"X-CSRFToken": csrf, "Origin": "http://evil.example"}
    )
    assert foreign.status_code == 403
    ended = client.post("/api/v1/auth/logout", headers={"X-CSRFToken": csrf}, content_type="application/json")
    assert ended.status_code == 204
    assert client.get("/api/v1/me").status_code == 401


def test_a_changed_password_ends_sessions_and_logout_everywhere_ends_tokens(ada: User) -> None:
    kept, other = Client(), Client()
    for client in (kept, other):
        client.force_login(ada, backend=settings.AUTHENTICATION_BACKENDS[1])
    api = Api(ada)
    bystander = Api(person("bob"))
    assert kept.session.session_key is not None
    assert access.request_logout_everywhere(ada, keep_session=kept.session.session_key) == 2
    assert kept.get("/api/v1/me").status_code == 200
    assert other.get("/api/v1/me").status_code == 401
    assert api.get("me").status_code == 401
    assert bystander.get("me").status_code == 200
    credential = access.Credential("session", kept.session.session_key, ada.pk)
    assert access.is_still_valid(credential)
    ada.set_password("another-long-password")
    ada.save()
    assert not access.is_still_valid(credential)
    assert kept.get("/api/v1/me").status_code == 401


def test_too_many_calls_are_told_how_long_to_wait(ada: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        settings, "CONFIG", settings.CONFIG.model_copy(update={"api_throttle_user": "3/hour", "api_throttle_anon": "2/hour"})
    )
    api = Api(ada)
    answers = [api.get("me") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert answers[-1].json()["code"] == "throttled"
    assert 0 < int(answers[-1]["Retry-After"]) <= 3600
    stranger = Api(None)
    codes = [stranger.post(LOGIN, {"username": "x", "password": "y"}, X_Forwarded_For=f"10.0.0.{n}").status_code for n in range(3)]
    assert codes == [401, 401, 429]


def test_calls_go_through_when_redis_does_not_answer(ada: User, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_alias: str) -> Any:
        raise RedisError("down")

    api = Api(ada)
    monkeypatch.setattr(throttles, "get_redis_connection", broken)
    monkeypatch.setattr(throttles, "_redis_back_at", 0.0)
    assert api.get("me").status_code == 200
    assert throttles._redis_back_at > time.monotonic()


def test_trusted_proxies_decide_which_address_counts(rf: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    request = rf.get("/", headers={"X-Forwarded-For": "6.6.6.6, 1.2.3.4, 5.6.7.8"}, REMOTE_ADDR="10.0.0.1")
    assert access.client_address(request) == "10.0.0.1"
    for hops, expected in ((1, "5.6.7.8"), (2, "1.2.3.4"), (9, "10.0.0.1")):
        monkeypatch.setattr(settings, "CONFIG", settings.CONFIG.model_copy(update={"codehub_trusted_proxies": hops}))
        assert access.client_address(request) == expected
    assert access.client_address(rf.get("/", REMOTE_ADDR="not an address")) is None


def test_the_docs_page_needs_a_session_and_loads_nothing_from_elsewhere(ada: User) -> None:
    client = Client()
    assert client.get("/api/v1/docs").status_code == 302
    client.force_login(ada, backend=settings.AUTHENTICATION_BACKENDS[1])
    page = client.get("/api/v1/docs")
    assert page.status_code == 200
    assert b"http://" not in page.content
    assert b"https://" not in page.content
    assert workspace_of(ada).pk
