"""Circuit breakers, one for each system outside: they decide whether actuators may be sent to it now.

Owns the counting (five failures in a row open, a trial after thirty seconds, two successes close). Only `Unreachable` counts: a
user's bad image must never block others. Lives in the memory of the coordinator that leads; changes are kept for it to report.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

OPEN_AFTER = 5
TRIAL_AFTER = 30.0
CLOSE_AFTER = 2


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(slots=True)
class _Circuit:
    state: BreakerState = BreakerState.CLOSED
    failures: int = 0
    successes: int = 0
    opened: float = 0.0
    closed: float | None = None
    last_error: str = ""


@dataclass(frozen=True, slots=True)
class BreakerChange:
    """What operators are told: the circuit's new state and why."""

    name: str
    state: BreakerState
    failures: int
    last_error: str


@dataclass(slots=True)
class Breakers:
    """All circuits of one coordinator. Thread-safe: observers and the loop both report."""

    clock: Callable[[], float] = time.monotonic
    _circuits: dict[str, _Circuit] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _changes: list[BreakerChange] = field(default_factory=list)

    def record_failure(self, name: str, error: str) -> None:
        """The system could not be asked."""
        with self._lock:
            circuit = self._circuit(name)
            circuit.failures += 1
            circuit.successes = 0
            circuit.last_error = error[:500]
            if circuit.state is BreakerState.HALF_OPEN or (circuit.state is BreakerState.CLOSED and circuit.failures >= OPEN_AFTER):
                circuit.opened = self.clock()
                self._change(name, circuit, BreakerState.OPEN)

    def record_success(self, name: str) -> None:
        """The system answered. While the circuit is open only a trial's answer counts, so late answers do not close it."""
        with self._lock:
            circuit = self._circuit(name)
            if circuit.state is BreakerState.CLOSED:
                circuit.failures = 0
            elif circuit.state is BreakerState.HALF_OPEN:
                circuit.successes += 1
                if circuit.successes >= CLOSE_AFTER:
                    circuit.failures = 0
                    circuit.closed = self.clock()
                    self._change(name, circuit, BreakerState.CLOSED)

    def may_ask(self, name: str) -> bool:
        """Whether an observation may be made: always, but for an open circuit whose trial is not due yet."""
        with self._lock:
            circuit = self._circuit(name)
            if circuit.state is BreakerState.OPEN and self.clock() - circuit.opened >= TRIAL_AFTER:
                circuit.successes = 0
                self._change(name, circuit, BreakerState.HALF_OPEN)
            return circuit.state is not BreakerState.OPEN

    def is_closed(self, name: str) -> bool:
        with self._lock:
            return self._circuit(name).state is BreakerState.CLOSED

    def open_names(self) -> frozenset[str]:
        """Systems no actuator may be sent to."""
        with self._lock:
            return frozenset(name for name, circuit in self._circuits.items() if circuit.state is not BreakerState.CLOSED)

    def seconds_since_closed(self) -> dict[str, float]:
        """For each circuit that was open and is closed again: how long ago it closed."""
        with self._lock:
            now = self.clock()
            return {
                name: now - circuit.closed
                for name, circuit in self._circuits.items()
                if circuit.closed is not None and circuit.state is BreakerState.CLOSED
            }

    def take_changes(self) -> list[BreakerChange]:
        """What changed since the last time: the loop shows it to operators, on its own connection."""
        with self._lock:
            changes, self._changes = self._changes, []
            return changes

    def _circuit(self, name: str) -> _Circuit:
        return self._circuits.setdefault(name, _Circuit())

    def _change(self, name: str, circuit: _Circuit, state: BreakerState) -> None:
        circuit.state = state
        self._changes.append(BreakerChange(name, state, circuit.failures, circuit.last_error))
