"""The proxy as an ASGI application: routes a request to its workspace, or to the page that says why it cannot go there.

Owns the order of the checks: route, credential, grant, origin, state, then forward. What is not forwarded on the dashboard's
origin is answered by Django's pages; on a workspace's own origin by short answers here. Must not touch asked-for columns.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qsl

import structlog
from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import DatabaseError
from django.utils.translation import gettext_noop as _
from redis.asyncio import BlockingConnectionPool, Redis
from redis.exceptions import RedisError

from workspaces.errors import RequestError
from workspaces.phases import Phase
from workspaces.proxy import activity, meters, reserved
from workspaces.proxy.access import Denial, Doorkeeper, Grant, Kind
from workspaces.proxy.addresses import clean_query, default_dashboard, host_of, is_served, local_path, own_domain, wake, way_of
from workspaces.proxy.answers import Receive, Scope, Send, respond
from workspaces.proxy.call import Call
from workspaces.proxy.headers import OWN_COOKIE, request_headers, response_headers
from workspaces.proxy.http import AnswerBrokeError, Exchange
from workspaces.proxy.inject import Injection
from workspaces.proxy.memory import Crowd
from workspaces.proxy.routes import (
    RESERVED,
    WAIT_PARAMETER,
    NoSuchPortError,
    Target,
    own_origin_netloc,
    route_host,
    route_path,
    workspace_domain_of,
)
from workspaces.proxy.splice import hang_up
from workspaces.proxy.tickets import TICKET_PARAMETER, OwnPass, issue_ticket, redeem_ticket, set_cookie_header
from workspaces.proxy.upstream import ClientGoneError, Pool, UpstreamError
from workspaces.proxy.visit import Visit, body_length, forwarded_hop
from workspaces.proxy.websocket import RefusedError, Relay, open_upstream

log = structlog.get_logger(__name__)

NO_PORTS = _("Ports of this workspace are not forwarded: it runs as a process of the machine and has no address of its own.")

Application = Callable[[Any, Any, Any], Awaitable[None]]


class Proxy:
    """One per process. `pages` is the application (Django) that answers on the dashboard's origin what is not forwarded."""

    def __init__(self, pages: Application) -> None:
        self.pages = pages
        self.pool = Pool()
        self.doorkeeper = Doorkeeper()
        self.recorder = activity.Recorder()
        self.crowd = Crowd()
        self._redis: Redis | None = None
        self._tasks: list[asyncio.Task[None]] = []

    # --- life
    @property
    def redis(self) -> Redis:
        if self._redis is None:
            # Bounded: a thousand requests to a dead workspace ask for one more look each, and must not open a thousand connections.
            pool = BlockingConnectionPool.from_url(
                settings.REDIS_URL, max_connections=16, timeout=5, socket_connect_timeout=3, socket_timeout=5
            )
            self._redis = Redis.from_pool(pool)
        return self._redis

    def start(self) -> None:
        listener = Redis.from_url(settings.REDIS_URL, socket_connect_timeout=3, socket_keepalive=True)
        self._tasks = [
            asyncio.create_task(self.doorkeeper.recheck_forever()),
            asyncio.create_task(self.crowd.give_back_forever()),
            asyncio.create_task(self.doorkeeper.listen_forever(listener)),
            asyncio.create_task(self.recorder.flush_forever(self.redis)),
        ]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.recorder.flush(self.redis)
        self.pool.close()
        self.doorkeeper.close()
        with contextlib.suppress(RedisError, OSError):
            await self.redis.aclose()

    # --- routing
    def target_of(self, scope: Scope) -> Target | None:
        """The workspace a connection is addressed to, or None when it is for the dashboard."""
        raw_path: bytes = scope["raw_path"]
        config = settings.CONFIG
        if not config.path_form_only:
            host = host_of(next((value for name, value in scope["headers"] if name == b"host"), b""))
            if host is not None:
                domain = workspace_domain_of(host, (config.workspace_domain or "localhost",))
                if domain and (target := route_host(host, raw_path, domain=domain)) is not None:
                    return target
        return route_path(raw_path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send, target: Target) -> None:
        headers = scope["headers"]
        peer = scope["client"][0] if scope.get("client") else ""
        plain = "https" if scope.get("scheme") in ("https", "wss") else "http"
        client, scheme = forwarded_hop(headers, peer=peer, scheme=plain, trusted=settings.CONFIG.codehub_trusted_proxies)
        fields = dict(headers)
        visit = Visit(fields, scope.get("method", "GET"), scheme, fields.get(b"host", b""))
        call = Call(scope, receive, send, target, visit, client)
        try:
            with self.crowd:
                await (self._websocket(call) if scope["type"] == "websocket" else self._http(call))
        except DatabaseError as error:
            log.warning("access could not be checked", workspace=str(target.workspace_id), error=type(error).__name__)
            await call.answer(503, "unavailable", _("CodeHub's database does not answer. Try again in a moment."), retry_after=5)

    async def _admit(self, call: Call) -> Grant | Denial:
        credential = call.credential
        return await self.doorkeeper.ask(credential, call.target.workspace_id) if credential else Denial.ANONYMOUS

    # --- HTTP
    async def _http(self, call: Call) -> None:
        own, path = call.is_own_origin, call.target.path
        if own and TICKET_PARAMETER.encode() in call.query:
            await self._enter(call)
            return
        grant = await self._admit(call)
        if isinstance(grant, Denial):
            await self._turn_away(call, grant)
            return
        if grant.credential[0] is not Kind.BEARER and call.visit.is_foreign:
            await call.answer(403, "permission_denied", _("Requests from another site are not passed on."))
            return
        asks_status = not own and path == RESERVED + b"status"
        if path.startswith(RESERVED) and not asks_status:
            await reserved.respond(self.recorder, call, grant)
        elif asks_status or not grant.takes_traffic:
            await self._not_now(call, grant)
        elif own or not await self._moved(call, grant):
            await self._forward(call, grant)

    async def _turn_away(self, call: Call, denial: Denial) -> None:
        if not call.is_own_origin:
            await self._pages(call)
        elif denial is Denial.NOT_FOUND:
            await call.answer(404, "not_found", _("There is no such workspace."))
        elif call.visit.is_navigation:
            await call.redirect(self._dashboard_url(call, dashboard=""))
        else:
            await call.answer(401, "not_authenticated", _("Sign in first."))

    async def _not_now(self, call: Call, grant: Grant) -> None:
        """It takes no traffic. The dashboard's pages know what to say; a visit on the own origin is sent there."""
        if not call.is_own_origin:
            await self._pages(call)
            return
        if call.visit.is_deliberate and grant.phase == Phase.STANDBY:
            # Here, not after the redirect: the browser calls that one cross-site, which wakes nothing.
            with contextlib.suppress(RequestError):
                await sync_to_async(wake, thread_sensitive=False)(grant, call.client)
        if call.visit.is_navigation:
            await call.redirect(self._dashboard_url(call, dashboard=grant.dashboard, waiting=True))
            return
        await call.answer(503, "not_running", _("The workspace is not running."), retry_after=3)

    async def _pages(self, call: Call) -> None:
        """Django answers. It needs no body for that, and must not read one that was meant for the workspace."""
        dropped = (b"content-length", b"transfer-encoding", b"content-type")
        headers = [(name, value) for name, value in call.scope["headers"] if name not in dropped]

        async def no_body() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        await self.pages({**call.scope, "headers": headers}, no_body, call.send)

    async def _moved(self, call: Call, grant: Grant) -> bool:
        """In path form: whether the visitor was sent on, to the workspace's own origin or to the clean address."""
        target, visit = call.target, call.visit
        host = host_of(visit.host)
        if host is None or not is_served(host.name):
            await call.answer(400, "invalid", _("This host name is not served here."))
            return True
        if grant.credential[0] is Kind.BEARER:
            return False
        domain = own_domain(host)
        if not domain:
            if target.path == b"" or WAIT_PARAMETER.encode() in call.query:
                await call.redirect(target.prefix.decode() + (target.path or b"/").decode("latin-1") + clean_query(call.query))
                return True
            return False
        if visit.method not in ("GET", "HEAD") or (b"sec-fetch-mode" in visit.fields and not visit.is_navigation):
            await call.answer(403, "own_origin", _("This workspace is served on an origin of its own."))
            return True
        dashboard = f"{visit.scheme}://{host.netloc}"
        own = OwnPass(str(target.workspace_id), grant.user_id, grant.session, dashboard)
        try:
            ticket = await issue_ticket(self.redis, own)
        except (RedisError, OSError):
            await call.answer(503, "unavailable", _("CodeHub's memory does not answer. Try again in a moment."), retry_after=5)
            return True
        netloc = own_origin_netloc(target, domain=domain, port=host.port)
        path = (target.path or b"/").decode("latin-1")
        await call.redirect(f"{visit.scheme}://{netloc}{path}{clean_query(call.query, ticket=ticket)}")
        return True

    async def _enter(self, call: Call) -> None:
        """A ticket on the own origin becomes a cookie, and leaves the address bar."""
        visit = call.visit
        given = dict(parse_qsl(call.query.decode("latin-1"), keep_blank_values=True)).get(TICKET_PARAMETER, "")
        clean = local_path(call.target.path.decode("latin-1") + clean_query(call.query))
        try:
            own = await redeem_ticket(self.redis, given, workspace_id=call.target.workspace_id)
        except (RedisError, OSError):
            await call.answer(503, "unavailable", _("CodeHub's memory does not answer. Try again in a moment."), retry_after=5)
            return
        if own is not None:
            cookie = set_cookie_header(OWN_COOKIE, own, secure=visit.scheme == "https")
            await call.redirect(clean, extra=[(b"set-cookie", cookie)])
        elif visit.own_cookie or visit.bearer or not visit.is_navigation:
            # Used or too old. Whoever has a cookie goes on with it; else the dashboard gives a new ticket, for a person.
            await call.redirect(clean)
        else:
            await call.answer(403, "ticket_used", _("This link was used already or is too old. Open the workspace from CodeHub."))

    def _dashboard_url(self, call: Call, *, dashboard: str, waiting: bool = False) -> str:
        target = call.target
        base = dashboard or default_dashboard(host_of(call.visit.host), target, call.visit.scheme)
        prefix = f"/w/{target.workspace_id}" + (f"/ports/{target.port}" if target.port else "")
        return f"{base}{prefix}{target.path.decode('latin-1')}{clean_query(call.query, wait=waiting)}"

    async def _forward(self, call: Call, grant: Grant) -> None:
        target, visit = call.target, call.visit
        try:
            way = way_of(call, grant)
        except NoSuchPortError:
            await call.answer(502, "port_unavailable", NO_PORTS)
            return
        is_tab = visit.is_browser and grant.credential[0] is not Kind.BEARER
        navigation = visit.is_navigation
        inject = is_tab and navigation and target.port is None and visit.method == "GET"
        kind = activity.counts(is_tab=is_tab, is_navigation=navigation)
        if kind is not None:
            self.recorder.record(grant.workspace_id, kind)
        let_go: list[Callable[[], None]] = []
        exchange = Exchange(
            self.pool,
            call.receive,
            call.send,
            wire=call.wire,
            on_long=lambda it: let_go.append(self.doorkeeper.hold(grant, it.cut)),
        )
        try:
            await exchange.run(
                way.endpoint,
                method=call.scope["method"].encode(),
                path=way.path,
                headers=request_headers(call.scope["headers"], way.hop, identity=inject),
                body_length=body_length(visit.fields),
                hop=way.hop,
                injection=Injection(target.prefix + RESERVED + b"activity.js") if inject else None,
            )
        except (ClientGoneError, AnswerBrokeError) as error:
            broke = isinstance(error, AnswerBrokeError)
            if broke:
                log.info("workspace broke off an answer", workspace=str(grant.workspace_id), error=str(error))
            # Returning without the rest makes the server cut the connection: the client must not take it for complete.
            if call.wire is not None:
                await hang_up(call.wire, after_the_rest=broke)
        except UpstreamError as error:
            await self._dead(call, grant, error)
        finally:
            meters.count_exchange(status=exchange.status, sent=exchange.sent, received=exchange.received)
            for release in let_go:
                release()

    async def _dead(self, call: Call, grant: Grant, error: UpstreamError) -> None:
        """Nothing answered. Ask for an observation, and say it; if the workspace is known to have stopped, say that."""
        await self._report_dead(call, grant, error)
        if call.target.port is not None:
            port = {"port": call.target.port}
            await call.answer(502, "port_unavailable", _("Nothing answers on port %(port)d of this workspace."), facts=port)
            return
        now = await self.doorkeeper.ask(grant.credential, grant.workspace_id, fresh=True)
        if isinstance(now, Denial):
            await self._turn_away(call, now)
        elif not now.takes_traffic:
            await self._not_now(call, now)
        else:
            await call.answer(502, "upstream_unavailable", _("The workspace does not answer. CodeHub is looking into it."), retry_after=3)

    async def _report_dead(self, call: Call, grant: Grant, error: UpstreamError) -> None:
        """Count it and, unless it was only a port that nobody serves, have the workspace looked at."""
        meters.FAILURES.inc()
        log.info("workspace does not answer", workspace=str(grant.workspace_id), error=str(error), port=call.target.port)
        if call.target.port is not None:
            return
        self.doorkeeper.forget_workspace(grant.workspace_id)
        try:
            await self.redis.publish(f"{settings.CONFIG.redis_channel_wake_prefix}:ob", str(grant.workspace_id))
        except (RedisError, OSError) as lost:
            log.warning("observation not asked for", workspace=str(grant.workspace_id), error=type(lost).__name__)

    # --- WebSocket
    async def _websocket(self, call: Call) -> None:
        await call.receive()
        if not call.visit.websocket_origin_fits:
            await call.answer(403, "permission_denied", _("This WebSocket comes from another origin."))
            return
        grant = await self._admit(call)
        if grant is Denial.NOT_FOUND:
            await call.answer(404, "not_found", _("There is no such workspace."))
            return
        if isinstance(grant, Denial):
            await call.answer(401, "not_authenticated", _("Sign in first."))
            return
        host = host_of(call.visit.host)
        if host is None or not (call.is_own_origin or is_served(host.name)):
            await call.answer(400, "invalid", _("This host name is not served here."))
            return
        if grant.credential[0] is Kind.SESSION and own_domain(host):
            await call.answer(403, "own_origin", _("This workspace is served on an origin of its own."))
            return
        if not grant.takes_traffic:
            await call.answer(503, "not_running", _("The workspace is not running."), retry_after=3)
            return
        await self._relay(call, grant)

    async def _relay(self, call: Call, grant: Grant) -> None:
        scope = call.scope
        try:
            way = way_of(call, grant)
            upstream = await open_upstream(
                way.endpoint,
                path=way.path,
                headers=request_headers(scope["headers"], way.hop, websocket=True),
                subprotocols=scope.get("subprotocols") or [],
                hop=way.hop,
            )
        except NoSuchPortError:
            await call.answer(502, "port_unavailable", NO_PORTS)
            return
        except RefusedError as refusal:
            await respond(scope, call.send, refusal.status, refusal.headers, refusal.body)
            return
        except UpstreamError as error:
            await self._report_dead(call, grant, error)
            await call.answer(502, "upstream_unavailable", _("The workspace does not answer."), retry_after=3)
            return
        is_tab = call.visit.is_browser and grant.credential[0] is not Kind.BEARER
        listener = activity.listener(self.recorder.record, grant.workspace_id, is_tab=is_tab, path=call.target.path, query=call.query)
        relay = Relay(upstream, call.receive, call.send, on_message=listener)
        let_go = self.doorkeeper.hold(grant, relay.cut)
        meters.SOCKETS.inc()
        try:
            given = upstream.response.headers.raw_items() if upstream.response else ()
            raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in given]
            passed = [pair for pair in response_headers(raw, way.hop) if not pair[0].startswith(b"sec-websocket-") and pair[0] != b"date"]
            await call.send({"type": "websocket.accept", "subprotocol": upstream.subprotocol, "headers": passed})
            await relay.run()
        finally:
            meters.SOCKETS.dec()
            let_go()
            upstream.transport.abort()
