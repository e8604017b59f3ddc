"""API tokens: named, expiring, shown once, kept hashed. The only place that makes or names one.

A login makes a token too, called `login`; the oldest of those give way, so a script that signs in each time never
fills its owner's list. Every token made or revoked is in the audit trail.
"""

import unicodedata
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.db.models import QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _
from knox.models import AuthToken

from workspaces.access import request_token_end
from workspaces.errors import InvalidRequestError, LimitExceededError, NotFoundError
from workspaces.models import ApiToken, AuditEvent

MAX_TOKENS_PER_USER: Final = 50
MAX_LOGIN_TOKENS: Final = 20
MAX_DAYS: Final = 3650
LOGIN_NAME: Final = "login"
_LOCK_SPACE: Final = 0x43_48_02


@dataclass(frozen=True, slots=True)
class NewToken:
    """The one moment at which a token can be read."""

    label: ApiToken
    token: str
    expiry: datetime


def tokens_of(user: User) -> QuerySet[ApiToken]:
    """The tokens that still open something, newest first."""
    held = ApiToken.objects.filter(auth_token__user_id=user.pk, auth_token__expiry__gt=timezone.now())
    return held.select_related("auth_token").order_by("-auth_token__created", "id")


def request_token(user: User, *, name: str, days: int | None = None, address: str | None = None) -> NewToken:
    """A token its owner named."""
    cleaned = name.strip()
    if not cleaned or len(cleaned) > 100 or any(unicodedata.category(char) in {"Cc", "Cs"} for char in cleaned):
        sentence = _("Must be 1 to 100 characters without control characters.")
        raise InvalidRequestError(f"name: {sentence}", fields={"name": [sentence]})
    lifetime = settings.CONFIG.token_ttl_days if days is None else days
    if not 1 <= lifetime <= MAX_DAYS:
        sentence = _("Must be between 1 and %(max)d days.") % {"max": MAX_DAYS}
        raise InvalidRequestError(f"expires_in_days: {sentence}", fields={"expires_in_days": [sentence]})
    with transaction.atomic():
        _lock(user)
        if tokens_of(user).exclude(name=LOGIN_NAME).count() >= MAX_TOKENS_PER_USER:
            raise LimitExceededError(_("You already have %(count)d tokens. Revoke one first.") % {"count": MAX_TOKENS_PER_USER}, running=[])
        made = _make(user, name=cleaned, lifetime=timedelta(days=lifetime))
        _audit(user, "token_create", address=address, name=cleaned)
    return made


def request_login_token(user: User, *, address: str | None = None) -> NewToken:
    """The token of one login."""
    with transaction.atomic():
        _lock(user)
        AuthToken.objects.filter(user_id=user.pk, expiry__lte=timezone.now()).delete()
        older = tokens_of(user).filter(name=LOGIN_NAME).values_list("auth_token_id", flat=True)[MAX_LOGIN_TOKENS - 1 :]
        AuthToken.objects.filter(pk__in=list(older)).delete()
        made = _make(user, name=LOGIN_NAME, lifetime=timedelta(days=settings.CONFIG.token_ttl_days))
        _audit(user, "login", address=address)
    return made


def request_revoke(token_id: UUID, *, user: User, address: str | None = None) -> None:
    """Revoke a token of one's own, by the id of its label."""
    label = ApiToken.objects.filter(pk=token_id, auth_token__user_id=user.pk).first()
    if label is None or not request_token_end(label.auth_token_id, user_id=user.pk):
        raise NotFoundError(_("There is no such token."))
    _audit(user, "token_revoke", address=address, name=label.name)


def _make(user: User, *, name: str, lifetime: timedelta) -> NewToken:
    stored, token = AuthToken.objects.create(user=user, expiry=lifetime)
    return NewToken(label=ApiToken.objects.create(auth_token=stored, name=name), token=token, expiry=stored.expiry)


def _lock(user: User) -> None:
    # One at a time for each user: the cap holds under concurrency.
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [_LOCK_SPACE, user.pk])


def _audit(user: User, action: str, *, address: str | None, **detail: str) -> None:
    AuditEvent.objects.create(actor=user, actor_name=user.get_username(), action=action, address=address, detail=detail)
