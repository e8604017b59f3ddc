"""Faults on demand for the in-memory doubles: a method fails before or after its effect, as often as asked.

Owns the script and the record of calls. Knows nothing of what the double stores.
"""

import functools
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

When = Literal["before", "after"]


@dataclass(slots=True)
class Fault:
    error: Exception
    when: When


class Scripted:
    """Base of a double whose public methods are wrapped with `scripted`."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self._faults: dict[str, deque[Fault]] = defaultdict(deque)
        self._hooks: dict[str, Callable[..., None]] = {}

    def fail(self, method: str, error: Exception, *, times: int = 1, when: When = "before") -> None:
        """The next `times` calls of the method raise, before or after having done the work."""
        self._faults[method].extend(Fault(error, when) for _ in range(times))

    def heal(self, method: str | None = None) -> None:
        """Forget the faults of one method, or all."""
        for name in [method] if method else list(self._faults):
            self._faults.pop(name, None)

    def hook(self, method: str, callback: Callable[..., None]) -> None:
        """Called with the method's arguments before it does anything: to block, to look, to interfere."""
        self._hooks[method] = callback

    def count(self, method: str) -> int:
        return sum(1 for name, _ in self.calls if name == method)

    def called(self) -> list[str]:
        return [name for name, _ in self.calls]

    def take_fault(self, method: str) -> Fault | None:
        with self.lock:
            return self._faults[method].popleft() if self._faults.get(method) else None

    def run_hook(self, method: str, *args: Any) -> None:
        if callback := self._hooks.get(method):
            callback(*args)


S = TypeVar("S", bound=Scripted)
P = ParamSpec("P")
R = TypeVar("R")


def scripted(function: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Record the call, run the hook, and fail as the script says."""
    name = function.__name__

    @functools.wraps(function)
    def wrapper(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.lock:
            self.calls.append((name, args))
        self.run_hook(name, *args)
        fault = self.take_fault(name)
        if fault and fault.when == "before":
            raise fault.error
        result = function(self, *args, **kwargs)
        if fault:
            raise fault.error
        return result

    return wrapper
