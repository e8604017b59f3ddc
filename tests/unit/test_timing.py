"""When a workspace stops or is archived by itself."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from workspaces.timing import NEVER, Expiry, expiry_of

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def _expiry(**changes: Any) -> Expiry:
    columns: dict[str, Any] = {
        "phase": "RUNNING",
        "operation": "NONE",
        "desired_state": "RUNNING",
        "last_access_at": None,
        "phase_changed_at": T0,
        "keep_awake_until": None,
        "standby_ttl_seconds": None,
        "archive_ttl_seconds": None,
        "default_standby_seconds": 600,
        "default_archive_seconds": 1800,
    }
    return expiry_of(**{**columns, **changes})


def test_a_running_workspace_stops_after_its_last_use() -> None:
    assert _expiry(last_access_at=T0 + timedelta(seconds=5)).stops_at == T0 + timedelta(seconds=605)


def test_use_before_it_ran_does_not_count() -> None:
    assert _expiry(last_access_at=T0 - timedelta(days=1)).stops_at == T0 + timedelta(seconds=600)


def test_its_own_ttl_comes_before_the_sites() -> None:
    assert _expiry(standby_ttl_seconds=60).stops_at == T0 + timedelta(seconds=60)


@pytest.mark.parametrize("changes", [{"standby_ttl_seconds": 0}, {"default_standby_seconds": 0}])
def test_zero_means_never(changes: dict[str, Any]) -> None:
    assert _expiry(**changes) == NEVER


def test_keeping_awake_moves_the_end_but_never_forward() -> None:
    assert _expiry(keep_awake_until=T0 + timedelta(hours=2)).stops_at == T0 + timedelta(hours=2)
    assert _expiry(keep_awake_until=T0 + timedelta(seconds=1)).stops_at == T0 + timedelta(seconds=600)


def test_a_workspace_in_standby_is_archived_after_the_phase_began() -> None:
    found = _expiry(phase="STANDBY", desired_state="STANDBY", last_access_at=T0 + timedelta(days=1))
    assert found == Expiry(archives_at=T0 + timedelta(seconds=1800))


@pytest.mark.parametrize(
    "changes",
    [
        {"operation": "STOPPING"},
        {"desired_state": "STANDBY"},
        {"phase": "ARCHIVED", "desired_state": "ARCHIVED"},
        {"phase": "ERROR"},
    ],
)
def test_nothing_expires_while_something_happens_or_is_asked_for(changes: dict[str, Any]) -> None:
    assert _expiry(**changes) == NEVER
