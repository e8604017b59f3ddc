"""The arithmetic of savings, by hand-made lives."""

from datetime import UTC, date, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workspaces.phases import Phase
from workspaces.savings import SHOWN, Change, Life, bars, hours_by_day, nice_top, saved, split_into_days, stretches

ONE = UUID(int=1)
START = datetime(2026, 3, 1, tzinfo=UTC)
END = START + timedelta(days=3)


def life(**changes: object) -> Life:
    values = {"workspace": ONE, "created_at": START - timedelta(days=9), "phase": Phase.STANDBY, "memory_mb": 2048, "home_bytes": 1024**3}
    return Life(**{**values, **changes})  # type: ignore[arg-type]


def test_without_changes_the_present_phase_held_all_the_time() -> None:
    found = stretches([life()], [], start=START, end=END)
    assert [(one.phase, one.start, one.end) for one in found] == [(Phase.STANDBY, START, END)]


def test_before_the_first_change_its_origin_held() -> None:
    at = START + timedelta(hours=30)
    found = stretches([life(phase=Phase.RUNNING)], [Change(ONE, at, Phase.ARCHIVED, Phase.RUNNING)], start=START, end=END)
    assert [(one.phase, one.end - one.start) for one in found] == [
        (Phase.ARCHIVED, timedelta(hours=30)),
        (Phase.RUNNING, timedelta(hours=42)),
    ]


def test_a_workspace_counts_from_its_creation_only() -> None:
    found = stretches([life(created_at=START + timedelta(days=2))], [], start=START, end=END)
    assert sum((one.end - one.start for one in found), timedelta()) == timedelta(days=1)


def test_hours_are_split_at_midnight_and_idle_days_are_listed() -> None:
    at = START + timedelta(hours=23)
    until = START + timedelta(hours=26)
    changes = [Change(ONE, at, Phase.ARCHIVED, Phase.RUNNING), Change(ONE, until, Phase.RUNNING, Phase.ARCHIVED)]
    days = hours_by_day(stretches([life(phase=Phase.ARCHIVED)], changes, start=START, end=END), start=START, end=END)
    assert [day.day for day in days] == [date(2026, 3, 1), date(2026, 3, 2), date(2026, 3, 3)]
    assert [day.hours[Phase.RUNNING] for day in days] == [1.0, 2.0, 0.0]
    assert [day.total for day in days] == [24.0, 24.0, 24.0]


def test_memory_is_saved_asleep_and_disk_in_the_archive_only() -> None:
    at = START + timedelta(hours=24)
    found = stretches([life(phase=Phase.ARCHIVED)], [Change(ONE, at, Phase.RUNNING, Phase.ARCHIVED)], start=START, end=END)
    result = saved(found, [life()])
    assert result.memory_hours_used == pytest.approx(48.0)
    assert result.memory_hours == pytest.approx(96.0)
    assert result.volume_hours == pytest.approx(48.0)
    assert result.asleep_share == pytest.approx(2 / 3)


def test_deleted_time_is_nobodys() -> None:
    found = stretches([life(phase=Phase.DELETED)], [Change(ONE, START, Phase.STANDBY, Phase.DELETED)], start=START, end=END)
    assert all(day.total == 0 for day in hours_by_day(found, start=START, end=END))


# A busy machine is no reason to fail.
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.integers(0, 71 * 60), st.sampled_from(list(SHOWN))), max_size=30))
def test_hours_of_all_phases_add_up_to_the_window(moves: list[tuple[int, Phase]]) -> None:
    before: str = Phase.PENDING
    changes = []
    for minute, phase in sorted(moves):
        changes.append(Change(ONE, START + timedelta(minutes=minute), before, phase))
        before = phase
    found = stretches([life(phase=before)], changes, start=START, end=END)
    assert sum(day.total for day in hours_by_day(found, start=START, end=END)) == pytest.approx(72.0)
    drawn, grid = bars(hours_by_day(found, start=START, end=END), width=300, height=100)
    assert all(bar.y >= -0.02 and bar.y + bar.height <= 100.02 for bar in drawn)
    assert grid[0] == (100.0, 0.0)


@pytest.mark.parametrize("highest", [0.0, 0.3, 4.0, 4.1, 39, 41, 144, 9999, 123456])
def test_axis_ends_at_or_above_the_highest_bar(highest: float) -> None:
    assert nice_top(highest) >= highest
    assert nice_top(highest) % 4 == 0


def test_split_into_days_of_nothing_is_nothing() -> None:
    assert split_into_days(START, START) == []
