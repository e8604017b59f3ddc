"""A workspace in words, for every state it can be in; no database."""

from datetime import UTC, datetime, timedelta
from html import unescape
from itertools import product
from typing import Any

import pytest
from django.utils import translation
from django.utils.html import strip_tags

from workspaces import moments
from workspaces.models import Attempt, Image, Workspace
from workspaces.phases import DesiredState, ErrorReason, Operation, Phase
from workspaces.presentation import Defaults, present

NOW = datetime(2026, 3, 1, 17, 32, tzinfo=UTC)
DEFAULTS = Defaults(standby_ttl=600, archive_ttl=1800)


def workspace(**columns: Any) -> Workspace:
    columns.setdefault("desired_state", columns.get("phase", Phase.STANDBY))
    values = {"name": "w", "image": Image(title="i"), "phase_changed_at": NOW - timedelta(hours=1), "updated_at": NOW, "created_at": NOW}
    return Workspace(**{**values, **columns})


def line(row: Workspace, **kwargs: Any) -> str:
    return unescape(strip_tags(present(row, attempt=kwargs.get("attempt"), now=NOW, defaults=DEFAULTS).line))


def test_running_says_when_it_stops_and_what_was_last_done() -> None:
    used = NOW - timedelta(minutes=2)
    row = workspace(phase=Phase.RUNNING, last_access_at=used, last_activity={"kind": "typing"})
    assert line(row) == "Stops at 17:40 UTC, in 8 min; last used 2 min ago: typing."


def test_running_that_never_stops_says_so() -> None:
    assert line(workspace(phase=Phase.RUNNING, standby_ttl_seconds=0)) == "Does not stop by itself."


def test_kept_awake_moves_the_time_and_is_named() -> None:
    row = workspace(phase=Phase.RUNNING, last_access_at=NOW, keep_awake_until=NOW + timedelta(hours=4))
    assert line(row) == "Kept awake: stops at 21:32 UTC, in 4 h; last used now."


def test_standby_says_when_it_is_archived() -> None:
    row = workspace(phase=Phase.STANDBY, phase_changed_at=NOW - timedelta(minutes=10))
    assert line(row) == "The home is on disk, nothing runs. Archived at 17:52 UTC, in 20 min."


def test_a_queued_wish_is_told_after_what_runs() -> None:
    row = workspace(phase=Phase.STANDBY, desired_state=DesiredState.ARCHIVED, operation=Operation.STARTING)
    assert line(row) == "Starting the IDE on its home. Then it is archived."


def test_a_failed_try_is_told_while_it_is_repeated() -> None:
    row = workspace(
        phase=Phase.STANDBY, desired_state=DesiredState.RUNNING, operation=Operation.STARTING, error_info={"is_terminal": False}
    )
    assert "The last try failed; it is tried again." in line(row)


def test_error_names_the_cause_behind_used_up_retries() -> None:
    row = workspace(
        phase=Phase.ERROR,
        desired_state=DesiredState.RUNNING,
        error_reason=ErrorReason.RETRY_EXCEEDED,
        error_info={"context": {"last_reason": "Unreachable"}},
    )
    assert "tried several times" in line(row)
    assert "did not answer" in line(row)


def test_unknown_kinds_of_activity_are_shown_escaped() -> None:
    row = workspace(phase=Phase.RUNNING, last_access_at=NOW, last_activity={"kind": "<b>odd</b>"})
    card = present(row, attempt=None, now=NOW, defaults=DEFAULTS)
    assert "&lt;b&gt;odd&lt;/b&gt;" in card.line


@pytest.mark.parametrize("language", ["en", "ko"])
def test_every_reachable_state_has_words_and_only_possible_actions(language: str) -> None:
    with translation.override(language):
        for phase, desired, operation in product(Phase, DesiredState, Operation):
            deleted = NOW if desired == DesiredState.DELETED else None
            row = workspace(phase=phase, desired_state=desired, operation=operation, deleted_at=deleted, op_started_at=NOW)
            attempt = Attempt(action="archive", state="RUNNING", bytes_done=1, bytes_total=2, started_at=NOW - timedelta(seconds=4))
            card = present(row, attempt=attempt, now=NOW, defaults=DEFAULTS)
            assert card.label
            assert card.line
            asked = {dict(button.fields).get("desired_state") for button in (*card.buttons, *card.menu) if button.fields}
            assert desired not in asked
            if deleted:
                assert (card.primary, card.buttons, card.menu) == (None, (), ())
            if phase == Phase.ERROR and not deleted:
                assert asked <= {None}


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "now"),
        (59, "in 59 s"),
        (60, "in 1 min"),
        (5399, "in 89 min"),
        (5400, "in 1 h"),
        (129_600, "in 1 day"),
        (172_800, "in 2 days"),
        (-61, "1 min ago"),
    ],
)
def test_relative_times_round_down_to_one_unit(seconds: int, words: str) -> None:
    assert moments.relative(NOW + timedelta(seconds=seconds), now=NOW) == words


def test_browsers_are_named_for_people() -> None:
    assert moments.browser("Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0") == "Firefox, Linux"
    assert moments.browser("Mozilla/5.0 (Macintosh; Intel Mac OS X 14) AppleWebKit/605 Version/18 Safari/605") == "Safari, macOS"
    assert moments.browser("something else entirely") == "something else entirely"
