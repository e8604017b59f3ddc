"""One connection on its way in: what the server gave, whom it is addressed to, what it says about itself.

Made once for each request or handshake and handed from check to check, so that none of them needs a long list of
arguments. Owns no rule: it answers what it is told to.
"""

from dataclasses import dataclass
from typing import Any

from workspaces.proxy.access import Credential, Kind
from workspaces.proxy.answers import Receive, Scope, Send, answer, redirect
from workspaces.proxy.routes import Form, Target
from workspaces.proxy.splice import EXTENSION, Wire
from workspaces.proxy.visit import Visit


@dataclass(frozen=True, slots=True)
class Call:
    scope: Scope
    receive: Receive
    send: Send
    target: Target
    visit: Visit
    client: str
    """The visitor's address, as far as trusted proxies vouch for it."""

    @property
    def query(self) -> bytes:
        query: bytes = self.scope["query_string"]
        return query

    @property
    def wire(self) -> Wire | None:
        """The client's connection itself, where the server lends it."""
        wire: Wire | None = self.scope.get("extensions", {}).get(EXTENSION)
        return wire

    @property
    def is_own_origin(self) -> bool:
        return self.target.form is Form.OWN_ORIGIN

    @property
    def credential(self) -> Credential | None:
        """A token, or the one cookie that counts on this origin."""
        if token := self.visit.bearer:
            return Kind.BEARER, token
        if self.is_own_origin:
            value, kind = self.visit.own_cookie, Kind.OWN
        else:
            value, kind = self.visit.session, Kind.SESSION
        return (kind, value) if value else None

    async def answer(self, status: int, code: str, detail: str, *, retry_after: int = 0, facts: dict[str, Any] | None = None) -> None:
        await answer(self.scope, self.send, status, code, detail, retry_after=retry_after, facts=facts)

    async def redirect(self, location: str, *, extra: list[tuple[bytes, bytes]] | None = None) -> None:
        await redirect(self.send, location, extra=extra)
