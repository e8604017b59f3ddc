"""The service layer: the only writer of what is asked for, and of the audit trail.

Every `request_*` is one transaction: lock, check, write, audit. Acting users are keyword-only. It knows nothing of HTTP and
never touches an observed column; whether and when a wish comes true is the controller's business.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.db.models.functions import Now
from django.utils.translation import gettext as _

from workspaces.errors import (
    IdempotencyConflictError,
    InvalidRequestError,
    LimitExceededError,
    NotAllowedError,
    NotFoundError,
    NotInErrorError,
    OperationInProgressError,
    RecoverFirstError,
    RecoveryRefusedError,
    StaleError,
)
from workspaces.fields import clean_fields
from workspaces.models import AuditEvent, IdempotencyKey, Image, Installation, Orphan, UserProfile, Workspace
from workspaces.phases import LOSS_REASONS, ConditionKey, DesiredState, ErrorReason, Operation, Phase, RecoveryStrategy

# First half of every advisory lock this layer takes; the coordinator's locks use another.
_LOCK_SPACE = 0x43_48_01
_GLOBAL_LIMIT_LOCK = 0


@dataclass(frozen=True, slots=True)
class Limits:
    max_running: int
    max_running_global: int
    max_workspaces: int


def limits_of(user: User) -> Limits:
    """What this user may have: the operator's choice for the user, else the site's."""
    config = settings.CONFIG
    profile = UserProfile.objects.filter(user_id=user.pk).first() or UserProfile()
    return Limits(
        max_running=config.limit_max_running_per_user if profile.max_running is None else profile.max_running,
        max_running_global=config.limit_max_running_global,
        max_workspaces=config.limit_max_workspaces_per_user if profile.max_workspaces is None else profile.max_workspaces,
    )


def database_now() -> datetime:
    """The one clock: PostgreSQL's, as of this transaction."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT now()")
        now: datetime = cursor.fetchone()[0]
    return now


def request_create(
    *,
    user: User,
    name: str,
    description: str = "",
    memo: str = "",
    image: str | None = None,
    desired_state: str = DesiredState.RUNNING,
    standby_ttl_seconds: int | None = None,
    archive_ttl_seconds: int | None = None,
    idempotency_key: str | None = None,
    address: str | None = None,
) -> tuple[Workspace, bool]:
    """A new workspace, and whether this call made it (False: the same key and body were answered before)."""
    wish = {
        "name": name,
        "description": description,
        "memo": memo,
        "standby_ttl_seconds": standby_ttl_seconds,
        "archive_ttl_seconds": archive_ttl_seconds,
    }
    fields = clean_fields(wish)
    state = _clean_state(desired_state)
    body_sha256 = hashlib.sha256(json.dumps({**wish, "image": image, "desired_state": state}, sort_keys=True).encode()).hexdigest()
    with transaction.atomic():
        _lock(user.pk)
        if idempotency_key is not None:
            earlier = _answered_before(user, key=idempotency_key, body_sha256=body_sha256)
            if earlier is not None:
                return earlier, False
        limits = limits_of(user)
        if Workspace.objects.owned_by(user).filter(deleted_at__isnull=True).count() >= limits.max_workspaces:
            raise LimitExceededError(
                _("You already have %(count)d workspaces, which is the limit. Delete one first.") % {"count": limits.max_workspaces},
                running=[],
            )
        if state == DesiredState.RUNNING:
            _check_running_limit(user, limits=limits)
        workspace = Workspace.objects.create(
            owner=user,
            image=_catalogue_image(image),
            desired_state=state,
            last_access_at=Now() if state == DesiredState.RUNNING else None,
            **fields,
        )
        workspace.refresh_from_db()
        if idempotency_key is not None:
            IdempotencyKey.objects.create(user=user, key=idempotency_key, body_sha256=body_sha256, workspace=workspace)
        _audit(user, "create", workspace, address=address, desired_state=state, image=workspace.image.name)
    return workspace, True


def request_describe(
    workspace_id: UUID,
    *,
    user: User,
    fields: Mapping[str, Any],
    if_match: datetime | None = None,
    address: str | None = None,
) -> Workspace:
    """Change names, notes and TTLs. `if_match` is the `updated_at` the caller last read; another value there is StaleError."""
    cleaned = clean_fields(fields)
    with transaction.atomic():
        workspace = _locked(workspace_id, user=user)
        _check_fresh(workspace, if_match)
        _write(workspace, **cleaned)
        _audit(user, "describe", workspace, address=address, fields=sorted(cleaned))
    return workspace


def request_change(
    workspace_id: UUID,
    *,
    user: User,
    fields: Mapping[str, Any],
    desired_state: str | None = None,
    queue: bool = False,
    if_match: datetime | None = None,
    address: str | None = None,
) -> Workspace:
    """Describe and ask for a state in one step: both happen or neither does."""
    if desired_state is not None and not fields:
        return request_state(workspace_id, user=user, desired_state=desired_state, queue=queue, if_match=if_match, address=address)
    with transaction.atomic():
        if desired_state == DesiredState.RUNNING:
            # Before the row, as everybody else takes it: the other way round two requests could wait for each other.
            _lock_owner_of(workspace_id)
        workspace = request_describe(workspace_id, user=user, fields=fields, if_match=if_match, address=address) if fields else None
        if desired_state is not None:
            # The description just written moved `updated_at`: the caller's guard was checked there.
            workspace = request_state(workspace_id, user=user, desired_state=desired_state, queue=queue, address=address)
        if workspace is None:
            workspace = _locked(workspace_id, user=user)
            _check_fresh(workspace, if_match)
    return workspace


def request_state(
    workspace_id: UUID,
    *,
    user: User,
    desired_state: str,
    queue: bool = False,
    if_match: datetime | None = None,
    address: str | None = None,
    why: str = "state",
) -> Workspace:
    """Ask for RUNNING, STANDBY or ARCHIVED. With `queue` the wish is stored although an operation runs."""
    state = _clean_state(desired_state)
    with transaction.atomic():
        if state == DesiredState.RUNNING:
            # Taken before the row, in the same order as a create does: the count cannot move under us.
            _lock_owner_of(workspace_id)
        workspace = _locked(workspace_id, user=user)
        _check_fresh(workspace, if_match)
        _check_may_change(workspace, queue=queue, asked=state)
        if workspace.desired_state == state:
            return workspace
        if state == DesiredState.RUNNING:
            _check_running_limit(workspace.owner, limits=limits_of(workspace.owner))
        asked_from = workspace.desired_state
        # Asking to run is use: without this a long idle workspace would expire the moment it runs.
        touched = {"last_access_at": Now()} if state == DesiredState.RUNNING else {"keep_awake_until": None}
        _write(workspace, desired_state=state, **touched)
        _audit(user, why, workspace, address=address, asked=state, before=asked_from, queued=workspace.operation != Operation.NONE)
    return workspace


def request_wake(workspace_id: UUID, *, user: User, address: str | None = None) -> Workspace:
    """A deliberate visit to a sleeping workspace: RUNNING, queued behind whatever runs."""
    return request_state(workspace_id, user=user, desired_state=DesiredState.RUNNING, queue=True, address=address, why="wake")


def request_keep_awake(workspace_id: UUID, *, user: User, seconds: int, address: str | None = None) -> Workspace:
    """Do not stop before so many seconds from now, used or not. 0 takes it back."""
    if not 0 <= seconds <= settings.CONFIG.ttl_max_seconds:
        raise InvalidRequestError(_("Choose between 0 and %(max)d seconds.") % {"max": settings.CONFIG.ttl_max_seconds})
    with transaction.atomic():
        workspace = _locked(workspace_id, user=user)
        until = database_now() + timedelta(seconds=seconds) if seconds else None
        _write(workspace, keep_awake_until=until)
        _audit(user, "keep_awake", workspace, address=address, seconds=seconds)
    return workspace


def request_delete(
    workspace_id: UUID, *, user: User, queue: bool = False, if_match: datetime | None = None, address: str | None = None
) -> Workspace:
    """Delete a workspace with its home and archives. Asking again is no error."""
    with transaction.atomic():
        workspace = _locked(workspace_id, user=user)
        if workspace.deleted_at is not None:
            return workspace
        _check_fresh(workspace, if_match)
        if workspace.operation != Operation.NONE and not queue:
            raise _busy(workspace)
        _write(workspace, deleted_at=Now(), desired_state=DesiredState.DELETED)
        _audit(user, "delete", workspace, address=address, phase=workspace.phase)
    return workspace


def request_recover(workspace_id: UUID, *, user: User, strategy: str = RecoveryStrategy.REOBSERVE, address: str | None = None) -> Workspace:
    """An operator's answer to ERROR. The controller consumes the wish; the running limit still holds."""
    if strategy not in list(RecoveryStrategy):
        raise InvalidRequestError(_("Unknown strategy."), fields={"strategy": [_("Choose reobserve, restore_archive or start_empty.")]})
    if not user.is_staff:
        raise NotAllowedError(_("Only operators may recover a workspace."))
    with transaction.atomic():
        _lock_owner_of(workspace_id)
        workspace = _locked(workspace_id, user=user)
        check_recovery(workspace, strategy)
        changes: dict[str, Any] = {"recovery_strategy": strategy}
        if workspace.desired_state == DesiredState.RUNNING and not _fits_running_limit(
            workspace.owner, limits=limits_of(workspace.owner), besides=workspace_id
        ):
            changes["desired_state"] = DesiredState.STANDBY
        _write(workspace, **changes)
        _audit(user, "recover", workspace, address=address, strategy=strategy, reason=workspace.error_reason)
    return workspace


def request_orphan_removal(orphan_id: int, *, user: User, address: str | None = None) -> Orphan:
    """An operator confirms that something which belongs to no workspace may go. Asking again is no error."""
    if not user.is_staff:
        raise NotAllowedError(_("Only operators may confirm the removal of an orphan."))
    with transaction.atomic():
        orphan = Orphan.objects.select_for_update(of=("self",)).filter(pk=orphan_id).first()
        if orphan is None:
            raise NotFoundError(_("There is no such orphan any more."))
        if orphan.known:
            raise InvalidRequestError(_("Its workspace is known: it goes by itself when its grace is over."))
        if orphan.confirmed_at is None:
            Orphan.objects.filter(pk=orphan.pk).update(confirmed_at=Now(), confirmed_by=user)
            orphan.refresh_from_db()
            record_operator_act(user=user, action="confirm_orphan", address=address, kind=orphan.kind, name=orphan.name, size=orphan.size)
    return orphan


def record_operator_act(*, user: User, action: str, address: str | None, **detail: Any) -> None:
    """Put into the audit trail what an operator did to something that is not a workspace."""
    AuditEvent.objects.create(actor=user, actor_name=user.get_username(), action=action, address=address, detail=detail)


def request_expiry(*, standby_seconds: int | None, archive_seconds: int) -> tuple[list[UUID], list[UUID]]:
    """Let what was idle for too long stop, and what stood by for too long be archived: one statement each.

    Only where nothing runs and nothing else was asked for, so a pending wish is never overwritten. `standby_seconds` None: use
    could not be read, so nothing is stopped.
    """
    statement = """
        UPDATE workspaces_workspace SET desired_state = %(to)s, updated_at = now(), keep_awake_until = NULL
        WHERE phase = %(phase)s AND operation = 'NONE' AND desired_state = phase AND deleted_at IS NULL
          AND COALESCE({ttl}, %(default)s) > 0
          AND {since} + make_interval(secs => COALESCE({ttl}, %(default)s)) <= now()
          AND (keep_awake_until IS NULL OR keep_awake_until <= now())
        RETURNING id
    """
    standby = statement.format(ttl="standby_ttl_seconds", since="GREATEST(last_access_at, phase_changed_at)")
    archive = statement.format(ttl="archive_ttl_seconds", since="phase_changed_at")
    with transaction.atomic(), connection.cursor() as cursor:
        stopping = []
        if standby_seconds is not None:
            cursor.execute(standby, {"to": DesiredState.STANDBY, "phase": Phase.RUNNING, "default": standby_seconds})
            stopping = [row[0] for row in cursor.fetchall()]
        cursor.execute(archive, {"to": DesiredState.ARCHIVED, "phase": Phase.STANDBY, "default": archive_seconds})
        archiving = [row[0] for row in cursor.fetchall()]
    return stopping, archiving


def request_activity(signals: Mapping[UUID, tuple[datetime, str]]) -> None:
    """Copy recorded use to the rows, in one statement. Time never goes backwards and is never later than now."""
    if not signals:
        return
    ids, times, kinds = zip(*((key, at, kind) for key, (at, kind) in signals.items()), strict=True)
    with connection.cursor() as cursor:
        cursor.execute(
            """
            UPDATE workspaces_workspace w
            SET last_access_at = LEAST(s.at, now()), last_activity = jsonb_build_object('kind', s.kind, 'at', LEAST(s.at, now()))
            FROM unnest(%s::uuid[], %s::timestamptz[], %s::text[]) AS s(id, at, kind)
            WHERE w.id = s.id AND (w.last_access_at IS NULL OR w.last_access_at < LEAST(s.at, now()))
            """,
            [list(ids), list(times), list(kinds)],
        )


def _clean_state(desired_state: str) -> DesiredState:
    if desired_state not in (DesiredState.RUNNING, DesiredState.STANDBY, DesiredState.ARCHIVED):
        sentence = _("Choose RUNNING, STANDBY or ARCHIVED. To delete a workspace, use delete.")
        raise InvalidRequestError(sentence, fields={"desired_state": [sentence]})
    return DesiredState(desired_state)


def _catalogue_image(name: str | None) -> Image:
    """The named entry, or the first one that the engine of this installation can run."""
    enabled = Image.objects.filter(enabled=True)
    runtime = Installation.objects.values_list("runtime", flat=True).first()
    if runtime:
        enabled = enabled.filter(runtimes__contains=[runtime])
    image = enabled.first() if name is None else enabled.filter(name=name).first()
    if image is None:
        sentence = _("There is no such image in the catalogue.") if name is not None else _("The catalogue has no image that runs here.")
        raise InvalidRequestError(sentence, fields={"image": [sentence]})
    return image


def _answered_before(user: User, *, key: str, body_sha256: str) -> Workspace | None:
    if not 0 < len(key) <= 255 or not key.isprintable():
        raise InvalidRequestError(_("Idempotency-Key must be 1 to 255 printable characters."))
    earlier = IdempotencyKey.objects.filter(user=user, key=key).select_related("workspace").first()
    if earlier is None:
        return None
    if earlier.body_sha256 != body_sha256:
        raise IdempotencyConflictError(_("This Idempotency-Key was used with another body."))
    return earlier.workspace


def _locked(workspace_id: UUID, *, user: User) -> Workspace:
    """The row, locked for this transaction; for its owner and for operators only."""
    found = Workspace.objects.visible().filter(pk=workspace_id)
    if not user.is_staff:
        found = found.owned_by(user)
    workspace = found.select_for_update(of=("self",)).select_related("owner").first()
    if workspace is None:
        raise NotFoundError(_("There is no such workspace."))
    return workspace


def _check_fresh(workspace: Workspace, if_match: datetime | None) -> None:
    if if_match is not None and workspace.updated_at != if_match:
        raise StaleError(_("The workspace was changed in the meantime. Load it again before you change it."))


def _check_may_change(workspace: Workspace, *, queue: bool, asked: DesiredState) -> None:
    if workspace.deleted_at is not None:
        raise OperationInProgressError(_("The workspace is being deleted."), operation=Operation.DELETING)
    if workspace.phase == Phase.ERROR:
        raise RecoverFirstError(_("The workspace is in ERROR and must be recovered first."))
    if workspace.operation != Operation.NONE and workspace.desired_state != asked and not queue:
        raise _busy(workspace)


def _busy(workspace: Workspace) -> OperationInProgressError:
    return OperationInProgressError(
        _("%(operation)s is in progress. Try again when it is done, or queue the wish.") % {"operation": workspace.operation},
        operation=workspace.operation,
    )


def check_recovery(workspace: Workspace, strategy: str) -> None:
    """Raise what a request for this strategy would be refused with, going by the row as it was read."""
    if workspace.phase != Phase.ERROR or workspace.deleted_at is not None:
        raise NotInErrorError(_("This workspace is not in ERROR: there is nothing to recover."))
    if strategy == RecoveryStrategy.REOBSERVE:
        return
    reason = workspace.error_reason
    context = (workspace.error_info or {}).get("context") or {}
    if reason == ErrorReason.RETRY_EXCEEDED:
        reason = context.get("last_reason")
    if reason not in LOSS_REASONS:
        raise RecoveryRefusedError(_("This strategy is only for a home or archive that was lost. Use reobserve."))
    if workspace.conditions.get(ConditionKey.VOLUME_READY, {}).get("status"):
        raise RecoveryRefusedError(_("The home is still there, whole: this strategy would hide it. Use reobserve."))
    if strategy == RecoveryStrategy.RESTORE_ARCHIVE and not workspace.archive_key:
        raise RecoveryRefusedError(_("There is no archive to restore."))


def _fits_running_limit(owner: User, *, limits: Limits, besides: UUID | None = None) -> bool:
    # Every grant passes here one after the other, so the two counts cannot be overtaken by a neighbour.
    _lock(_GLOBAL_LIMIT_LOCK)
    counted = Workspace.objects.counted_as_running()
    if besides is not None:
        counted = counted.exclude(pk=besides)
    return counted.filter(owner_id=owner.pk).count() < limits.max_running and counted.count() < limits.max_running_global


def _check_running_limit(owner: User, *, limits: Limits) -> None:
    if _fits_running_limit(owner, limits=limits):
        return
    running = [
        {"id": str(pk), "name": name, "phase": phase}
        for pk, name, phase in Workspace.objects.counted_as_running().filter(owner_id=owner.pk).values_list("id", "name", "phase")
    ]
    if len(running) >= limits.max_running:
        message = _("You may run %(count)d workspaces at a time. Stop one first.") % {"count": limits.max_running}
    else:
        message = _("All running places of this site are taken. Try again later.")
    raise LimitExceededError(message, running=running)


def _lock(key: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [_LOCK_SPACE, key])


def _lock_owner_of(workspace_id: UUID) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, owner_id) FROM workspaces_workspace WHERE id = %s", [_LOCK_SPACE, workspace_id])


def _write(workspace: Workspace, **changes: Any) -> None:
    """Save named asked-for columns and read back what the database made of them."""
    Workspace.objects.filter(pk=workspace.pk).update(**changes, updated_at=Now())
    workspace.refresh_from_db(fields=[*changes, "updated_at"])


def _audit(user: User, action: str, workspace: Workspace, *, address: str | None, **detail: Any) -> None:
    AuditEvent.objects.create(
        actor=user,
        actor_name=user.get_username(),
        action=action,
        workspace_id=workspace.pk,
        workspace_name=workspace.name,
        address=address,
        detail=detail,
    )
