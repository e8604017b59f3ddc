"""The triggers: which change tells whom, exactly once, and what stays quiet."""

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.contrib.auth.models import User
from django.db import connection

from workspaces import services
from workspaces.models import Workspace

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def listener() -> Iterator[psycopg.Connection[Any]]:
    settings = connection.settings_dict
    with psycopg.connect(
        dbname=settings["NAME"],
        user=settings["USER"],
        password=settings["PASSWORD"],
        host=settings["HOST"],
        port=settings["PORT"],
        autocommit=True,
    ) as listening:
        for channel in ("ws_sse", "ws_wake", "ws_deleted"):
            listening.execute(f"LISTEN {channel}")
        yield listening


def heard(listener: psycopg.Connection[Any]) -> list[tuple[str, str]]:
    """What arrived so far. The marker is sent last, so nothing has to be waited for."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify('ws_sse', 'end')")
    found: list[tuple[str, str]] = []
    for note in listener.notifies(timeout=10):
        if note.payload == "end":
            return found
        found.append((note.channel, json.loads(note.payload)["id"]))
    raise AssertionError("the marker never arrived")


@pytest.fixture
def workspace(listener: psycopg.Connection[Any]) -> Workspace:
    owner = User.objects.create_user("owner")
    workspace, _ = services.request_create(user=owner, name="x", desired_state="STANDBY")
    assert sorted(heard(listener)) == [("ws_sse", str(workspace.pk)), ("ws_wake", str(workspace.pk))]
    return workspace


@pytest.mark.parametrize(
    ("change", "channels"),
    [
        ({"phase": "STANDBY"}, ["ws_sse"]),
        ({"operation": "STARTING"}, ["ws_sse"]),
        ({"desired_state": "RUNNING"}, ["ws_sse", "ws_wake"]),
        ({"error_reason": "Timeout"}, ["ws_sse"]),
        ({"name": "y"}, ["ws_sse"]),
        ({"description": "y"}, ["ws_sse"]),
        ({"memo": "y"}, ["ws_sse"]),
        ({"standby_ttl_seconds": 60}, ["ws_sse"]),
        ({"archive_ttl_seconds": 60}, ["ws_sse"]),
        ({"recovery_strategy": "reobserve"}, ["ws_wake"]),
        ({"phase": "PENDING"}, []),
        ({"conditions": {"a": 1}}, []),
        ({"home_ctx": {"generation": 2}}, []),
        ({"endpoint": "http://127.0.0.1:1"}, []),
    ],
)
def test_a_change_notifies_each_channel_that_cares_exactly_once(
    workspace: Workspace, listener: psycopg.Connection[Any], change: dict[str, Any], channels: list[str]
) -> None:
    Workspace.objects.filter(pk=workspace.pk).update(**change)
    assert sorted(heard(listener)) == [(channel, str(workspace.pk)) for channel in channels]


def test_a_new_observation_time_notifies_nobody(workspace: Workspace, listener: psycopg.Connection[Any]) -> None:
    Workspace.objects.filter(pk=workspace.pk).update(observed_at=services.database_now())
    assert heard(listener) == []


def test_deletion_is_told_on_its_own_channel(workspace: Workspace, listener: psycopg.Connection[Any]) -> None:
    services.request_delete(workspace.pk, user=workspace.owner)
    assert sorted({channel for channel, _ in heard(listener)}) == ["ws_deleted", "ws_sse", "ws_wake"]
