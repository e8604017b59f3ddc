"""Addresses of workspaces and of the dashboard, as visitors see them: which form applies, where to send whom, clean queries.

Reads the configuration and nothing else; the one exception is `wake`, the proxy's only wish, which it hands to the services.
"""

from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlencode, urlsplit

from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import close_old_connections
from django.http.request import validate_host

from workspaces import services
from workspaces.proxy.access import Grant
from workspaces.proxy.call import Call
from workspaces.proxy.headers import Hop, upstream_path
from workspaces.proxy.routes import WAIT_PARAMETER, Host, Target, parse_host, port_endpoint
from workspaces.proxy.tickets import TICKET_PARAMETER


@lru_cache(maxsize=1024)
def host_of(value: bytes) -> Host | None:
    return parse_host(value)


@lru_cache(maxsize=1024)
def is_served(name: str) -> bool:
    """Whether the dashboard answers to this host name."""
    return validate_host(name, settings.ALLOWED_HOSTS)


def own_domain(host: Host) -> str:
    """The domain of workspaces' own origins for a dashboard opened on this host, or an empty string for the path form."""
    config = settings.CONFIG
    if config.path_form_only:
        return ""
    return config.workspace_domain or ("localhost" if host.is_local else "")


def default_dashboard(host: Host | None, target: Target, scheme: str) -> str:
    """Where the dashboard is, for a visitor of whom nothing else is known."""
    public = urlsplit(settings.CONFIG.public_url)
    if settings.CONFIG.workspace_domain or host is None:
        return f"{public.scheme}://{public.netloc}"
    name = public.hostname if public.hostname in ("localhost", "127.0.0.1") else "localhost"
    return f"{scheme}://{name}" + (f":{host.port}" if host.port else "")


def wake(grant: Grant, address: str) -> None:
    """As the visitor: RUNNING, through the service layer."""
    close_old_connections()
    try:
        services.request_wake(grant.workspace_id, user=get_user_model().objects.get(pk=grant.user_id), address=address or None)
    finally:
        # This thread is not a request's: without this it would keep a connection of the pool.
        close_old_connections()


@dataclass(frozen=True, slots=True)
class Way:
    """Where a request goes inside: the endpoint, the path to ask it for, and what it is told about the way there."""

    endpoint: str
    path: bytes
    hop: Hop


def way_of(call: Call, grant: Grant) -> Way:
    """Raises NoSuchPortError for a port of a workspace that has no address of its own."""
    target, visit = call.target, call.visit
    endpoint = grant.endpoint if target.port is None else port_endpoint(grant.endpoint, target.port)
    keeps = b"" if grant.strip_prefix or target.port is not None else b"/w/" + str(grant.workspace_id).encode()
    hop = Hop(
        client=call.client,
        scheme=visit.scheme,
        host=visit.host,
        prefix=target.prefix,
        base=keeps if call.is_own_origin else b"",
        upstream_netloc=urlsplit(endpoint).netloc,
    )
    path = upstream_path(target.path, hop=hop, keeps=keeps)
    return Way(endpoint, path + b"?" + call.query if call.query else path, hop)


def clean_query(query: bytes, *, ticket: str = "", wait: bool = False) -> str:
    """The query without our own parameters, and perhaps with new ones; everything else stays byte for byte."""
    names = (TICKET_PARAMETER, WAIT_PARAMETER)
    parts = [part for part in query.decode("latin-1").split("&") if part and part.partition("=")[0] not in names]
    if ticket:
        parts.append(urlencode({TICKET_PARAMETER: ticket}))
    if wait:
        parts.append(f"{WAIT_PARAMETER}=1")
    return "?" + "&".join(parts) if parts else ""


def local_path(path: str) -> str:
    """A path on this very host: `//elsewhere` would lead away."""
    return "/" + path.lstrip("/\\")
