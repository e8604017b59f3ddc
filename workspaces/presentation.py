"""A workspace in words: what it is doing, why, since when, what happens next, and what its owner can do now.

Pure: rows in, words out. No database, no clock (`now` is an argument), no request. Every door that shows a workspace to
a person uses this, so the same state is never told in two ways.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.urls import reverse
from django.utils.html import escape, format_html
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

from workspaces import moments, words
from workspaces.models import Attempt, Workspace
from workspaces.phases import DesiredState, ErrorReason, Operation, Phase
from workspaces.timing import Expiry, expiry_of

# Where each operation leads.
TARGETS: dict[str, str] = {
    Operation.PROVISIONING: Phase.STANDBY,
    Operation.CREATE_EMPTY_ARCHIVE: Phase.ARCHIVED,
    Operation.RESTORING: Phase.STANDBY,
    Operation.STARTING: Phase.RUNNING,
    Operation.STOPPING: Phase.STANDBY,
    Operation.ARCHIVING: Phase.ARCHIVED,
    Operation.DELETING: Phase.DELETED,
}


@dataclass(frozen=True, slots=True)
class Defaults:
    """The site's idle limits, for workspaces without their own."""

    standby_ttl: int
    archive_ttl: int


@dataclass(frozen=True, slots=True)
class Button:
    """One thing that can be done now. `fields` are posted; without them it is a link."""

    key: str
    label: str
    icon: str
    url: str
    fields: tuple[tuple[str, str], ...] = ()
    tone: str = ""
    new_tab: bool = False

    @property
    def is_link(self) -> bool:
        return not self.fields


@dataclass(frozen=True, slots=True)
class Progress:
    label: str
    done: int
    total: int | None
    detail: str


@dataclass(frozen=True, slots=True)
class Card:
    """Everything a card shows beside the row itself."""

    workspace: Workspace
    label: str
    icon: str
    tone: str
    line: SafeString
    detail: SafeString
    progress: Progress | None
    primary: Button | None
    buttons: tuple[Button, ...]
    menu: tuple[Button, ...]


def expiry(workspace: Workspace, defaults: Defaults) -> Expiry:
    """When it stops or is archived by itself, if it does."""
    return expiry_of(
        phase=workspace.phase,
        operation=workspace.operation,
        desired_state=workspace.desired_state,
        last_access_at=workspace.last_access_at,
        phase_changed_at=workspace.phase_changed_at,
        keep_awake_until=workspace.keep_awake_until,
        standby_ttl_seconds=workspace.standby_ttl_seconds,
        archive_ttl_seconds=workspace.archive_ttl_seconds,
        default_standby_seconds=defaults.standby_ttl,
        default_archive_seconds=defaults.archive_ttl,
    )


def present(workspace: Workspace, *, attempt: Attempt | None, now: datetime, defaults: Defaults) -> Card:
    """The whole card. `attempt` is the run under way, if any."""
    label, icon, tone = state_words(workspace)
    line, detail = _lines(workspace, now=now, defaults=defaults)
    primary, buttons, menu = _buttons(workspace)
    return Card(
        workspace=workspace,
        label=label,
        icon=icon,
        tone=tone,
        line=line,
        detail=detail,
        progress=_progress(workspace, attempt),
        primary=primary,
        buttons=buttons,
        menu=menu,
    )


def state_words(workspace: Workspace) -> tuple[str, str, str]:
    """Word, icon and tone of the state on the screen."""
    if workspace.deleted_at is not None and workspace.phase != Phase.DELETED:
        return _("Deleting"), "deleting", "new"
    if workspace.operation != Operation.NONE:
        return words.operation_word(workspace.operation), "busy", "busy"
    return words.phase_words(workspace.phase)


def error_sentence(workspace: Workspace) -> str:
    """Why a workspace needs attention, in plain words; the cause behind used-up retries is named too."""
    reason = workspace.error_reason or ""
    sentence = words.error_words(reason)
    cause = ((workspace.error_info or {}).get("context") or {}).get("last_reason")
    if reason == ErrorReason.RETRY_EXCEEDED and cause in words.ERRORS:
        sentence = f"{sentence} {words.error_words(cause)}"
    return sentence


def _lines(workspace: Workspace, *, now: datetime, defaults: Defaults) -> tuple[SafeString, SafeString]:
    """The one line of why and what next, and a softer one below it."""
    if workspace.deleted_at is not None:
        line = _(words.DOING[Operation.DELETING]) if workspace.operation in (Operation.NONE, Operation.DELETING) else _then(workspace)
        return _text(line), _since(workspace.deleted_at, now=now)
    if workspace.phase == Phase.ERROR:
        asked = _("An operator is mending it.") if workspace.recovery_strategy else _("An operator has to look at it.")
        return _text(f"{error_sentence(workspace)} {asked}"), _since(workspace.phase_changed_at, now=now)
    if workspace.operation != Operation.NONE:
        return _text(_then(workspace)), _since(workspace.op_started_at or workspace.phase_changed_at, now=now)
    if workspace.desired_state != workspace.phase:
        return _text(_(words.WISHES[workspace.desired_state])), _since(workspace.updated_at, now=now)
    return _settled_lines(workspace, now=now, defaults=defaults)


def _settled_lines(workspace: Workspace, *, now: datetime, defaults: Defaults) -> tuple[SafeString, SafeString]:
    since = _since(workspace.phase_changed_at, now=now)
    if workspace.phase == Phase.RUNNING:
        return _running_line(workspace, now=now, defaults=defaults), since
    if workspace.phase == Phase.STANDBY:
        due = expiry(workspace, defaults).archives_at
        if due is None:
            return _text(_("The home is on disk, nothing runs. It stays so until you start it.")), since
        sentence = _("The home is on disk, nothing runs. Archived at {clock}, {relative}.")
        return format_html(sentence, clock=moments.clock_html(due, now=now), relative=moments.relative_html(due, now=now)), since
    if workspace.phase == Phase.ARCHIVED and workspace.archive_size:
        sentence = _("The home is packed away safely: {size} in object storage.")
        return format_html(sentence, size=moments.size(workspace.archive_size)), since
    if workspace.phase == Phase.ARCHIVED:
        return _text(_("The home is packed away safely in object storage.")), since
    return _text(_("It never had a home yet.")), since


def _running_line(workspace: Workspace, *, now: datetime, defaults: Defaults) -> SafeString:
    due = expiry(workspace, defaults).stops_at
    if due is None:
        next_step = _text(_("Does not stop by itself"))
    else:
        kept = workspace.keep_awake_until is not None and workspace.keep_awake_until > now
        sentence = _("Kept awake: stops at {clock}, {relative}") if kept else _("Stops at {clock}, {relative}")
        next_step = format_html(sentence, clock=moments.clock_html(due, now=now), relative=moments.relative_html(due, now=now))
    activity = workspace.last_activity or {}
    if workspace.last_access_at is None:
        return format_html("{}.", next_step)
    used = moments.relative_html(workspace.last_access_at, now=now)
    kind = activity.get("kind")
    if not kind:
        return format_html(_("{next_step}; last used {used}."), next_step=next_step, used=used)
    what = words.activity_word(kind)
    return format_html(_("{next_step}; last used {used}: {what}."), next_step=next_step, used=used, what=what)


def _then(workspace: Workspace) -> str:
    doing = _(words.DOING[workspace.operation])
    if workspace.error_info and not workspace.error_info.get("is_terminal"):
        doing = f"{doing} {_('The last try failed; it is tried again.')}"
    if TARGETS[workspace.operation] == workspace.desired_state:
        return doing
    return f"{doing} {_(words.THEN[workspace.desired_state])}"


def _since(at: datetime, *, now: datetime) -> SafeString:
    return format_html(_("since {clock}, {relative}"), clock=moments.clock_html(at, now=now), relative=moments.relative_html(at, now=now))


def _text(sentence: str) -> SafeString:
    return mark_safe(escape(sentence))  # noqa: S308 - escaped in the same breath


def _progress(workspace: Workspace, attempt: Attempt | None) -> Progress | None:
    if attempt is None or workspace.operation == Operation.NONE:
        return None
    label = words.step_word(action=attempt.action, step="queued" if attempt.state == "QUEUED" else attempt.step or attempt.action)
    if not attempt.bytes_done and not attempt.bytes_total:
        return Progress(label=label, done=0, total=None, detail="")
    lasted = step_seconds(attempt)
    if not attempt.bytes_total:
        detail = moments.size(attempt.bytes_done)
        if lasted >= 1:
            detail = _("{done}, {rate} per second").format(done=detail, rate=moments.size(int(attempt.bytes_done / lasted)))
        return Progress(label=label, done=attempt.bytes_done, total=None, detail=detail)
    done = min(attempt.bytes_done, attempt.bytes_total)
    detail = _("{done} of {total}").format(done=moments.size(done), total=moments.size(attempt.bytes_total))
    if lasted >= 1 and done:
        # At the average speed of this step so far.
        left = (attempt.bytes_total - done) * lasted / done
        detail = _("{progress}, {span} left").format(progress=detail, span=moments.span(left))
    return Progress(label=label, done=done, total=attempt.bytes_total, detail=detail)


def step_seconds(attempt: Attempt) -> float:
    """How long the step had lasted when its bytes were saved; 0 when the run did not say."""
    lasted = attempt.result.get("step_seconds")
    return float(lasted) if isinstance(lasted, int | float) else 0.0


def _buttons(workspace: Workspace) -> tuple[Button | None, tuple[Button, ...], tuple[Button, ...]]:
    """Primary, beside it, and in the menu: only what is possible now."""
    edit = Button("edit", _("Name, notes and idle times"), "edit", reverse("workspace-edit", args=[workspace.pk]))
    if workspace.deleted_at is not None:
        return None, (), ()
    busy = workspace.operation != Operation.NONE
    delete = Button(
        "delete",
        _("Delete when done") if busy else _("Delete"),
        "deleting",
        reverse("workspace-delete", args=[workspace.pk]),
        tone="danger",
    )
    if workspace.phase == Phase.ERROR:
        details = Button("details", _("What happened"), "info", reverse("workspace", args=[workspace.pk]))
        return None, (details,), (edit, delete)
    primary = _primary(workspace, busy=busy)
    states = [button for button in _states(workspace, busy=busy) if primary is None or button.key != primary.key]
    # One step stands beside the primary action, so a card keeps its height; the longer ways are in the menu.
    awake: Sequence[Button] = _awake(workspace) if workspace.desired_state == DesiredState.RUNNING else ()
    return primary, tuple(states[:1]), (*states[1:], *awake, edit, delete)


def _primary(workspace: Workspace, *, busy: bool) -> Button | None:
    url = f"/w/{workspace.pk}/"
    if workspace.desired_state == DesiredState.RUNNING:
        # Before it is ready this leads to a page that waits and then moves on by itself.
        return Button("open", _("Open"), "open", url, new_tab=True)
    if workspace.phase == Phase.STANDBY and not busy and workspace.desired_state == DesiredState.STANDBY:
        return Button("open", _("Open"), "open", url, new_tab=True)
    if workspace.phase == Phase.ARCHIVED and not busy:
        return _state(workspace, "start", _("Restore"), "archived", DesiredState.RUNNING)
    return None


def _states(workspace: Workspace, *, busy: bool) -> list[Button]:
    desired = workspace.desired_state
    found: list[Button] = []
    if desired != DesiredState.RUNNING:
        found.append(_state(workspace, "start", _("Start when done") if busy else _("Start"), "start", DesiredState.RUNNING))
    # What is packed away cannot be stopped, only unpacked, and "Restore" already says that.
    if desired != DesiredState.STANDBY and (
        busy or workspace.phase == Phase.RUNNING or (desired == DesiredState.RUNNING and workspace.phase != Phase.ARCHIVED)
    ):
        found.append(_state(workspace, "stop", _("Stop when done") if busy else _("Stop"), "stop", DesiredState.STANDBY))
    if desired != DesiredState.ARCHIVED:
        found.append(_state(workspace, "archive", _("Archive when done") if busy else _("Archive"), "archived", DesiredState.ARCHIVED))
    return found


def _state(workspace: Workspace, key: str, label: str, icon: str, desired: DesiredState) -> Button:
    return Button(key, label, icon, reverse("workspace-state", args=[workspace.pk]), (("desired_state", desired.value),))


def _awake(workspace: Workspace) -> list[Button]:
    url = reverse("workspace-keep-awake", args=[workspace.pk])
    found = [
        Button("awake-1", _("Keep awake for 1 hour"), "clock", url, (("seconds", "3600"),)),
        Button("awake-4", _("Keep awake for 4 hours"), "clock", url, (("seconds", "14400"),)),
    ]
    if workspace.keep_awake_until is not None:
        found.append(Button("awake-0", _("Stop as usual again"), "clock", url, (("seconds", "0"),)))
    return found


def condition_rows(workspace: Workspace) -> list[dict[str, Any]]:
    """The checklist of the last observation, in words."""
    names = {
        "storage.volume_ready": _("The home is on disk, whole"),
        "storage.archive_ready": _("The archive is in object storage"),
        "infra.container_ready": _("The IDE runs and answers"),
        "policy.healthy": _("Nothing is broken"),
    }
    rows = []
    for key, name in names.items():
        value = workspace.conditions.get(key) or {}
        at = value.get("last_transition_time")
        rows.append(
            {
                "key": key,
                "name": name,
                "known": bool(value),
                "status": bool(value.get("status", key == "policy.healthy")),
                "found": words.found_words(value.get("reason", "")) or value.get("message") or value.get("reason", ""),
                "at": datetime.fromisoformat(at) if at else None,
                "critical": key == "policy.healthy",
            }
        )
    return rows
