"""A process that makes calls outside and can be killed or frozen at any of them.

Wraps a double as one process sees it. After a kill every further call fails, as for a process that is no more; a frozen one waits
inside a call that was already allowed, and makes it when it is thawed.
"""

import threading
from typing import Any, Literal
from uuid import UUID

from django.db import connection

from coordinator.actuators import Tools, run_attempt

Moment = Literal["before", "after"]


class KilledError(BaseException):
    """Not an Exception on purpose: no code of the run may catch it and carry on."""


class Fate:
    """What becomes of one process: at its n-th call it is killed, before or after the effect, or freezes."""

    def __init__(self, *, kill_at: int | None = None, moment: Moment = "before", freeze_at: int | None = None) -> None:
        self.kill_at, self.moment, self.freeze_at = kill_at, moment, freeze_at
        self.calls = 0
        self.dead = False
        self.frozen = threading.Event()
        self.thawed = threading.Event()

    def enter(self) -> None:
        if self.dead:
            raise KilledError
        self.calls += 1
        if self.calls == self.kill_at and self.moment == "before":
            self.dead = True
            raise KilledError
        if self.calls == self.freeze_at:
            self.frozen.set()
            self.thawed.wait()

    def leave(self) -> None:
        if self.calls == self.kill_at and self.moment == "after":
            self.dead = True
            raise KilledError


class Puppet:
    """The double, seen by a process with that fate."""

    def __init__(self, target: Any, fate: Fate) -> None:
        self._target, self._fate = target, fate

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._target, name)
        if not callable(attribute):
            return attribute

        def call(*args: Any, **kwargs: Any) -> Any:
            self._fate.enter()
            result = attribute(*args, **kwargs)
            self._fate.leave()
            return result

        return call


def run_until_frozen(attempt: UUID, tools: Tools, fate: Fate) -> threading.Thread:
    """The run in a thread of its own, which is frozen on return, or at its end if it made too few calls."""

    def run() -> None:
        try:
            run_attempt(attempt, tools)
        finally:
            connection.close()
            fate.frozen.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert fate.frozen.wait(30)
    return thread
