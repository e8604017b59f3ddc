"""Credentials for a workspace's own origin: a one-time ticket that becomes a host-only cookie.

The ticket lives in Redis for half a minute and is taken out by its first use. The cookie is encrypted, names one workspace and the
login session it came from, and is worth nothing once that session has ended. Nothing here decides who may enter.
"""

import base64
import hashlib
import json
import secrets
from dataclasses import asdict, dataclass
from functools import lru_cache
from uuid import UUID

from cryptography.fernet import Fernet, InvalidToken
from django.conf import settings
from redis.asyncio import Redis

TICKET_PARAMETER = "codehub_ticket"
_TICKET_SECONDS = 30
_COOKIE_SECONDS = 14 * 24 * 3600


@dataclass(frozen=True, slots=True)
class OwnPass:
    """What a ticket or a cookie stands for."""

    workspace: str
    user: int
    session: str
    """Key of the login session. Only ever stored encrypted or in Redis."""
    dashboard: str
    """Origin of the dashboard the visitor came from, to send them back to."""

    def is_for(self, workspace_id: UUID) -> bool:
        return self.workspace == str(workspace_id)


@lru_cache(maxsize=4)
def _cipher(secret: str) -> Fernet:
    return Fernet(base64.urlsafe_b64encode(hashlib.sha256(b"codehub own origin\x00" + secret.encode()).digest()))


def seal(own: OwnPass) -> str:
    """The cookie's value."""
    return _cipher(settings.SECRET_KEY).encrypt(json.dumps(asdict(own)).encode()).decode()


def unseal(value: str) -> OwnPass | None:
    """What a cookie stands for, or None for anything we did not make or made too long ago."""
    try:
        return OwnPass(**json.loads(_cipher(settings.SECRET_KEY).decrypt(value.encode("latin-1"), ttl=_COOKIE_SECONDS)))
    except (InvalidToken, ValueError, TypeError):
        return None


def set_cookie_header(name: bytes, own: OwnPass, *, secure: bool) -> bytes:
    """Host-only, out of reach of scripts, not sent on cross-site requests other than a visit."""
    return b"%b=%b; Path=/; HttpOnly; SameSite=Lax%b" % (name, seal(own).encode(), b"; Secure" if secure else b"")


async def issue_ticket(redis: "Redis", own: OwnPass) -> str:
    """A ticket for one visit."""
    ticket = secrets.token_urlsafe(32)
    await redis.set(_key(ticket), json.dumps(asdict(own)), ex=_TICKET_SECONDS)
    return ticket


async def redeem_ticket(redis: "Redis", ticket: str, *, workspace_id: UUID) -> OwnPass | None:
    """What the ticket stood for; it is gone afterwards, whoever asked."""
    if not 20 <= len(ticket) <= 100:
        return None
    stored = await redis.getdel(_key(ticket))
    if stored is None:
        return None
    own = OwnPass(**json.loads(stored))
    return own if own.is_for(workspace_id) else None


def _key(ticket: str) -> str:
    return "codehub:ticket:" + hashlib.sha256(ticket.encode()).hexdigest()
