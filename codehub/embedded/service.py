"""What every embedded program has in common: names, files, ports and secrets inside its own directory.

Owns the contract the supervisor relies on. Must not start processes.
"""

import json
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGTERM, Signals
from typing import Protocol

LOOPBACK = "127.0.0.1"


class EmbeddedError(Exception):
    """An embedded program cannot be prepared or started; the text says what a person can do about it."""


@dataclass(frozen=True, slots=True)
class Command:
    """How to run one program. `uid` and `gid` are set only when the program must not run as root."""

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    uid: int | None = None
    gid: int | None = None
    stop_signal: Signals = SIGTERM
    stop_seconds: float = 10.0
    """How long it may take to stop before its whole process group is killed."""
    death_signal: Signals | None = None
    """What it gets when we are killed ourselves; its stop signal unless said otherwise."""


class Service(Protocol):
    """One embedded program under its own directory."""

    name: str

    def prepare(self) -> None:
        """Make files and pick ports. Safe to call on a directory whose programs were killed at any moment."""

    def command(self) -> Command:
        """What to run. Valid after `prepare`; the same at every restart."""

    def env(self) -> dict[str, str]:
        """The settings that lead CodeHub to this program. Valid after `prepare`."""

    def wait_ready(self, *, seconds: float = 60.0) -> None:
        """Return once the program does its work; raise `EmbeddedError` when it does not in time."""

    def cleanup(self) -> None:
        """Remove what a run that ended, in whatever way, left behind. Called before each start and after the last stop."""

    def is_noteworthy(self, line: str) -> bool:
        """Whether a person who watches the log wants to see this line of the program's output."""


def ensure_directory(path: Path) -> Path:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def write_private(path: Path, text: str) -> None:
    """Replace `path` in one step with a file only its owner can read."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)


def is_port_free(port: int) -> bool:
    return not why_not_bindable(port, host=LOOPBACK)


def why_not_bindable(port: int, *, host: str) -> str:
    """Why nothing can listen there, in the words of the system; empty when it can."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.strerror or str(error)
    return ""


def free_ports(count: int) -> list[int]:
    """Loopback ports nobody listens on now, all different."""
    probes = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((LOOPBACK, 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def kept_ports(path: Path, count: int) -> list[int]:
    """The ports used last time while they are still free, so that addresses rarely change; otherwise new ones."""
    try:
        ports = [int(port) for port in json.loads(path.read_text())]
    except (OSError, ValueError, TypeError):
        ports = []
    if len(ports) != count or not all(is_port_free(port) for port in ports):
        ports = free_ports(count)
        write_private(path, json.dumps(ports))
    return ports
