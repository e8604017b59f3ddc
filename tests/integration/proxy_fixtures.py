"""Fixtures of the proxy's tests: one web process and one upstream for each form, on rows that every module commits for itself."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth.models import User
from django.db import connection

from tests.conftest import fill_catalogue
from tests.integration.proxy_world import Servers, World, make_world, servers
from workspaces.models import AuditEvent, Workspace


def _servers(django_db_blocker: Any, **overrides: str) -> Iterator[Servers]:
    with django_db_blocker.unblock():
        if not connection.settings_dict["NAME"].startswith("test_"):
            # pytest-django makes the database only when a collected test is marked for it; these commit on their own.
            connection.creation.create_test_db(verbosity=0, serialize=False)
    base = os.environ["DATABASE_URL"].rpartition("/")[0]
    env = {**os.environ, "DATABASE_URL": f"{base}/{connection.settings_dict['NAME']}", "PYTHONUNBUFFERED": "1"}
    with servers(env, **overrides) as running:
        yield running


@pytest.fixture(scope="session")
def path_servers(django_db_setup: None, django_db_blocker: Any) -> Iterator[Servers]:
    yield from _servers(django_db_blocker, CODEHUB_WORKSPACE_DOMAIN="none")


@pytest.fixture(scope="session")
def own_servers(django_db_setup: None, django_db_blocker: Any) -> Iterator[Servers]:
    yield from _servers(django_db_blocker)


def _world(running: Servers, django_db_blocker: Any) -> Iterator[World]:
    with django_db_blocker.unblock():
        # The tests of an earlier module may have left the tables empty.
        fill_catalogue(apps, None)
        world = make_world(running)
        try:
            yield world
        finally:
            users = [world.owner.pk, world.other.pk]
            Workspace.objects.filter(owner__in=users).delete()
            AuditEvent.objects.filter(actor__in=users).delete()
            User.objects.filter(pk__in=users).delete()


@pytest.fixture(scope="module")
def path_world(path_servers: Servers, django_db_blocker: Any) -> Iterator[World]:
    """Everything in path form."""
    yield from _world(path_servers, django_db_blocker)


@pytest.fixture(scope="module")
def own_world(own_servers: Servers, django_db_blocker: Any) -> Iterator[World]:
    """As on a local machine: workspaces on origins of their own."""
    yield from _world(own_servers, django_db_blocker)
