"""The whole story of one workspace, for its page: why it is as it is, what comes next, what happened before.

Reads history and puts it in one line of time. Decides nothing: what the controller will do is told from the same columns
it decides from.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from workspaces import board, moments
from workspaces.models import Attempt, Breaker, LogTail, Transition, Workspace
from workspaces.phases import AttemptState, DesiredState, Operation, Phase
from workspaces.presentation import TARGETS, Card, condition_rows, error_sentence, expiry
from workspaces.words import action_word, operation_word, phase_words

HISTORY = 40
RECENT = 10


@dataclass(frozen=True, slots=True)
class Moment:
    """One entry of the timeline."""

    at: datetime
    title: str
    tone: str
    seconds: float | None = None
    note: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Story:
    card: Card
    workspace: Workspace
    desired: str
    observed: str
    next_step: SafeString
    blocked: str
    conditions: list[dict[str, Any]]
    timeline: list[Moment]
    log: str
    log_title: str
    log_at: datetime | None
    error: str
    error_message: str

    @property
    def recent(self) -> list[Moment]:
        return self.timeline[:RECENT]

    @property
    def older(self) -> list[Moment]:
        return self.timeline[RECENT:]


def load_story(workspace: Workspace, *, now: datetime) -> Story:
    """Everything the page shows, in a constant number of queries."""
    card = board.to_cards([workspace], now=now)[0]
    attempts = list(Attempt.objects.filter(workspace=workspace).counted()[:HISTORY])
    transitions = list(Transition.objects.filter(workspace=workspace)[:HISTORY])
    log, log_title, log_at = _log(workspace, attempts)
    info = workspace.error_info or {}
    return Story(
        card=card,
        workspace=workspace,
        desired=desired_word(workspace.desired_state),
        observed=phase_words(workspace.phase)[0],
        next_step=next_step(workspace, now=now),
        blocked=_blocked(workspace),
        conditions=condition_rows(workspace),
        timeline=_timeline(attempts, transitions),
        log=log,
        log_title=log_title,
        log_at=log_at,
        error=error_sentence(workspace) if workspace.error_reason else "",
        error_message=str(info.get("message", "")),
    )


def desired_word(state: str) -> str:
    return {
        DesiredState.RUNNING: _("Running"),
        DesiredState.STANDBY: _("Standby"),
        DesiredState.ARCHIVED: _("Archived"),
        DesiredState.DELETED: _("Deleted"),
    }.get(DesiredState(state), state)


def next_step(workspace: Workspace, *, now: datetime) -> SafeString:
    """What the controller does next, and when."""
    due = expiry(workspace, board.defaults())
    if workspace.phase == Phase.ERROR and workspace.deleted_at is None:
        if workspace.recovery_strategy:
            return format_html("{}", _("Takes up the operator's recovery at once."))
        return format_html("{}", _("Nothing, until an operator recovers it."))
    if workspace.operation != Operation.NONE:
        target = phase_words(TARGETS[workspace.operation])[0]
        return format_html(
            "{}",
            _("Finishes {operation}; it is done when “{phase}” is observed.").format(
                operation=operation_word(workspace.operation), phase=target
            ),
        )
    if workspace.deleted_at is not None:
        return format_html("{}", _("Removes the container and the home."))
    if workspace.desired_state != workspace.phase:
        return format_html("{}", _("Takes up the wish at its next look, within seconds."))
    if due.stops_at is not None:
        return _due(_("Stops it at {clock}, {relative}, unless it is used."), due.stops_at, now=now)
    if due.archives_at is not None:
        return _due(_("Archives it at {clock}, {relative}, unless it is started."), due.archives_at, now=now)
    return format_html("{}", _("Nothing: it is as wanted and stays so."))


def _due(sentence: str, at: datetime, *, now: datetime) -> SafeString:
    return format_html(sentence, clock=moments.clock_html(at, now=now), relative=moments.relative_html(at, now=now))


def _blocked(workspace: Workspace) -> str:
    """What stands in the way, if anything: an open breaker or a failed try."""
    waiting = workspace.operation != Operation.NONE or workspace.desired_state != workspace.phase or workspace.deleted_at is not None
    if not waiting:
        return ""
    if workspace.phase == Phase.ERROR and workspace.deleted_at is None:
        return _("The error above.")
    broken = Breaker.objects.exclude(state="closed").values_list("name", flat=True)
    names = ", ".join(broken)
    if names:
        return _("{system} does not answer at the moment; it is asked again every half minute.").format(system=names)
    info = workspace.error_info
    if info and not info.get("is_terminal"):
        return _("The last try failed and is repeated after a pause: {message}").format(message=info.get("message", ""))
    return ""


def _timeline(attempts: list[Attempt], transitions: list[Transition]) -> list[Moment]:
    found = [_of_attempt(attempt) for attempt in attempts] + [_of_transition(transition) for transition in transitions]
    return sorted(found, key=lambda moment: moment.at, reverse=True)[:HISTORY]


def _of_attempt(attempt: Attempt) -> Moment:
    ended = attempt.finished_at
    seconds = (ended - attempt.started_at).total_seconds() if ended and attempt.started_at else None
    outcome = {
        AttemptState.QUEUED: (_("waits for its turn"), "busy"),
        AttemptState.RUNNING: (_("under way"), "busy"),
        AttemptState.SUCCEEDED: (_("done"), "good"),
        AttemptState.FAILED: (_("failed"), "bad"),
        AttemptState.LOST: (_("lost, with the worker that ran it"), "bad"),
    }[AttemptState(attempt.state)]
    action, tries = action_word(attempt.action), getattr(attempt, "tries", 1)
    if tries > 1:
        title = _("{action}, try {number}: {outcome}").format(action=action, number=tries, outcome=outcome[0])
    else:
        title = _("{action}: {outcome}").format(action=action, outcome=outcome[0])
    note = moments.size(attempt.bytes_done) if attempt.bytes_done else ""
    error = attempt.error or {}
    return Moment(
        at=attempt.started_at or attempt.queued_at,
        title=title,
        tone=outcome[1],
        seconds=seconds,
        note=note,
        error=str(error.get("message", "")) if attempt.state in (AttemptState.FAILED, AttemptState.LOST) else "",
    )


def _of_transition(transition: Transition) -> Moment:
    if transition.from_phase != transition.to_phase:
        word, _icon, tone = phase_words(transition.to_phase)
        was = phase_words(transition.from_phase)[0] if transition.from_phase else ""
        title = _("{before} → {after}").format(before=was, after=word) if was else word
    elif transition.to_operation != Operation.NONE:
        title, tone = _("{operation} begins").format(operation=operation_word(transition.to_operation)), "busy"
    else:
        title, tone = _("{operation} ends").format(operation=operation_word(transition.from_operation)), "new"
    return Moment(at=transition.at, title=title, tone=tone, note=transition.message)


def _log(workspace: Workspace, attempts: list[Attempt]) -> tuple[str, str, datetime | None]:
    """The last failed run's output when something is wrong, else the IDE's last lines."""
    for attempt in attempts:
        if attempt.log and attempt.state in (AttemptState.FAILED, AttemptState.LOST):
            return attempt.log, _("Output of the last failed try"), attempt.finished_at
    tail = LogTail.objects.filter(workspace=workspace).first()
    if tail is not None and tail.text:
        return tail.text, _("The IDE's last lines"), tail.taken_at
    return "", "", None
