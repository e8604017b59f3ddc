"""Signing in, invitations, the first administrator, passwords, tokens and sessions, on a real database."""

import re
import stat
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.test import Client

from workspaces.access import user_of_token
from workspaces.models import AuditEvent, UserProfile, UserSession
from workspaces.views_entry import invite_path

pytestmark = pytest.mark.django_db
PASSWORD = "correct horse battery"


@pytest.fixture(autouse=True)
def quick_hashes(settings: Any) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture
def user() -> User:
    User.objects.create_superuser("root", password=PASSWORD)
    return User.objects.create_user("mina", password=PASSWORD)


@pytest.fixture
def browser(user: User) -> Client:
    client = Client(headers={"user-agent": "Mozilla/5.0 (X11; Linux) Firefox/140.0"})
    client.force_login(user)
    return client


def test_too_many_wrong_passwords_are_told_kindly_and_end_in_429(user: User) -> None:
    client = Client()
    limit = django_settings.CONFIG.login_failure_limit
    answers = [client.post("/login/", {"username": "mina", "password": "wrong"}) for _try in range(limit)]
    assert answers[0].status_code == 200
    assert 'role="alert"' in answers[0].content.decode()
    assert answers[-1].status_code == 429
    assert "Too many attempts" in answers[-1].content.decode()
    assert "Try again in 5 min." in answers[-1].content.decode()
    assert client.post("/login/", {"username": "mina", "password": PASSWORD}).status_code == 429


def test_logout_is_a_post_and_ends_the_session(browser: Client) -> None:
    assert browser.get("/logout/").status_code == 405
    assert browser.post("/logout/")["Location"] == "/login/"
    assert browser.get("/session/").status_code == 401


def test_invitation_works_once(user: User) -> None:
    guest = User.objects.create_user("guest")
    path = invite_path(guest)
    client = Client()
    assert "Welcome, guest" in client.get(path).content.decode()
    assert client.post(path, {"new_password1": "short", "new_password2": "short"}).status_code == 400
    answer = client.post(path, {"new_password1": "a long phrase 42", "new_password2": "a long phrase 42"}, follow=True)
    assert "Your password is set." in answer.content.decode()
    assert Client().get(path).status_code == 404
    assert Client().get("/invite/zzzz/nonsense/").status_code == 404
    assert AuditEvent.objects.filter(action="invite_accepted", actor=guest).exists()


def test_invitation_of_a_disabled_user_does_not_work(user: User) -> None:
    guest = User.objects.create_user("guest")
    path = invite_path(guest)
    User.objects.filter(pk=guest.pk).update(is_active=False)
    assert Client().get(path).status_code == 404


def test_welcome_makes_the_first_administrator_with_the_token_of_the_disk_only() -> None:
    client = Client()
    assert client.get("/login/")["Location"] == "/welcome/"
    assert client.get("/welcome/").status_code == 200
    token = Path(django_settings.CONFIG.codehub_data_dir) / "setup-token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    form = {"setup_token": "guess", "username": "admin", "password": "a long phrase 42"}
    assert client.post("/welcome/", form).status_code == 400
    assert not User.objects.exists()
    assert client.post("/welcome/", {**form, "setup_token": token.read_text()})["Location"] == "/"
    admin = User.objects.get()
    assert (admin.username, admin.is_superuser, admin.check_password("a long phrase 42")) == ("admin", True, True)
    assert Client().get("/welcome/").status_code == 404
    assert Client().post("/welcome/", {**form, "setup_token": token.read_text(), "username": "second"}).status_code == 404


def test_new_password_ends_other_sessions_and_tokens_but_not_this_one(browser: Client, user: User) -> None:
    other = Client()
    other.force_login(user)
    answer = browser.post("/account/tokens/", {"name": "laptop", "days": "30"})
    token = re.findall(r'id="new-token">([^<]+)<', answer.content.decode())[0]
    assert user_of_token(token) is not None
    form = {"old_password": PASSWORD, "new_password1": "a long phrase 42", "new_password2": "a long phrase 42"}
    assert browser.post("/account/password/", form)["Location"] == "/account/"
    assert browser.get("/account/").status_code == 200
    assert other.get("/account/").status_code == 302
    assert user_of_token(token) is None
    assert browser.post("/account/password/", form).status_code == 400


def test_token_is_shown_once_and_can_be_revoked(browser: Client, user: User) -> None:
    text = browser.post("/account/tokens/", {"name": "laptop", "days": "30"}).content.decode()
    token = re.findall(r'id="new-token">([^<]+)<', text)[0]
    page = browser.get("/account/").content.decode()
    assert token not in page
    path = re.findall(r"/account/tokens/[0-9a-f-]+/revoke/", page)[0]
    stranger = Client()
    stranger.force_login(User.objects.get(username="root"))
    assert stranger.post(path).status_code == 404
    assert browser.post(path)["Location"] == "/account/"
    assert user_of_token(token) is None


def test_sessions_are_listed_with_their_browser_and_can_be_ended(browser: Client, user: User) -> None:
    other = Client(headers={"user-agent": "Mozilla/5.0 (Macintosh; Mac OS X) Safari/605"})
    other.force_login(user)
    other.get("/")
    browser.get("/")
    page = browser.get("/account/").content.decode()
    assert "Firefox, Linux" in page
    assert "Safari, macOS" in page
    mine = UserSession.objects.get(session_key=browser.session.session_key)
    theirs = UserSession.objects.get(session_key=other.session.session_key)
    assert browser.post(f"/account/sessions/{mine.pk}/end/").status_code == 404
    assert browser.post(f"/account/sessions/{theirs.pk}/end/")["Location"] == "/account/"
    assert other.get("/").status_code == 302
    assert not Session.objects.filter(session_key=theirs.session_key).exists()


def test_language_and_theme_follow_the_user(browser: Client, user: User) -> None:
    assert browser.post("/account/preferences/", {"language": "ko", "theme": "dark"})["Location"] == "/account/"
    text = browser.get("/").content.decode()
    assert '<html lang="ko" data-theme="dark">' in text
    assert "워크스페이스" in text
    assert UserProfile.objects.get(user=user).theme == "dark"


def test_anonymous_language_is_the_browsers_and_then_the_cookies(user: User) -> None:
    client = Client(headers={"accept-language": "ko"})
    assert '<html lang="ko"' in client.get("/login/").content.decode()
    answer = client.post("/preferences/", {"language": "en", "next": "https://evil.example/"})
    assert answer["Location"] == "/"
    assert '<html lang="en"' in client.get("/login/").content.decode()


def test_preferences_take_no_nonsense(browser: Client, user: User) -> None:
    browser.post("/preferences/", {"language": "../../etc", "theme": "<script>"})
    assert not UserProfile.objects.filter(user=user).exists()


def test_savings_are_for_the_site_only_to_operators(browser: Client, user: User) -> None:
    assert "Whole site" not in browser.get("/savings/?whose=site").content.decode()
    operator = Client()
    operator.force_login(User.objects.get(username="root"))
    assert "What sleeping workspaces saved on the whole site." in operator.get("/savings/?whose=site&days=7").content.decode()
