"""Operators invite and shut out users, set limits and keep the catalogue; what would be unsafe is refused with a reason."""

from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from knox.models import AuthToken

from tests.integration import admin_world as world
from workspaces import services
from workspaces.models import ApiToken, AuditEvent, Image, UserProfile

pytestmark = pytest.mark.django_db

USERS = "/admin/auth/user/"
IMAGES = "/admin/workspaces/image/"


@pytest.fixture
def root() -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


@pytest.fixture
def helper() -> Client:
    """An operator who may change users and is no superuser."""
    client = Client()
    user = world.operator("helper")
    user.user_permissions.set(Permission.objects.filter(codename__in=["view_user", "change_user", "add_user"]))
    client.force_login(user)
    return client


def entry(**changes: Any) -> dict[str, Any]:
    return {
        "name": "tool",
        "title": "Tool",
        "runtimes": ["docker"],
        "ref": "registry.example.org:5000/team/tool_x:V1.2",
        "command": "",
        "env": "",
        "home": "/home/coder",
        "uid": 1000,
        "gid": 1000,
        "port": 8080,
        "health_path": "/",
        "memory_mb": 512,
        "cpus": "1.5",
        "pids_limit": 200,
        "position": 5,
        "enabled": "on",
        **changes,
    }


PROFILE = {
    "profile-TOTAL_FORMS": 1,
    "profile-INITIAL_FORMS": 0,
    "profile-MIN_NUM_FORMS": 0,
    "profile-MAX_NUM_FORMS": 1,
    "profile-0-theme": "system",
}


def test_a_good_entry_is_stored_as_lists_and_texts_and_audited(root: Client) -> None:
    response = root.post(f"{IMAGES}add/", entry(command="serve\n--port={port}\n--title=two words", env="A=1\nB_2=x=y"))
    assert response.status_code == 302, response.context["adminform"].form.errors
    image = Image.objects.get(name="tool")
    assert image.command == ["serve", "--port={port}", "--title=two words"]
    assert image.env == {"A": "1", "B_2": "x=y"}
    assert AuditEvent.objects.get(action="add_image").detail["image"] == "tool"
    page = root.get(f"{IMAGES}{image.pk}/change/").content.decode()
    assert "--title=two words" in page
    assert "B_2=x=y" in page


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ref", "--privileged"),
        ("ref", "../../etc/passwd"),
        ("ref", "image name"),
        ("ref", "image\nother"),
        ("ref", "image:tag@sha256:12"),
        ("ref", "/absolute"),
        ("ref", ""),
        ("ref", "a//b"),
        ("command", "--option-first"),
        ("command", "serve\n{unknown}"),
        ("command", "serve\n\x07bell"),
        ("env", "NOVALUE"),
        ("env", "1BAD=x"),
        ("env", "BAD-NAME=x"),
        ("env", "A=1\nA=2"),
        ("env", "LD_PRELOAD=/tmp/x.so"),
        ("home", "/home/../etc"),
        ("home", "relative"),
        ("port", "0"),
        ("port", "65536"),
        ("memory_mb", "1"),
        ("cpus", "0"),
        ("pids_limit", "1"),
        ("uid", "0"),
        ("health_path", "no-slash"),
        ("runtimes", []),
        ("runtimes", ["kubernetes"]),
        ("name", "not a slug"),
    ],
)
def test_a_bad_entry_is_refused_beside_the_field(root: Client, field: str, value: Any) -> None:
    response = root.post(f"{IMAGES}add/", entry(**{field: value}))
    assert response.status_code == 200
    assert field in response.context["adminform"].form.errors
    assert not Image.objects.filter(title="Tool").exists()


def test_the_process_runtime_needs_a_command(root: Client) -> None:
    response = root.post(f"{IMAGES}add/", entry(runtimes=["process"], ref=""))
    assert "command" in response.context["adminform"].form.errors


def test_the_catalogue_that_comes_with_codehub_is_valid() -> None:
    for image in Image.objects.all():
        image.full_clean()


def test_an_image_in_use_cannot_be_removed(root: Client) -> None:
    made = world.workspace(User.objects.create_user("owner"))
    assert root.post(f"{IMAGES}{made.image_id}/delete/", {"post": "yes"}).status_code in (200, 403)
    assert Image.objects.filter(pk=made.image_id).exists()


def test_an_operator_without_the_permission_does_not_change_the_catalogue() -> None:
    client = Client()
    client.force_login(world.operator())
    assert client.get(f"{IMAGES}add/").status_code == 403


def test_a_new_user_has_no_password_and_an_invitation_is_shown_once(root: Client) -> None:
    response = root.post(f"{USERS}add/", {"username": "new", "email": "new@example.org", **PROFILE}, follow=True)
    user = User.objects.get(username="new")
    assert not user.has_usable_password()
    assert "new" in response.content.decode()
    assert AuditEvent.objects.filter(action="add_user", detail__about="new").exists()


def test_limits_of_one_user_are_set_in_the_admin_and_hold(root: Client) -> None:
    user = User.objects.create_user("limited")
    body = {
        "username": "limited",
        "is_active": "on",
        "date_joined_0": "2026-01-01",
        "date_joined_1": "00:00:00",
        **PROFILE,
        "profile-0-max_running": 7,
    }
    response = root.post(f"{USERS}{user.pk}/change/", body)
    assert response.status_code == 302, response.content
    assert UserProfile.objects.get(user=user).max_running == 7
    assert services.limits_of(user).max_running == 7


def test_disabling_a_user_ends_sessions_and_tokens(root: Client) -> None:
    user = User.objects.create_user("leaver")
    browser = Client()
    browser.force_login(user)
    token, _text = AuthToken.objects.create(user=user)
    ApiToken.objects.create(auth_token=token, name="laptop")
    page = root.post(USERS, {"action": "disable", "_selected_action": [user.pk]}, follow=True).content.decode()
    user.refresh_from_db()
    assert not user.is_active
    assert "2 sessions and tokens" in page
    assert not AuthToken.objects.filter(user=user).exists()
    assert AuditEvent.objects.filter(action="disable_user", detail__about="leaver").exists()
    root.post(USERS, {"action": "enable", "_selected_action": [user.pk]})
    user.refresh_from_db()
    assert user.is_active


def test_nobody_disables_themselves(root: Client) -> None:
    me = User.objects.get(username="root")
    root.post(USERS, {"action": "disable", "_selected_action": [me.pk]})
    me.refresh_from_db()
    assert me.is_active


def test_an_operator_who_is_no_superuser_cannot_take_over_one_or_become_one(helper: Client) -> None:
    boss = User.objects.create_superuser("boss")
    me = User.objects.get(username="helper")
    assert helper.post(f"{USERS}{boss.pk}/change/", {"username": "boss"}).status_code == 403
    assert helper.post(f"{USERS}{boss.pk}/password/", {"password1": "x", "password2": "x"}).status_code == 403
    page = helper.post(USERS, {"action": "invite", "_selected_action": [boss.pk]}, follow=True).content.decode()
    assert "only a superuser" in page
    body = {
        "username": "helper",
        "is_active": "on",
        "is_staff": "on",
        "is_superuser": "on",
        "date_joined_0": "2026-01-01",
        "date_joined_1": "00:00:00",
    }
    assert helper.post(f"{USERS}{me.pk}/change/", {**body, **PROFILE}).status_code == 302
    me.refresh_from_db()
    assert not me.is_superuser
    helper.post(f"{USERS}add/", {"username": "puppet", "is_staff": "on", "is_superuser": "on", **PROFILE})
    assert not User.objects.filter(username="puppet", is_staff=True).exists()


def test_tokens_are_listed_without_anything_secret(root: Client) -> None:
    user = User.objects.create_user("holder")
    token, text = AuthToken.objects.create(user=user)
    ApiToken.objects.create(auth_token=token, name="laptop")
    page = root.get("/admin/workspaces/apitoken/").content.decode()
    assert "laptop" in page
    assert text not in page
    assert token.digest not in page
    assert root.get("/admin/knox/authtoken/").status_code == 404
