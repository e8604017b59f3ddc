"""One IDE as a process group of its own: started so that it outlives us, recognised again, ended as a whole.

Knows pids, marks and signals; knows nothing of workspaces. A pid alone proves nothing: with it goes the moment it was born,
counted by the kernel since boot, so that neither a reused pid nor a changed clock deceives.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import psutil

MARKER = "CODEHUB_INSTANCE"
_PROC = Path("/proc/self").parent


def birth_mark(pid: int) -> str:
    """What tells this process from a later one with the same pid; empty when it is dead or only a zombie."""
    try:
        if _PROC.is_dir():
            fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
            boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
            return "" if fields[0] in "ZX" else f"{boot}:{fields[19]}"
        process = psutil.Process(pid)
        return "" if process.status() == psutil.STATUS_ZOMBIE else f"{process.create_time():.2f}"
    except (OSError, psutil.Error):
        return ""


def reap(pid: int) -> int | None:
    """The exit code if it was our own child and has ended. PID 1 reaps the others, late."""
    try:
        done, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status) if done == pid else None


def executable(name: str) -> str | None:
    """Where the program is, looking beside our own Python first: that is where its packages put their commands."""
    own = str(Path(sys.prefix) / "bin")
    return shutil.which(name, path=os.pathsep.join([own, os.environ.get("PATH", os.defpath)]))


def spawn(command: list[str], *, directory: str, environment: dict[str, str], log: Path) -> int:
    """Start the command in a session of its own with its output in `log`; its pid.

    Spawned, not forked: safe in a process with threads. No pipe and no controlling terminal ties it to us.
    """
    shell = ["/bin/sh", "-c", 'cd -- "$0" || exit 126; exec "$@"', directory, *command]
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), flags, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    return os.posix_spawn(shell[0], shell, environment, file_actions=actions, setsid=True)


def members(instance: str) -> list[psutil.Process]:
    """Every live process that carries the instance's marker: also those that made sessions of their own (terminals)."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARKER) == instance and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def end(pid: int, mark: str, instance: str, *, patience: float) -> bool:
    """SIGTERM to all, SIGKILL to what is left; whether nothing of it lives on return."""
    if pid and birth_mark(pid) == mark:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGTERM)
    _signal(members(instance), signal.SIGTERM)
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if _is_over(pid, mark) and not members(instance):
            return True
        time.sleep(0.02)
    if pid and birth_mark(pid) == mark:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        left = members(instance)
        _signal(left, signal.SIGKILL)
        if not left and _is_over(pid, mark):
            return True
        time.sleep(0.02)
    return False


def _is_over(pid: int, mark: str) -> bool:
    reap(pid)
    return not pid or birth_mark(pid) != mark


def _signal(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)
