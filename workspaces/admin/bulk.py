"""What operators do to one or many workspaces at once: ask, see what will happen to each, confirm, read a result for each.

Every wish goes through the service layer with the acting operator and the address. One refusal never stops the rest.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.conf import settings
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from redis.exceptions import RedisError

from workspaces import services
from workspaces.admin.base import badge, workspace_link
from workspaces.errors import RequestError
from workspaces.models import Workspace
from workspaces.phases import DesiredState, Operation, Phase, RecoveryStrategy
from workspaces.wakeups import publish_observe

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise

MOST_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Strategy:
    """One answer to ERROR, and honestly what it does to the data."""

    name: RecoveryStrategy
    title: "str | _StrPromise"
    effect: "str | _StrPromise"
    destructive: bool


STRATEGIES = (
    Strategy(
        RecoveryStrategy.REOBSERVE,
        gettext_lazy("Look again and carry on"),
        gettext_lazy(
            "Clears the error and goes by what is really there. Touches no data. If the cause is still there, the error comes back."
        ),
        destructive=False,
    ),
    Strategy(
        RecoveryStrategy.RESTORE_ARCHIVE,
        gettext_lazy("Go back to the last archive"),
        gettext_lazy(
            "Gives up the missing home and restores the last good archive into a new one. Everything written after the archive's date is lost for good."
        ),
        destructive=True,
    ),
    Strategy(
        RecoveryStrategy.START_EMPTY,
        gettext_lazy("Start with an empty home"),
        gettext_lazy(
            "Gives up the missing home and forgets the archive as well: the owner begins with nothing. The forgotten archive is removed by the clean-up when its grace is over."
        ),
        destructive=True,
    ),
)


@dataclass(frozen=True, slots=True)
class Action:
    """A button: what it is called, what it says before it acts, and what it warns of."""

    name: str
    title: "str | _StrPromise"
    question: "str | _StrPromise"
    effect: "str | _StrPromise"
    destructive: bool = False
    queues: bool = True


ACTIONS = {
    action.name: action
    for action in (
        Action(
            "recover",
            gettext_lazy("Recover"),
            gettext_lazy("Recover these workspaces?"),
            gettext_lazy("Choose one strategy. It is asked for wherever it is possible, and refused with a reason where it is not."),
            queues=False,
        ),
        Action(
            "stop",
            gettext_lazy("Stop"),
            gettext_lazy("Stop these workspaces?"),
            gettext_lazy(
                "The container is removed and whatever runs in it ends: unsaved work in an editor and running programs are lost. The home stays on disk."
            ),
        ),
        Action(
            "archive",
            gettext_lazy("Archive"),
            gettext_lazy("Archive these workspaces?"),
            gettext_lazy(
                "Running ones are stopped first. The home is packed into object storage, read back and compared, and only then removed from disk. No file is lost; the next start takes longer."
            ),
        ),
        Action(
            "delete",
            gettext_lazy("Delete"),
            gettext_lazy("Delete these workspaces?"),
            gettext_lazy(
                "The container, the home and every archive of it are removed. Nobody can bring them back: not the owner, not an operator, not CodeHub."
            ),
            destructive=True,
        ),
        Action(
            "reobserve",
            gettext_lazy("Look again now"),
            gettext_lazy("Observe these workspaces now?"),
            gettext_lazy("The controller looks at the real container, volume and archive at once. Changes nothing by itself."),
            queues=False,
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one wish."""

    workspace_id: UUID
    name: str
    code: str
    sentence: str
    granted: bool


@dataclass(frozen=True, slots=True)
class Preview:
    """One row of a confirmation page: `refusals` maps a strategy (or the empty string) to why it will be refused."""

    workspace: Workspace
    refusals: dict[str, str]
    note: str


def preview(workspace: Workspace, action: Action) -> Preview:
    """What would be said now; what is true when the operator confirms is judged again then."""
    if action.name != "recover":
        return Preview(workspace, _foreseen_refusal(workspace, action), _note(workspace, action))
    refusals = {}
    for strategy in STRATEGIES:
        try:
            services.check_recovery(workspace, strategy.name)
        except RequestError as error:
            refusals[strategy.name.value] = error.message
    return Preview(workspace, refusals, "")


def _foreseen_refusal(workspace: Workspace, action: Action) -> dict[str, str]:
    if workspace.deleted_at is not None and action.name in ("stop", "archive"):
        return {"": _("The workspace is being deleted.")}
    if workspace.phase == Phase.ERROR and action.name in ("stop", "archive"):
        return {"": _("The workspace is in ERROR and must be recovered first.")}
    return {}


def _note(workspace: Workspace, action: Action) -> str:
    if action.queues and workspace.operation != Operation.NONE:
        return _("Waits until %(operation)s has ended.") % {"operation": workspace.operation}
    return ""


def run(
    action: Action, workspaces: Iterable[Workspace], *, user: Any, address: str | None, strategy: str = "", queue: bool = True
) -> list[Outcome]:
    """Ask for each, one transaction at a time, and say what became of it."""
    outcomes = []
    for workspace in workspaces:
        try:
            sentence = _ask(action, workspace, user=user, address=address, strategy=strategy, queue=queue)
        except RequestError as error:
            outcomes.append(Outcome(workspace.pk, workspace.name, error.code, error.message, granted=False))
        except RedisError:
            outcomes.append(Outcome(workspace.pk, workspace.name, "redis_unreachable", _("Redis did not answer."), granted=False))
        else:
            outcomes.append(Outcome(workspace.pk, workspace.name, "granted", sentence, granted=True))
    return outcomes


def _ask(action: Action, workspace: Workspace, *, user: Any, address: str | None, strategy: str, queue: bool) -> str:
    match action.name:
        case "recover":
            asked = services.request_recover(workspace.pk, user=user, strategy=strategy or RecoveryStrategy.REOBSERVE, address=address)
            if workspace.desired_state == DesiredState.RUNNING and asked.desired_state == DesiredState.STANDBY:
                return _("%(strategy)s was asked for. It stays at STANDBY: the running limit is reached.") % {
                    "strategy": asked.recovery_strategy
                }
            return _("%(strategy)s was asked for.") % {"strategy": asked.recovery_strategy}
        case "stop" | "archive":
            state = DesiredState.STANDBY if action.name == "stop" else DesiredState.ARCHIVED
            asked = services.request_state(workspace.pk, user=user, desired_state=state, queue=queue, address=address)
            return _queued(asked, _("%(state)s was asked for.") % {"state": state.value})
        case "delete":
            asked = services.request_delete(workspace.pk, user=user, queue=queue, address=address)
            return _queued(asked, _("Deletion was asked for."))
        case _:
            heard = publish_observe(workspace.pk)
            return _("A look was asked for.") if heard else _("A look was asked for, but no coordinator is listening now.")


def _queued(workspace: Workspace, sentence: str) -> str:
    if workspace.operation in (Operation.NONE, Operation.DELETING):
        return sentence
    return sentence + " " + _("It waits until %(operation)s has ended.") % {"operation": workspace.operation}


def results_table(action: Action, outcomes: list[Outcome]) -> SafeString:
    """One line for each workspace, refusals first."""
    granted = sum(outcome.granted for outcome in outcomes)
    summary = ngettext(
        "%(title)s: %(granted)d of %(count)d workspace granted.", "%(title)s: %(granted)d of %(count)d workspaces granted.", len(outcomes)
    )
    rows = format_html_join(
        "",
        "<tr><td>{}</td><td>{}</td><td>{}</td></tr>",
        (
            (
                workspace_link(outcome.workspace_id, outcome.name),
                badge(_("granted"), tone="good", sign="check") if outcome.granted else badge(outcome.code, tone="bad", sign="error"),
                outcome.sentence,
            )
            for outcome in sorted(outcomes, key=lambda outcome: outcome.granted)
        ),
    )
    return format_html(
        '<strong>{}</strong><div class="ch-scroll"><table class="ch-results"><thead><tr><th scope="col">{}</th><th scope="col">{}</th><th scope="col">{}</th></tr></thead><tbody>{}</tbody></table></div>',
        summary % {"title": action.title, "granted": granted, "count": len(outcomes)},
        _("Workspace"),
        _("Result"),
        _("What it means"),
        rows,
    )


def grace_sentence() -> str:
    """How long a deleted workspace's archives still take up space."""
    hours = settings.CONFIG.gc_grace_seconds / 3600
    return _("Archives are removed by the clean-up, at the earliest %(hours).1f h after it first sees them as left over.") % {
        "hours": hours
    }
