"""Where a request wants to go, from its Host and its raw path alone. Pure: no Django, no I/O.

The id that is authorised is the id that is routed: both are read here, once, from the undecoded path, and what follows
the id is passed on byte for byte. Must not normalise, decode or guess.
"""

import ipaddress
import re
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlsplit
from uuid import UUID

RESERVED = b"/_codehub/"
"""Paths below this on a workspace's origin (or below its prefix) are ours and never forwarded."""

WAIT_PARAMETER = "codehub_wait"
"""Marks a reload that a page of ours made by itself: it may show, but never wake."""

_ID = rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_PATH = re.compile(rb"/w/(" + _ID + rb")(?:/ports/([1-9][0-9]{0,4})(?=/|\Z))?(/.*)?", re.DOTALL)
_LABEL = re.compile(r"(?:([1-9][0-9]{0,4})-)?(" + _ID.decode() + r")\Z")
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?\Z")
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


class Form(StrEnum):
    PATH = "path"
    OWN_ORIGIN = "own"


@dataclass(frozen=True, slots=True)
class Target:
    """A workspace (and perhaps a port in it) that a request is addressed to."""

    workspace_id: UUID
    form: Form
    path: bytes
    """What follows the prefix, undecoded; starts with a slash, or is empty for `/w/{id}` alone."""
    port: int | None = None
    domain: str = ""
    """On its own origin: the domain below which the workspace's name hangs."""

    @property
    def prefix(self) -> bytes:
        """The public path under which the workspace appears; empty on its own origin."""
        if self.form is Form.OWN_ORIGIN:
            return b""
        base = b"/w/" + str(self.workspace_id).encode()
        return base if self.port is None else base + b"/ports/%d" % self.port


@dataclass(frozen=True, slots=True)
class Host:
    """A Host header, taken apart and in lower case."""

    name: str
    port: int | None

    @property
    def netloc(self) -> str:
        return self.name if self.port is None else f"{self.name}:{self.port}"

    @property
    def is_local(self) -> bool:
        return self.name in _LOCAL_NAMES


def parse_host(value: bytes) -> Host | None:
    """None for anything that is not a plain host name or address with an optional port."""
    found = _HOST.match(value.decode("latin-1").lower())
    if found is None:
        return None
    port = int(found[2]) if found[2] else None
    if port is not None and not 1 <= port <= 65535:
        return None
    return Host(found[1].rstrip(".") if not found[1].startswith("[") else found[1], port)


def route_path(raw_path: bytes) -> Target | None:
    """A path-form target, or None when the path is the dashboard's."""
    if not raw_path.startswith(b"/w/"):
        return None
    found = _PATH.fullmatch(raw_path)
    if found is None:
        return None
    port = int(found[2]) if found[2] else None
    if port is not None and port > 65535:
        return None
    return Target(UUID(found[1].decode()), Form.PATH, found[3] or b"", port)


def workspace_domain_of(host: Host, domains: tuple[str, ...]) -> str:
    """The workspace domain this host hangs below, or an empty string."""
    for domain in domains:
        if host.name.endswith("." + domain):
            return domain
    return ""


def route_host(host: Host, raw_path: bytes, *, domain: str) -> Target | None:
    """An own-origin target, or None when the name below the domain is not a workspace's."""
    found = _LABEL.match(host.name[: -len(domain) - 1])
    if found is None:
        return None
    port = int(found[1]) if found[1] else None
    if port is not None and port > 65535:
        return None
    return Target(UUID(found[2]), Form.OWN_ORIGIN, raw_path, port, domain)


def own_origin_netloc(target: Target, *, domain: str, port: int | None) -> str:
    """`{id}.<domain>[:port]`, or `{port}-{id}...` for a forwarded port."""
    label = str(target.workspace_id) if target.port is None else f"{target.port}-{target.workspace_id}"
    # A domain configured with a port of its own keeps it; else the port the dashboard was opened on.
    return f"{label}.{domain}" if port is None or ":" in domain else f"{label}.{domain}:{port}"


class NoSuchPortError(Exception):
    """The endpoint cannot be extended to other ports of the workspace."""


def port_endpoint(endpoint: str, port: int) -> str:
    """The endpoint of another port inside the same workspace.

    Only where the workspace has an address of its own: the fragment of an endpoint that is a port published on loopback, else
    the endpoint's host. A loopback address or a socket is shared with the machine: another port there is somebody else's.
    """
    parts = urlsplit(endpoint)
    if parts.scheme != "http" or not parts.hostname:
        raise NoSuchPortError(endpoint)
    try:
        address = ipaddress.ip_address(parts.fragment or parts.hostname)
    except ValueError:
        raise NoSuchPortError(endpoint) from None
    if address.is_loopback or address.is_link_local or address.is_multicast or address.is_unspecified or address.is_global:
        raise NoSuchPortError(endpoint)
    host = f"[{address}]" if address.version == 6 else str(address)
    return f"http://{host}:{port}"
