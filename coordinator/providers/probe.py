"""Asks an IDE whether it answers, over TCP or a Unix socket, and fills in the templates of an image's command.

A bare connection is not enough: a published port is accepted by the engine's own forwarder before anything listens behind it.
"""

import socket
import time
from urllib.parse import urlsplit
from uuid import UUID

from coordinator.providers.base import ContainerSpec

PROBE_TIMEOUT = 2.0


def filled(text: str, *, spec: ContainerSpec, workspace_id: UUID, home: str, port: int, socket_path: str = "") -> str:
    """The text with `{port}`, `{home}`, `{base_url}`, `{socket}` and `{id}` replaced; other braces stay as they are."""
    for key, value in (
        ("{port}", str(port)),
        ("{home}", home),
        ("{base_url}", spec.base_url),
        ("{socket}", socket_path),
        ("{id}", str(workspace_id)),
    ):
        text = text.replace(key, value)
    return text


def answers(endpoint: str, path: str, *, timeout: float = PROBE_TIMEOUT) -> bool:
    """Whether an HTTP server behind the endpoint answers with anything but a server error. Never raises for a dead one."""
    deadline = time.monotonic() + timeout
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: codehub-probe\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    try:
        with _connected(endpoint, timeout) as connection:
            connection.sendall(request.encode("ascii", "replace"))
            head = b""
            # Untrusted code answers: sent byte by byte it must not hold whoever asks for longer than a silent one does.
            while len(head) < 12 and (left := deadline - time.monotonic()) > 0:
                connection.settimeout(left)
                received = connection.recv(64)
                if not received:
                    break
                head += received
    except OSError:
        return False
    return head.startswith(b"HTTP/1.") and head[9:10] in (b"1", b"2", b"3", b"4")


def is_own_address(address: str) -> bool:
    """Whether an interface of this machine has it."""
    try:
        with socket.socket() as door:
            door.bind((address, 0))
    except OSError:
        return False
    return bool(address)


def _connected(endpoint: str, timeout: float) -> socket.socket:
    if endpoint.startswith("unix:"):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(timeout)
            connection.connect(endpoint.removeprefix("unix:"))
        except OSError:
            connection.close()
            raise
        return connection
    address = urlsplit(endpoint)
    if not address.hostname or not address.port:
        raise OSError("no address")
    return socket.create_connection((address.hostname, address.port), timeout=timeout)
