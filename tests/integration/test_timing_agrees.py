"""What is shown as the time of expiry is the time at which the expiry statement acts."""

from datetime import timedelta
from itertools import product
from typing import Any

import pytest

from tests.api import person, workspace_of
from workspaces import services
from workspaces.models import Workspace
from workspaces.timing import expiry_of

pytestmark = pytest.mark.django_db


def test_exactly_what_is_shown_as_due_expires() -> None:
    ada = person("ada")
    now = services.database_now()
    early, late = now - timedelta(hours=3), now - timedelta(seconds=30)
    awake: tuple[Any, ...] = (None, now - timedelta(seconds=1), now + timedelta(hours=1))
    for phase, desired, access, changed, ttl, until in product(
        ("RUNNING", "STANDBY", "ARCHIVED"), ("RUNNING", "STANDBY"), (None, early, late), (early, late), (None, 0, 60), awake
    ):
        workspace_of(
            ada,
            phase=phase,
            desired_state=desired,
            last_access_at=access,
            phase_changed_at=changed,
            standby_ttl_seconds=ttl,
            archive_ttl_seconds=ttl,
            keep_awake_until=until,
        )
    shown = set()
    for row in Workspace.objects.all():
        expiry = expiry_of(
            phase=row.phase,
            operation=row.operation,
            desired_state=row.desired_state,
            last_access_at=row.last_access_at,
            phase_changed_at=row.phase_changed_at,
            keep_awake_until=row.keep_awake_until,
            standby_ttl_seconds=row.standby_ttl_seconds,
            archive_ttl_seconds=row.archive_ttl_seconds,
            default_standby_seconds=600,
            default_archive_seconds=1800,
        )
        due = expiry.stops_at or expiry.archives_at
        if due is not None and due <= now:
            shown.add(row.pk)
    stopping, archiving = services.request_expiry(standby_seconds=600, archive_seconds=1800)
    assert shown
    assert {*stopping, *archiving} == shown
