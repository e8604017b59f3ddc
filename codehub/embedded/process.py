"""One child process: started in its own group, tied to our life, its output read line by line, stopped for good.

Owns spawning, signals and the record of what was spawned, so that a later start can find what a killed one left.
Children must be spawned from the main thread: the kernel ties them to the thread that made them.
"""

import ctypes
import json
import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from signal import Signals

import psutil

from codehub.embedded.service import Command, write_private

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)

Listener = Callable[[str], None]


class Child:
    """A running program and everything it started, as one process group."""

    def __init__(self, name: str, command: Command, *, on_line: Listener) -> None:
        self.name = name
        self.command = command
        self.last_lines: deque[str] = deque(maxlen=8)
        self._on_line = on_line
        self._process = self._spawn()
        self._reader = threading.Thread(target=self._read, name=f"read-{name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.poll()

    def how_it_ended(self) -> str:
        code = self._process.returncode
        if code is None:
            return "is running"
        return f"was ended by {Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def wait(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self) -> None:
        """Ask it to stop, wait as long as it may take, then kill what is left of its group."""
        self.ask_to_stop()
        self.wait(self.command.stop_seconds)
        self.kill_group()
        self._process.wait()
        self._reader.join(2.0)

    def ask_to_stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(self.command.stop_signal)

    def kill_group(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    def _spawn(self) -> subprocess.Popen[str]:
        command = self.command
        death_signal = int(command.death_signal or command.stop_signal)

        def tie_to_parent() -> None:
            _libc.prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0)

        return subprocess.Popen(
            list(command.argv),
            env={**os.environ, **command.env},
            cwd=command.cwd,
            user=command.uid,
            group=command.gid,
            extra_groups=None if command.uid is None else [],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            bufsize=1,
            start_new_session=True,
            # Runs between fork and exec, after the change of user, which would clear it again.
            preexec_fn=tie_to_parent,  # noqa: PLW1509 (spawned from the main thread; the function only makes one system call)
        )

    def _read(self) -> None:
        stream = self._process.stdout
        assert stream is not None  # noqa: S101 (given by PIPE above)
        with stream:
            for line in stream:
                text = line.rstrip("\n")
                self.last_lines.append(text)
                self._on_line(text)


class ProcessRecord:
    """The pids of running children with their start times, on disk, for the start after a `kill -9`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries: dict[str, tuple[int, float]] = {}

    def add(self, name: str, pid: int) -> None:
        try:
            self._entries[name] = (pid, psutil.Process(pid).create_time())
        except psutil.NoSuchProcess:
            self._entries.pop(name, None)
        self._save()

    def discard(self, name: str) -> None:
        if self._entries.pop(name, None) is not None:
            self._save()

    def stop_leftovers(self, *, seconds: float = 10.0) -> list[str]:
        """End what an earlier start left running; its name and age must match, so a reused pid is never hit."""
        found: dict[str, list[psutil.Process]] = {}
        for name, (pid, started) in self._load().items():
            try:
                process = psutil.Process(pid)
                if abs(process.create_time() - started) > 0.05 or process.status() == psutil.STATUS_ZOMBIE:
                    continue
                found[name] = [process, *_members_of_group(pid)]
                process.terminate()
            except psutil.NoSuchProcess:
                continue
        everything = [process for group in found.values() for process in group]
        _, alive = psutil.wait_procs(everything, timeout=seconds)
        for process in alive:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(alive, timeout=seconds)
        self._entries = {}
        self._save()
        return sorted(found)

    def _load(self) -> dict[str, tuple[int, float]]:
        try:
            return {str(name): (int(pid), float(started)) for name, (pid, started) in json.loads(self._path.read_text()).items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

    def _save(self) -> None:
        write_private(self._path, json.dumps(self._entries))


def _members_of_group(leader: int) -> list[psutil.Process]:
    members = []
    for process in psutil.process_iter():
        try:
            if process.pid != leader and os.getpgid(process.pid) == leader:
                members.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return members
