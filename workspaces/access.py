"""Who is calling, with which credential, and whether that credential still holds.

A credential is a session or an API token. Whatever ends one (logout, revoked token, changed password, disabled user)
publishes on Redis `codehub:access:{user_id}`. The message says nothing but "look again": every open stream, proxy
connection and consumer of that user then asks `is_still_valid` about its own credential and closes when it is not; they
also ask every `RECHECK_SECONDS`, so that a lost message costs seconds, not access. Must not know what is streamed.
"""

import hmac
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from importlib import import_module
from ipaddress import ip_address
from typing import Literal

import structlog
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY, get_user_model
from django.contrib.auth.models import User
from django.contrib.sessions.backends.base import SessionBase
from django.contrib.sessions.models import Session
from django.db import DEFAULT_DB_ALIAS, connection
from django.db.models import Q
from django.http import HttpRequest
from django.utils import timezone
from django_redis import get_redis_connection
from knox.crypto import hash_token
from knox.models import AuthToken
from redis.exceptions import RedisError

from workspaces.models import ApiToken

log = structlog.get_logger(__name__)

ACCESS_CHANNEL_PREFIX = "codehub:access"
RECHECK_SECONDS = 15
# `last_used_at` tells an owner which tokens are alive; to the minute is enough and spares a write for each call.
_LAST_USED_STEP = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Credential:
    """What a caller presented: the key of a session, or the digest of a token."""

    kind: Literal["session", "token"]
    key: str
    user_id: int


def access_channel(user_id: int) -> str:
    return f"{ACCESS_CHANNEL_PREFIX}:{user_id}"


def client_address(request: HttpRequest) -> str | None:
    """The caller's address. `X-Forwarded-For` is believed only as far as trusted proxies wrote it."""
    peer: str | None = request.META.get("REMOTE_ADDR") or None
    hops = settings.CONFIG.codehub_trusted_proxies
    if hops:
        forwarded = [part.strip() for part in request.META.get("HTTP_X_FORWARDED_FOR", "").split(",") if part.strip()]
        # The proxy nearest to us appended the last entry; with n proxies the n-th from the right is the first stranger.
        if len(forwarded) >= hops:
            peer = forwarded[-hops]
    try:
        return str(ip_address(peer)) if peer else None
    except ValueError:
        return None


def bearer_token(request: HttpRequest) -> str | None:
    """The token of an `Authorization: Bearer` header, or None when there is no such header. May be an empty string."""
    scheme, _, token = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def user_of_token(token: str) -> tuple[User, Credential] | None:
    """The active user behind an unexpired token; one query, and a write at most once a minute."""
    if not token or len(token) > 200 or not token.isascii():
        return None
    digest = hash_token(token)
    with connection.cursor() as cursor:
        cursor.execute(_token_statement(), [digest])
        row = cursor.fetchone()
    if row is None:
        return None
    label_id, last_used_at, expiry, now, *values = row
    user = User.from_db(DEFAULT_DB_ALIAS, _user_fields(), values)
    if not user.is_active or (expiry is not None and expiry <= now):
        return None
    if label_id is not None and (last_used_at is None or now - last_used_at > _LAST_USED_STEP):
        ApiToken.objects.filter(pk=label_id).update(last_used_at=now)
    return user, Credential(kind="token", key=digest, user_id=user.pk)


@lru_cache(maxsize=1)
def _user_fields() -> tuple[str, ...]:
    return tuple(field.attname for field in User._meta.concrete_fields)


@lru_cache(maxsize=1)
def _token_statement() -> str:
    """Written out: every API call asks this, and building it from a queryset costs several times what running it does."""
    columns = ", ".join(f'u."{field.column}"' for field in User._meta.concrete_fields)
    return f"""
        SELECT l.id, l.last_used_at, t.expiry, now(), {columns}
        FROM {AuthToken._meta.db_table} t
        JOIN {User._meta.db_table} u ON u.id = t.user_id
        LEFT JOIN {ApiToken._meta.db_table} l ON l.auth_token_id = t.digest
        WHERE t.digest = %s
    """  # noqa: S608 - names of our own tables and columns


def user_of_session(session_key: str | None) -> tuple[User, Credential] | None:
    """The active user signed in with this session, if its password is still the one it was signed in with."""
    if not session_key:
        return None
    session = _session_store(session_key)
    user_id = session.get(SESSION_KEY)
    if user_id is None or session.get(BACKEND_SESSION_KEY) not in settings.AUTHENTICATION_BACKENDS:
        return None
    user = get_user_model().objects.filter(pk=user_id, is_active=True).first()
    if user is None or not _session_hash_holds(user, session.get(HASH_SESSION_KEY, "")):
        return None
    return user, Credential(kind="session", key=session_key, user_id=user.pk)


def user_of_request(request: HttpRequest) -> tuple[User, Credential] | None:
    """For doors beside Django's middleware (streams, proxy): a token when one was presented, else the session cookie."""
    token = bearer_token(request)
    if token is not None:
        return user_of_token(token)
    return user_of_session(request.COOKIES.get(settings.SESSION_COOKIE_NAME))


def is_still_valid(credential: Credential) -> bool:
    """Whether whoever opened a stream with this credential may keep it open."""
    if credential.kind == "session":
        found = user_of_session(credential.key)
        return found is not None and found[1].user_id == credential.user_id
    token = AuthToken.objects.select_related("user").filter(digest=credential.key).first()
    return token is not None and _token_holds(token, timezone.now())


def publish_access_changed(user_id: int) -> None:
    """Tell every web process to look again at this user's open streams."""
    try:
        get_redis_connection("default").publish(access_channel(user_id), "look again")
    except RedisError as error:
        log.warning("access change not published", user=user_id, error=str(error))


def request_token_end(digest: str, *, user_id: int) -> bool:
    """Revoke one token of this user; its streams close. False when there is no such token."""
    deleted, _ = AuthToken.objects.filter(digest=digest, user_id=user_id).delete()
    if deleted:
        publish_access_changed(user_id)
    return bool(deleted)


def request_logout_everywhere(user: User, *, keep_session: str | None = None, keep_token: str | None = None) -> int:
    """End every session and token of the user but the named ones (a session key, a token's digest); returns how many ended.

    A password page calls this after saving the new password, with its own session's key as `keep_session`.
    """
    tokens = AuthToken.objects.filter(user_id=user.pk)
    if keep_token is not None:
        tokens = tokens.filter(~Q(digest=keep_token))
    ended: int = tokens.count()
    tokens.delete()
    # Sessions are not indexed by user; this walk is rare and bounded by who is signed in.
    for session in Session.objects.filter(expire_date__gt=timezone.now()).iterator(chunk_size=500):
        if session.session_key != keep_session and session.get_decoded().get(SESSION_KEY) == str(user.pk):
            session.delete()
            ended += 1
    publish_access_changed(user.pk)
    return ended


def _token_holds(token: AuthToken, now: datetime) -> bool:
    return bool(token.user.is_active and (token.expiry is None or token.expiry > now))


def _session_store(session_key: str) -> SessionBase:
    store: SessionBase = import_module(settings.SESSION_ENGINE).SessionStore(session_key)
    return store


def _session_hash_holds(user: User, presented: str) -> bool:
    hashes = [user.get_session_auth_hash(), *user.get_session_auth_fallback_hash()]
    return any(hmac.compare_digest(presented, known) for known in hashes)
