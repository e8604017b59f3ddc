"""When a workspace will stop or be archived by itself, for the API and the screen.

Pure arithmetic on the columns the expiry statement looks at, kept in step with it by a test. It decides nothing and
reads neither the clock nor the database: what is due may lie in the past until the next expiry check.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from workspaces.phases import DesiredState, Operation, Phase


@dataclass(frozen=True, slots=True)
class Expiry:
    """`stops_at` of a running workspace, `archives_at` of one in standby; None where nothing will happen by itself."""

    stops_at: datetime | None = None
    archives_at: datetime | None = None


NEVER = Expiry()


def expiry_of(
    *,
    phase: str,
    operation: str,
    desired_state: str,
    last_access_at: datetime | None,
    phase_changed_at: datetime,
    keep_awake_until: datetime | None,
    standby_ttl_seconds: int | None,
    archive_ttl_seconds: int | None,
    default_standby_seconds: int,
    default_archive_seconds: int,
) -> Expiry:
    """What expires when. Nothing does while an operation runs or a wish is pending."""
    if operation != Operation.NONE or desired_state != phase:
        return NEVER
    if phase == Phase.RUNNING and desired_state == DesiredState.RUNNING:
        since = max(last_access_at, phase_changed_at) if last_access_at is not None else phase_changed_at
        ttl = default_standby_seconds if standby_ttl_seconds is None else standby_ttl_seconds
        return Expiry(stops_at=_due(since, ttl, keep_awake_until))
    if phase == Phase.STANDBY and desired_state == DesiredState.STANDBY:
        ttl = default_archive_seconds if archive_ttl_seconds is None else archive_ttl_seconds
        return Expiry(archives_at=_due(phase_changed_at, ttl, keep_awake_until))
    return NEVER


def _due(since: datetime, ttl: int, keep_awake_until: datetime | None) -> datetime | None:
    if ttl <= 0:
        return None
    due = since + timedelta(seconds=ttl)
    return due if keep_awake_until is None else max(due, keep_awake_until)
