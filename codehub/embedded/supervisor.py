"""Keeps a few programs running: starts them again when they die, with growing pauses, and stops them in order.

Owns the children. Everything runs in the caller's (main) thread; only reading output has threads of its own.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from codehub.embedded.console import Console, LogFile
from codehub.embedded.process import Child, ProcessRecord
from codehub.embedded.service import Command, EmbeddedError, Service

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
STEADY_SECONDS = 60.0
POLL_SECONDS = 0.2
LOOK_SECONDS = 2.0


@dataclass
class Program:
    """One supervised program. `tier` orders stopping: the lowest stops first."""

    name: str
    command: Command
    tier: int
    is_shown: Callable[[str], bool] = lambda line: True
    before_start: Callable[[], None] = lambda: None
    child: Child | None = None
    log: LogFile | None = None
    started_at: float = 0.0
    pause: float = FIRST_PAUSE
    due_at: float | None = field(default=None)


class Supervisor:
    def __init__(self, data_dir: Path, console: Console) -> None:
        self._logs = data_dir / "logs"
        self._record = ProcessRecord(data_dir / "processes.json")
        self._console = console
        self._programs: list[Program] = []

    def stop_leftovers(self) -> None:
        for name in self._record.stop_leftovers():
            self._console.say("up", f"stopped {name}, left over from a start that was killed")

    def start_service(self, service: Service, *, tier: int) -> None:
        """Start an embedded program without waiting for it."""
        self.start(Program(service.name, service.command(), tier, is_shown=service.is_noteworthy, before_start=service.cleanup))

    def await_service(self, service: Service, *, seconds: float = 60.0) -> None:
        """Return once it does its work. One that has died is not waited for: its last words usually say why."""
        deadline = time.monotonic() + seconds
        child = next(program.child for program in self._programs if program.name == service.name)
        while True:
            try:
                service.wait_ready(seconds=LOOK_SECONDS)
                return
            except EmbeddedError as error:
                whole = f"its whole output is in {self._logs / service.name}.log"
                if child is not None and child.poll() is not None:
                    child.stop()
                    words = "\n".join(child.last_lines)
                    raise EmbeddedError(f"{service.name} {child.how_it_ended()} before it was ready ({whole}):\n{words}") from error
                if time.monotonic() > deadline:
                    raise EmbeddedError(f"{service.name} is not ready after {seconds:.0f} s: {error} ({whole})") from error

    def start(self, program: Program) -> None:
        self._programs.append(program)
        program.log = LogFile(self._logs, program.name)
        self._spawn(program)

    def has_spoken(self, name: str) -> bool:
        """Whether the named program has written anything yet."""
        return any(program.name == name and program.child is not None and program.child.last_lines for program in self._programs)

    def supervise(self, *, until: Callable[[], bool] = lambda: False) -> None:
        """Restart what dies, until the condition holds (for ever by default)."""
        while not until():
            self.restart_dead(now=time.monotonic())
            time.sleep(POLL_SECONDS)

    def restart_dead(self, *, now: float) -> None:
        for program in self._programs:
            if program.due_at is not None:
                if now >= program.due_at:
                    program.due_at = None
                    self._spawn(program)
            elif program.child is not None and program.child.poll() is not None:
                self._plan_restart(program, program.child, now=now)

    def stop_all(self) -> None:
        """Tier by tier, those of one tier at the same time; what does not stop in its time is killed with its group."""
        for tier in sorted({program.tier for program in self._programs}):
            children = [(program, program.child) for program in self._programs if program.tier == tier and program.child is not None]
            for _, child in children:
                child.ask_to_stop()
            for program, child in children:
                child.stop()
                self._record.discard(program.name)
                program.before_start()
                if program.log is not None:
                    program.log.close()
        self._programs.clear()

    def kill_all(self) -> None:
        """What a second Ctrl-C asks for."""
        for program in self._programs:
            if program.child is not None:
                program.child.kill_group()

    def _spawn(self, program: Program) -> None:
        log = program.log

        def on_line(line: str) -> None:
            if log is not None:
                log.write(line)
            if program.is_shown(line):
                self._console.say(program.name, line)

        program.before_start()
        program.started_at = time.monotonic()
        program.child = Child(program.name, program.command, on_line=on_line)
        self._record.add(program.name, program.child.pid)

    def _plan_restart(self, program: Program, child: Child, *, now: float) -> None:
        child.stop()  # what the dead program left of its process group
        if now - program.started_at > STEADY_SECONDS:
            program.pause = FIRST_PAUSE
        self._console.say("up", f"{program.name} {child.how_it_ended()}; starting it again in {program.pause:g} s")
        for line in _unshown(child.last_lines, program):
            self._console.say(program.name, line)
        program.due_at = now + program.pause
        program.pause = min(program.pause * 2, LONGEST_PAUSE)


def _unshown(lines: Iterable[str], program: Program) -> list[str]:
    """The last lines a person has not seen yet: they usually say why a program died."""
    return [line for line in lines if not program.is_shown(line)]
