"""A web server of our own in a process of its own, on this test session's database; and a reader of event streams.

`web_url` is one server for the whole session: tests that use it must commit what the server shall see (`transactional_db`).
"""

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from django.db import connection

from workspaces.api import stream


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def session_env() -> dict[str, str]:
    """An environment that leads a child process to this session's test database."""
    base = os.environ["DATABASE_URL"].rpartition("/")[0]
    return {**os.environ, "DATABASE_URL": f"{base}/{connection.settings_dict['NAME']}", "PYTHONUNBUFFERED": "1"}


class Address(str):
    """Where a server answers, and the process that does."""

    __slots__ = ("pid",)
    pid: int


@contextmanager
def web_server(**env: str) -> Iterator[Address]:
    """The address of a web process with these settings on top of the session's."""
    port = free_port()
    environment = {**session_env(), "HOST": "127.0.0.1", "PORT": str(port), **env}
    process = subprocess.Popen([sys.executable, "manage.py", "run_web"], env=environment, stdout=subprocess.DEVNULL)
    url = Address(f"http://127.0.0.1:{port}")
    url.pid = process.pid
    try:
        deadline = time.monotonic() + 40
        while True:
            try:
                if httpx.get(f"{url}/healthz", timeout=5).status_code == 200:
                    break
            except httpx.TransportError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=20)


@pytest.fixture(scope="session")
def web_url(django_db_setup: None) -> Iterator[Address]:
    with web_server(SSE_HEARTBEAT_INTERVAL="1", API_THROTTLE_ANON="100000/min", API_THROTTLE_USER="1000000/min") as url:
        yield url


class OpenStream:
    """One call of the event stream inside this process: what it sent, and when its caller leaves. Lives in one event loop."""

    def __init__(self, token: str) -> None:
        self.sent: list[dict[str, Any]] = []
        self.told = asyncio.Event()
        self.left = asyncio.Event()
        headers = [(b"host", b"testserver"), (b"authorization", f"Bearer {token}".encode())]
        scope = {"type": "http", "method": "GET", "path": "/api/v1/events", "query_string": b"", "headers": headers}
        self.ended = asyncio.create_task(stream.events(scope, self._receive, self._send))

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    async def _send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)
        if message["type"] == "http.response.body":
            self.told.set()

    async def _receive(self) -> dict[str, Any]:
        await self.left.wait()
        return {"type": "http.disconnect"}
