"""What the proxy's tests stand on: a real web process, a recording upstream, and users with workspaces at its address.

The web process is uvicorn with the project's own options, in a subprocess, on this test's database. Rows are written here
directly: there is no coordinator in these tests.
"""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import requests
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import User
from knox.models import AuthToken

from workspaces.models import Image, Workspace

ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_listening(port: int, process: subprocess.Popen[bytes], *, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise AssertionError(f"the server ended with {process.returncode}")
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError("the server does not listen")


@contextmanager
def web_process(env: dict[str, str], **overrides: str) -> Iterator[int]:
    """One web process on a free port."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "codehub.serve", "--port", str(port)],
        cwd=ROOT,
        env={**env, "PORT": str(port), **overrides},
    )
    try:
        wait_until_listening(port, process)
        yield port
    finally:
        process.terminate()
        process.wait(15)


@contextmanager
def upstream_process(*arguments: str) -> Iterator[int]:
    """The recording upstream on a free port."""
    port = free_port()
    process = subprocess.Popen([sys.executable, "-m", "tests.fakes.upstream", str(port), *arguments], cwd=ROOT)
    try:
        wait_until_listening(port, process)
        yield port
    finally:
        process.terminate()
        process.wait(15)


@dataclass
class World:
    """A web process, an upstream, and two users with a running workspace each."""

    port: int
    upstream: int
    owner: User
    other: User
    workspace: Workspace
    foreign: Workspace
    session: str
    token: str

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def redis_url(self) -> str:
        return str(settings.REDIS_URL)

    @property
    def wake_channel(self) -> str:
        return f"{settings.CONFIG.redis_channel_wake_prefix}:ob"

    @property
    def own_host(self) -> str:
        return f"{self.workspace.pk}.localhost:{self.port}"

    def url(self, path: str = "/", *, workspace: UUID | None = None) -> str:
        return f"{self.base}/w/{workspace or self.workspace.pk}{path}"

    @property
    def bearer(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    @property
    def cookies(self) -> dict[str, str]:
        return {"codehub_session": self.session}

    def enter_own_origin(self, **headers: str) -> dict[str, str]:
        """Walk through the ticket as a browser would; the cookie of the own origin."""
        first = requests.get(self.url(), cookies=self.cookies, headers={**NAVIGATE, **headers}, allow_redirects=False)
        assert first.status_code == 302, first.text
        location = first.headers["location"]
        path = "/" + location.split("/", 3)[3]
        second = requests.get(self.base + path, headers={**NAVIGATE, "Host": self.own_host}, allow_redirects=False)
        assert second.status_code == 302, second.text
        return {"codehub_ws": second.cookies["codehub_ws"]}


NAVIGATE = {
    "Accept": "text/html,*/*",
    "User-Agent": "Mozilla/5.0 test",
    "Sec-Fetch-Mode": "navigate",
    "Sec-Fetch-Dest": "document",
    "Sec-Fetch-Site": "none",
}


def sign_in(user: User) -> str:
    """A login session as Django would make it; its key."""
    store = import_module(settings.SESSION_ENGINE).SessionStore()
    store[SESSION_KEY] = str(user.pk)
    store[BACKEND_SESSION_KEY] = settings.AUTHENTICATION_BACKENDS[-1]
    store[HASH_SESSION_KEY] = user.get_session_auth_hash()
    store.create()
    return str(store.session_key)


def make_workspace(owner: User, *, endpoint: str, image: str = "code-server", **fields: Any) -> Workspace:
    values = {"phase": "RUNNING", "desired_state": "RUNNING", "name": "tried", **fields}
    return Workspace.objects.create(owner=owner, image=Image.objects.get(name=image), endpoint=endpoint, **values)


@dataclass(frozen=True)
class Servers:
    """A web process and the recording upstream."""

    port: int
    upstream: int


@contextmanager
def servers(env: dict[str, str], **overrides: str) -> Iterator[Servers]:
    with upstream_process() as upstream, web_process({**env, "ALLOWED_HOSTS": "localhost,127.0.0.1"}, **overrides) as port:
        yield Servers(port, upstream)


def make_world(running: Servers) -> World:
    mark = uuid4().hex[:8]
    owner = User.objects.create_user(f"owner-{mark}")
    other = User.objects.create_user(f"other-{mark}")
    endpoint = f"http://127.0.0.1:{running.upstream}"
    return World(
        port=running.port,
        upstream=running.upstream,
        owner=owner,
        other=other,
        workspace=make_workspace(owner, endpoint=endpoint),
        foreign=make_workspace(other, endpoint=endpoint),
        session=sign_in(owner),
        token=AuthToken.objects.create(owner)[1],
    )
