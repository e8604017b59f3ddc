"""Every address there is, asked by nobody and by the wrong person, with every method: never a traceback, never a page too many.

The table is the URL resolver itself: an address that is added tomorrow is attacked tomorrow.
"""

from collections.abc import Iterator
from itertools import count
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver
from django.utils.regex_helper import normalize

from tests.integration import admin_world as world
from workspaces.models import AuditEvent, Workspace

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
# What anybody may read without signing in, by the name of its address.
PUBLIC = {"healthz", "readyz", "login", "logout", "session", "preferences", "invite", "welcome", "api-login"}
REFUSALS = {400, 401, 403, 404, 405, 409, 415, 429}

# A new address for each request: throttling is tested elsewhere and would hide what is asked here.
_addresses = (f"10.{n >> 16 & 255}.{n >> 8 & 255}.{n & 255}" for n in count(1))


def patterns(resolver: URLResolver, prefix: str = "") -> Iterator[tuple[str, URLPattern]]:
    """Every pattern with the regular expression that leads to it from the root."""
    for entry in resolver.url_patterns:
        regex = prefix + entry.pattern.regex.pattern.removeprefix("^")
        if isinstance(entry, URLResolver):
            yield from patterns(entry, regex)
        else:
            yield regex, entry


def templates() -> list[tuple[str, str, list[str]]]:
    """(name, address with placeholders, names of the placeholders), once for each form an address can take."""
    found = {}
    for regex, entry in patterns(get_resolver()):
        for template, names in normalize("^" + regex.replace(r"\Z", "$")):
            found["/" + template] = (entry.name or "", "/" + template, names)
    return sorted(found.values(), key=lambda item: item[1])


ADDRESSES = templates()


def fill(template: str, names: list[str], *, workspace_id: str) -> list[str]:
    """The address with sensible, missing and hostile arguments."""
    if not names:
        return [template.replace("%%", "%")]
    identifiers = {name: workspace_id if name.endswith("id") or name == "uidb64" else "workspaces" for name in names}
    hostile = dict.fromkeys(names, "%00%27%22%3Cscript%3E..%2F")
    numbers = dict.fromkeys(names, "1")
    huge = dict.fromkeys(names, "9" * 400)
    return [template % values for values in (identifiers, hostile, numbers, huge)]


def leads_to_login(location: str, asked: str) -> bool:
    path = asked.partition("?")[0]
    return location.startswith(("/login/", "/admin/login/")) or location.partition("?")[0] == f"{path}/"


def ask(client: Client, method: str, address: str) -> Any:
    body = b"" if method in ("GET", "HEAD", "TRACE") else b"{}"
    return client.generic(method, address, body, content_type="application/json", REMOTE_ADDR=next(_addresses))


def test_the_table_holds_every_kind_of_address() -> None:
    names = {name for name, _template, _arguments in ADDRESSES}
    assert len(ADDRESSES) > 100
    assert {"dashboard", "api-workspace", "workspaces_workspace_changelist", "overview", "workspace-gate", "login"} <= names


@pytest.mark.django_db
@pytest.mark.parametrize(("name", "template", "arguments"), ADDRESSES, ids=[template for _name, template, _arguments in ADDRESSES])
def test_nobody_gets_anywhere_and_nothing_breaks(name: str, template: str, arguments: list[str]) -> None:
    client = Client(raise_request_exception=False)
    for address in fill(template, arguments, workspace_id=str(uuid4())):
        for method in METHODS:
            response = ask(client, method, address)
            assert response.status_code < 500, f"{method} {address}"
            assert b"Traceback" not in (b"" if response.streaming else response.content), f"{method} {address}"
            if name in PUBLIC or method == "OPTIONS":
                continue
            if response.status_code in (301, 302):
                assert leads_to_login(response["Location"], address), f"{method} {address} -> {response['Location']}"
            elif name != "jsi18n":
                assert response.status_code in REFUSALS, f"{method} {address} -> {response.status_code}"
    assert not AuditEvent.objects.exists()
    assert not LogEntry.objects.exists()


@pytest.mark.django_db
def test_no_address_shows_or_changes_another_persons_workspace() -> None:
    secret = "the-name-nobody-else-may-read"
    victim = world.workspace(
        User.objects.create_user("victim"), secret, phase="RUNNING", desired_state="RUNNING", endpoint="http://127.0.0.1:9"
    )
    stranger = Client(raise_request_exception=False)
    stranger.force_login(User.objects.create_user("stranger"))
    before = Workspace.objects.filter(pk=victim.pk).values().get()
    for name, template, arguments in ADDRESSES:
        if name in ("logout", "api-logout") or not arguments:
            continue
        for address in fill(template, arguments, workspace_id=str(victim.pk))[:1]:
            for method in METHODS:
                response = ask(stranger, method, address)
                assert response.status_code < 500, f"{method} {address}"
                assert secret.encode() not in (b"" if response.streaming else response.content), f"{method} {address}"
    assert Workspace.objects.filter(pk=victim.pk).values().get() == before
    assert not AuditEvent.objects.exclude(action="create").exists()


@pytest.mark.django_db
def test_a_form_posted_from_elsewhere_is_refused() -> None:
    """Every address that takes a POST and a session wants a CSRF token."""
    owner = User.objects.create_superuser("owner")
    mine = world.workspace(owner, "mine")
    client = Client(enforce_csrf_checks=True, raise_request_exception=False)
    client.force_login(owner)
    before = Workspace.objects.filter(pk=mine.pk).values().get()
    for name, template, arguments in ADDRESSES:
        for address in fill(template, arguments, workspace_id=str(mine.pk))[:1]:
            response = client.post(
                address, {"name": "changed", "ids": str(mine.pk), "confirmed": "1", "understood": "on"}, REMOTE_ADDR=next(_addresses)
            )
            # The proxy's own rules judge a request that is meant for a workspace; here it finds one that cannot take it.
            allowed = {404, 502} if name == "workspace-gate" else {*REFUSALS, 301, 302}
            assert response.status_code in allowed, f"POST {address} -> {response.status_code}"
    assert Workspace.objects.filter(pk=mine.pk).values().get() == before
