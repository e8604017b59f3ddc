"""A workspace's life through the API on Docker, against raw engine calls in the same run: start, stop, create.

    python -m bench.circle [--runs 7] [--image codehub/tiny:latest] [--path /]

CodeHub is `manage.py up` as anybody runs it. Each figure is from the request to the event of the API's stream that shows the phase.
Removes everything it made.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
from dotenv import dotenv_values

from bench.engine import raw_circle, report
from codehub.embedded.service import free_ports
from coordinator.providers.base import ContainerSpec
from tests.engine import a_subnet, remove_installation
from tests.event_reader import EventReader

ROOT = Path(__file__).resolve().parent.parent
PASSWORD = "only-for-this-bench"
TARGETS = {"start": 1.3, "stop": 1.5, "create": 1.5}
ENTRY = """
INSERT INTO workspaces_image (name, title, description, ref, command, port, env, home, uid, gid, memory_mb, cpus, pids_limit,
    strip_prefix, health_path, runtimes, enabled, position)
VALUES ('bench', 'bench', '', %s, '[]', 8080, '{}', '/home/coder', 1000, 1000, 2048, 2, 1024, true, %s, '{docker}', true, 1)
"""


@contextmanager
def codehub(directory: Path) -> Iterator[tuple[str, str]]:
    """The address of a running CodeHub and of its database."""
    data_dir, (port,) = directory / "data", free_ports(1)
    url = f"http://127.0.0.1:{port}"
    settings = {
        "CODEHUB_DATA_DIR": str(data_dir),
        "PORT": str(port),
        "CODEHUB_RUNTIME": "docker",
        "CODEHUB_ADMIN_PASSWORD": PASSWORD,
        "DOCKER_SUBNET": a_subnet(),
        "LOG_LEVEL": "ERROR",
    }
    process = subprocess.Popen([sys.executable, str(ROOT / "manage.py"), "up"], env={**os.environ, **settings}, stdout=subprocess.DEVNULL)
    database = installation = ""
    try:
        wait_until(lambda: _ready(url, process), seconds=120)
        database = dotenv_values(data_dir / "embedded.env")["DATABASE_URL"] or ""
        with psycopg.connect(database) as connection:
            installation = str((connection.execute("SELECT id FROM workspaces_installation").fetchone() or ("",))[0])
            leads = "SELECT 1 FROM workspaces_looplease WHERE loop = 'reconcile' AND last_tick_at > acquired_at"
            wait_until(lambda: connection.execute(leads).fetchone(), seconds=60)
        yield url, database
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
        if installation:
            remove_installation(installation)


def _ready(url: str, process: "subprocess.Popen[bytes]") -> bool:
    if process.poll() is not None:
        raise RuntimeError("CodeHub did not start")
    try:
        return httpx.get(f"{url}/readyz", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def wait_until(condition: Any, *, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.05)


class Person:
    """Somebody who scripts against the API and follows its stream of events."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=60)
        token = self.http.post("/api/v1/auth/login", json={"username": "admin", "password": PASSWORD}).json()["token"]
        self.http.headers["Authorization"] = f"Bearer {token}"
        self.events = EventReader(url, token)

    def reach(self, workspace: str, phase: str) -> None:
        while True:
            name, seen = self.events.next(timeout=120)
            if name != "workspace_updated" or seen["id"] != workspace:
                continue
            if seen["phase"] == phase and seen["operation"] == "NONE":
                return
            if seen["phase"] == "ERROR":
                raise RuntimeError(seen["error_info"])

    def ask(self, workspace: str, state: str) -> float:
        begin = time.monotonic()
        self.http.patch(f"/api/v1/workspaces/{workspace}", json={"desired_state": state}).raise_for_status()
        self.reach(workspace, state)
        return time.monotonic() - begin

    def close(self) -> None:
        self.events.__exit__(None, None, None)
        self.http.close()

    def circle(self) -> dict[str, float]:
        begin = time.monotonic()
        answer = self.http.post("/api/v1/workspaces", json={"name": "bench", "image": "bench"}).raise_for_status()
        workspace = str(answer.json()["id"])
        self.reach(workspace, "RUNNING")
        times = {"create": time.monotonic() - begin}
        times["stop"] = self.ask(workspace, "STANDBY")
        times["start"] = self.ask(workspace, "RUNNING")
        self.http.delete(f"/api/v1/workspaces/{workspace}").raise_for_status()
        wait_until(lambda: self.http.get(f"/api/v1/workspaces/{workspace}").status_code == 404, seconds=60)
        return times


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--image", default="codehub/tiny:latest")
    parser.add_argument("--path", default="/")
    parser.add_argument("--runs", type=int, default=7)
    chosen = parser.parse_args(arguments)
    print(f"through the API on Docker, {chosen.image}, medians of {chosen.runs}")
    with tempfile.TemporaryDirectory(prefix="codehub-bench-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        with codehub(directory) as (url, database):
            with psycopg.connect(database) as connection:
                connection.execute(ENTRY, [chosen.image, chosen.path])
                (installation,) = connection.execute("SELECT id FROM workspaces_installation").fetchone() or ("",)
            spec, network = ContainerSpec(image=chosen.image, health_path=chosen.path), f"codehub-{installation}"
            person = Person(url)
            person.circle()
            rows = [(raw_circle(spec), raw_circle(spec, network=network), person.circle()) for _ in range(chosen.runs)]
            person.close()
    report(rows, TARGETS)


if __name__ == "__main__":
    main()
