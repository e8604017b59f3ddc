"""Handles on the coordinator processes a fault test starts: their traces, their rows, and a sure end."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from coordinator.leader import Timing
from workspaces.models import AuditEvent

ROOT = Path(__file__).resolve().parent.parent.parent
QUICK = Timing(lock_wait=0.5, stale_after=2.0, heartbeat=0.3)


def until(condition: Callable[[], Any], *, seconds: float = 30.0, why: str = "it never came") -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, why
        time.sleep(0.01)
    return value


class Process:
    """One coordinator process."""

    def __init__(self, env: Mapping[str, str], *, trace: Path, timing: Timing | None = None, **extra: str) -> None:
        self._trace = trace
        chosen = timing or Timing()
        words = {"TRACE": str(trace), "TIMING": f"{chosen.lock_wait},{chosen.stale_after},{chosen.heartbeat}", **extra}
        # Into the test's own output, which is shown when it fails.
        self.popen = subprocess.Popen([sys.executable, "-m", "tests.fault.coordinator_process"], cwd=ROOT, env={**env, **words})
        self.pid = self.popen.pid

    def traces(self, what: str) -> list[dict[str, Any]]:
        if not self._trace.exists():
            return []
        lines = [json.loads(line) for line in self._trace.read_text().splitlines()]
        return [line for line in lines if line["pid"] == self.pid and line["what"] == what]

    def rows(self) -> int:
        return AuditEvent.objects.filter(actor_name=str(self.pid)).count()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()

    def wait_started(self) -> None:
        until(lambda: self.traces("started"), why="the process never started")

    def wait_acts(self, *, seconds: float = 30.0) -> None:
        before = len(self.traces("wrote"))
        until(lambda: len(self.traces("wrote")) > before, seconds=seconds, why=f"{self.pid} never acted")

    def end(self) -> None:
        if self.popen.poll() is None:
            os.kill(self.pid, signal.SIGCONT)
            self.kill()
