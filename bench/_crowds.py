"""The coordinator under a crowd: thousands of containers gone at once, hundreds of slow starts, ten thousand wishes and an API beside it.

Every crowd is a coordinator process with an engine in memory; what is told is measured from outside, through the database.
"""

import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from typing import Any
from uuid import UUID

import psutil
from django.contrib.auth.models import User
from django.db import connection

from bench._coordinator import clear, coordinators, copy_rows, lead, settled_sample, show
from tests.fakes.runtime import FakeRuntime
from workspaces import services
from workspaces.models import Attempt, Workspace
from workspaces.tokens import request_token

BEHAVIOUR = "BENCH_ENGINE"
"""How the engine of a coordinator process behaves: the seconds a start and the reading of a home take."""


def behave(runtime: Any) -> None:
    """Make a double behave as the bench that started this process wants it, and say how many starts ran at once.

    SIGUSR1: all its containers are gone.
    """
    wanted = json.loads(os.environ.get(BEHAVIOUR, "{}"))
    runtime.calls = deque(maxlen=100)
    signal.signal(signal.SIGUSR1, lambda *_args: runtime.containers.clear())
    lock, running, most = threading.Lock(), [0], [0]
    begin = FakeRuntime.start

    def start(*args: Any) -> Any:
        with lock:
            running[0] += 1
            if running[0] > most[0]:
                most[0] = running[0]
                print(f"starts {most[0]}", flush=True)
        try:
            time.sleep(wanted.get("start", 0.0))
            return begin(runtime, *args)
        finally:
            with lock:
                running[0] -= 1

    runtime.start = start
    runtime.hook("read_volume", lambda *_args: time.sleep(wanted.get("archive", 0.0)))


@dataclass
class Crowd:
    """What was seen from outside while a crowd was served."""

    process: psutil.Process
    output: Any
    claims: list[float] = field(default_factory=list)
    longest_tick: float = 0.0
    busiest: float = 0.0
    largest: int = 0

    def look(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT COALESCE(max(last_tick_ms), 0) FROM workspaces_looplease WHERE loop = 'reconcile'")
            self.longest_tick = max(self.longest_tick, float(cursor.fetchone()[0]))
        self.busiest = max(self.busiest, self.process.cpu_percent())
        self.largest = max(self.largest, self.process.memory_info().rss)

    def claim(self, key: UUID) -> None:
        """A wish for somebody else meanwhile, and how long until it is taken up."""
        services.request_state(key, user=User.objects.get(username="bench"), desired_state="RUNNING")
        began = time.perf_counter()
        while Workspace.objects.filter(pk=key, operation="NONE", phase="STANDBY").exists():
            time.sleep(0.002)
        self.claims.append(time.perf_counter() - began)

    def most_starts(self) -> int:
        """Read when the process has ended."""
        return max((int(line.split()[1]) for line in self.output.read().decode().splitlines() if line.startswith("starts")), default=0)


@contextmanager
def _crowd(**behaviour: float) -> Iterator[Crowd]:
    os.environ[BEHAVIOUR] = json.dumps(behaviour)
    before = lead_term()
    with coordinators(1) as (process,):
        lead(before)
        seen = psutil.Process(process.pid)
        seen.cpu_percent()
        crowd = Crowd(seen, process.stdout)
        yield crowd
        process.terminate()
        process.wait(20)
    del os.environ[BEHAVIOUR]


def lead_term() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT COALESCE(max(term), 0) FROM workspaces_looplease WHERE loop = 'reconcile'")
        return int(cursor.fetchone()[0])


def _left(name: str) -> int:
    return Workspace.objects.filter(name=name).exclude(phase="RUNNING", operation="NONE").count()


def _started(name: str) -> int:
    return Attempt.objects.filter(workspace__name=name, action="start", state="SUCCEEDED").count()


def _rename(sample: UUID, name: str) -> UUID:
    Workspace.objects.filter(pk=sample).update(name=name)
    return sample


def bench_vanished(size: int) -> None:
    """All containers are gone. Wishes for others are taken up meanwhile."""
    clear()
    copy_rows(_rename(settled_sample("RUNNING"), "crowd"), size - 1)
    copy_rows(_rename(settled_sample("STANDBY"), "other"), 400)
    others = list(Workspace.objects.filter(name="other").values_list("pk", flat=True))
    with _crowd() as crowd:
        crowd.process.send_signal(signal.SIGUSR1)
        began = time.perf_counter()
        # The pattern was started once before; those not looked for yet still stand as RUNNING.
        while left := max(size + 1 - _started("crowd"), _left("crowd")):
            crowd.look()
            if others:
                crowd.claim(others.pop())
            time.sleep(0.5)
            if time.perf_counter() - began > 900:
                raise SystemExit(f"{left} never came back")
        took = time.perf_counter() - began
    _told(f"{size} RUNNING whose containers vanished", crowd, took)


def _until_served(crowd: Crowd, others: list[UUID], *, pause: float) -> None:
    """Until the whole crowd runs; meanwhile somebody else wishes something now and then."""
    while _left("crowd"):
        crowd.look()
        if others:
            crowd.claim(others.pop())
        time.sleep(pause)


def bench_burst(size: int = 500) -> None:
    """Hundreds of wishes at once, starts of a second, twenty at a time; archives fill their lane meanwhile."""
    clear()
    copy_rows(_rename(settled_sample("STANDBY"), "crowd"), size - 1)
    copy_rows(_rename(settled_sample("STANDBY"), "other"), 20)
    copy_rows(_rename(settled_sample("STANDBY"), "packed"), 7)
    others = list(Workspace.objects.filter(name="other").values_list("pk", flat=True))
    with _crowd(start=1.0, archive=15.0) as crowd:
        Workspace.objects.filter(name="packed").update(desired_state="ARCHIVED")
        time.sleep(1)
        began = time.perf_counter()
        Workspace.objects.filter(name="crowd").update(desired_state="RUNNING")
        _until_served(crowd, others, pause=0.3)
        took = time.perf_counter() - began
        packing = Workspace.objects.filter(name="packed", operation="ARCHIVING").count()
    _told(f"{size} wishes at once, starts of 1 s, 20 at a time (ideal {(size + 20) / 20:.0f} s)", crowd, took)
    show("archives still under way at their end", str(packing))


def bench_woken(size: int) -> None:
    """Ten thousand wishes in one statement, and people at the API meanwhile."""
    clear()
    copy_rows(_rename(settled_sample("STANDBY"), "crowd"), size - 1)
    copy_rows(_rename(settled_sample("STANDBY"), "other"), 400)
    others = list(Workspace.objects.filter(name="other").values_list("pk", flat=True))
    with _web() as port, _crowd() as crowd:
        over = threading.Event()
        answers: list[float] = []
        clients = [threading.Thread(target=_client, args=(port, over, answers)) for _ in range(4)]
        for client in clients:
            client.start()
        began = time.perf_counter()
        Workspace.objects.filter(name="crowd").update(desired_state="RUNNING")
        _until_served(crowd, others, pause=0.5)
        took = time.perf_counter() - began
        over.set()
        for client in clients:
            client.join()
    _told(f"{size} woken at once", crowd, took)
    answers.sort()
    show(f"the API meanwhile ({len(answers)} requests), p50", f"{statistics.median(answers) * 1000:.0f} ms")
    show("the API meanwhile, p99", f"{answers[int(len(answers) * 0.99)] * 1000:.0f} ms", "target 1000 ms")


def _told(what: str, crowd: Crowd, took: float) -> None:
    show(f"{what}: all RUNNING after", f"{took:.1f} s")
    show("most starts at once", str(crowd.most_starts()), "20 workers")
    show("longest tick", f"{crowd.longest_tick / 1000:.2f} s")
    show("a wish for another meanwhile, median", f"{statistics.median(crowd.claims) * 1000:.0f} ms")
    show("a wish for another meanwhile, longest", f"{max(crowd.claims) * 1000:.0f} ms", "target 1000 ms")
    show("coordinator at its busiest", f"{crowd.busiest:.0f} %, {crowd.largest >> 20} MiB")


@contextmanager
def _web() -> Iterator[int]:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = int(found.getsockname()[1])
    extra = {"PORT": str(port), "API_THROTTLE_USER": "10000000/min"}
    web = subprocess.Popen([sys.executable, "manage.py", "run_web"], env={**os.environ, **extra})
    try:
        while True:
            try:
                HTTPConnection("127.0.0.1", port, timeout=5).request("GET", "/healthz")
                break
            except OSError:
                time.sleep(0.1)
        yield port
    finally:
        web.terminate()
        web.wait(timeout=30)


def _client(port: int, over: threading.Event, answers: list[float]) -> None:
    """Reads one workspace, the first page of all and changes a memo, in turn, with a person's pauses."""
    user = User.objects.get(username="bench")
    key = Workspace.objects.filter(name="other").order_by("pk").values_list("pk", flat=True)[0]
    headers = {"Authorization": f"Bearer {request_token(user, name='bench').token}", "Content-Type": "application/json"}
    connection.close()
    http = HTTPConnection("127.0.0.1", port, timeout=60)
    while not over.is_set():
        for method, path, body in (
            ("GET", f"/api/v1/workspaces/{key}", None),
            ("GET", "/api/v1/workspaces", None),
            ("PATCH", f"/api/v1/workspaces/{key}", json.dumps({"memo": "m"})),
        ):
            began = time.perf_counter()
            http.request(method, path, body=body, headers=headers)
            answer = http.getresponse()
            text = answer.read()
            answers.append(time.perf_counter() - began)
            if answer.status != 200:
                raise SystemExit(text.decode()[:300])
        time.sleep(0.1)
