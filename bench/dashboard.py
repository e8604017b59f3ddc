"""How fast the dashboard is: the first page of 300 workspaces, and how long a change takes to an open page.

Starts a web process and the events loop of its own on embedded services; prints times, asserts nothing. Run as
`python -m bench.dashboard`.
"""

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from websockets.sync.client import connect
from websockets.typing import Origin

from codehub.embedded import services

ROOT = Path(__file__).resolve().parents[1]
WORKSPACES = 300
ROUNDS = 40


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def prepare() -> tuple[str, list[str]]:
    """A signed-in user with many workspaces: the session's cookie and the workspaces' ids."""
    from django.contrib.auth.models import User  # noqa: PLC0415 - only after the settings are known
    from django.test import Client  # noqa: PLC0415 - only after the settings are known

    from workspaces.models import Image, Workspace  # noqa: PLC0415 - only after the settings are known

    user = User.objects.create_user("bench")
    image = Image.objects.all()[0]
    rows = [
        Workspace(owner=user, image=image, name=f"workspace {number}", phase="STANDBY", desired_state="STANDBY")
        for number in range(WORKSPACES)
    ]
    Workspace.objects.bulk_create(rows)
    client = Client()
    client.force_login(user)
    shown = Workspace.objects.order_by("-created_at", "id").values_list("pk", flat=True)[:24]
    return client.cookies["codehub_session"].value, [str(pk) for pk in shown]


def first_page(port: int, cookie: str) -> list[float]:
    times = []
    for _round in range(ROUNDS):
        connection = HTTPConnection("127.0.0.1", port)
        started = time.perf_counter()
        connection.request("GET", "/", headers={"Cookie": f"codehub_session={cookie}", "Host": f"127.0.0.1:{port}"})
        response = connection.getresponse()
        body = response.read()
        times.append((time.perf_counter() - started) * 1000)
        connection.close()
        if response.status != 200 or body.count(b'class="card ') != 24:
            raise SystemExit(f"the dashboard answered {response.status}")
    return times


def to_the_page(port: int, cookie: str, ids: list[str]) -> list[float]:
    """From the commit of a change of phase to the fragment on the open page's socket."""
    from workspaces.models import Workspace  # noqa: PLC0415 - only after the settings are known

    times = []
    headers = {"Cookie": f"codehub_session={cookie}"}
    with connect(f"ws://127.0.0.1:{port}/ws/dashboard/", additional_headers=headers, origin=Origin(f"http://127.0.0.1:{port}")) as page:
        page.recv()
        for number in range(ROUNDS):
            target = ids[number % len(ids)]
            phase = "ARCHIVED" if (number // len(ids)) % 2 == 0 else "STANDBY"
            Workspace.objects.filter(pk=target).update(phase=phase)
            started = time.perf_counter()
            while True:
                message: dict[str, Any] = json.loads(page.recv(timeout=10))
                if any(patch["target"] == f"card-{target}" for patch in message["patches"]):
                    break
            times.append((time.perf_counter() - started) * 1000)
    return times


def report(name: str, times: list[float]) -> None:
    ordered = sorted(times)
    print(f"{name}: median {statistics.median(ordered):.0f} ms, p95 {ordered[int(len(ordered) * 0.95)]:.0f} ms, worst {ordered[-1]:.0f} ms")


def main() -> None:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="codehub-bench-")))
        directory.chmod(0o755)
        port = free_port()
        os.environ |= stack.enter_context(services(directory, {"postgres", "redis"}, durable=False))
        os.environ |= {
            "CODEHUB_DATA_DIR": str(directory),
            "DJANGO_SECRET_KEY": "bench" * 12,
            "DJANGO_SETTINGS_MODULE": "codehub.settings",
            "CODEHUB_RUNTIME": "process",
            "LOG_LEVEL": "WARNING",
            "PORT": str(port),
        }
        import django  # noqa: PLC0415 - only after the settings are known

        django.setup()
        from django.core.management import call_command  # noqa: PLC0415 - only after the settings are known

        call_command("migrate", verbosity=0)
        cookie, ids = prepare()
        commands = (
            [sys.executable, "-m", "uvicorn", "codehub.asgi:application", "--port", str(port), "--log-level", "warning"],
            [sys.executable, "manage.py", "run_coordinator", "--loops", "events"],
        )
        for command in commands:
            process = subprocess.Popen(command, cwd=ROOT)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        wait_for(port)
        first_page(port, cookie)
        report(f"first page of {WORKSPACES} workspaces", first_page(port, cookie))
        report("change of phase to the open page", to_the_page(port, cookie, ids))


def wait_for(port: int) -> None:
    for _try in range(600):
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                break
        except OSError:
            time.sleep(0.1)
    # The events loop says nothing when it is ready; a lease with a holder does.
    from workspaces.models import LoopLease  # noqa: PLC0415 - only after the settings are known

    for _try in range(600):
        if LoopLease.objects.filter(loop="events").exclude(holder="").exists():
            return
        time.sleep(0.1)
    raise SystemExit("the events loop did not come up")


if __name__ == "__main__":
    main()
