"""Long seeded runs of the state machine: `python -m tests.soak --minutes 30 --seed 1` (what `make soak` runs).

Owns a driver with weights: longer lives than hypothesis builds, the same rules and the same invariants. A failure prints the seed
and the steps of the life it happened in.
"""

import argparse
import random
import sys
import time
from collections import Counter
from typing import Any

import pytest

WEIGHTS: dict[str, tuple[float, dict[str, list[Any]]]] = {
    "ask": (6, {"which": [0, 1, 2], "state": ["RUNNING", "RUNNING", "STANDBY", "ARCHIVED"], "queue": [True, False]}),
    "write_a_file": (6, {"which": [0, 1, 2]}),
    "tick": (6, {}),
    "wake": (3, {"which": [0, 1, 2], "probe": [True, False]}),
    "run_one": (4, {"which": list(range(5)), "woken": [True, False]}),
    "run_all": (4, {}),
    "some_time_without_trouble": (5, {}),
    "run_one_killed": (2, {"which": list(range(5)), "at": [1, 2, 3, 4, 5, 6], "moment": ["before", "after"]}),
    "run_one_frozen": (1, {"which": list(range(5)), "at": [1, 2, 3, 4]}),
    "thaw": (1, {}),
    "deliver_again": (1, {"which": list(range(50))}),
    "coordinator_dies": (1, {}),
    "time_passes": (3, {"seconds": [3, 8, 20, 45, 130, 700]}),
    "storage_truncates": (0.5, {}),
    "storage_lists_the_past": (0.5, {}),
    "faults_are_lifted": (2, {}),
    "container_suffers": (1, {"which": [0, 1, 2], "how": ["kill", "remove", "deafen"]}),
    "meta_is_lost": (0.5, {"which": [0, 1, 2], "really": [0]}),
    "home_is_destroyed": (0.2, {"which": [0, 1, 2], "really": [0]}),
    "delete": (0.5, {"which": [0, 1, 2], "queue": [True, False], "really": [0]}),
    "recover": (2, {"which": [0, 1, 2], "strategy": ["reobserve", "reobserve", "restore_archive", "start_empty"]}),
}
NEEDS_WAITING = {"run_one", "run_one_killed", "run_one_frozen"}


class Life:
    """One life of a small world, driven by one seed."""

    def __init__(self, seed: int, *, steps: int) -> None:
        from tests.fakes import machine as parts

        self.parts = parts
        self.random, self.seed, self.steps = random.Random(seed), seed, steps
        self.taken: list[str] = []

    def live(self) -> int:
        """Drive it to its end; how many steps were taken. Raises what an invariant raised."""
        machine = self.parts.ControlMachine()
        names, weights = list(WEIGHTS), [weight for weight, _ in WEIGHTS.values()]
        faults = [("engine_fails", self.parts.RUNTIME_CALLS), ("storage_fails", self.parts.STORE_CALLS)]
        try:
            for state in ("RUNNING", "RUNNING", "ARCHIVED"):
                machine.create(state=state)
            for _ in range(self.steps):
                if self.random.random() < 0.05:
                    name, calls = self.random.choice(faults)
                    values: dict[str, Any] = {"call": self.random.choice(calls), "times": self.random.randint(1, 3)}
                    values["when"] = self.random.choice(["before", "after"])
                    if name == "engine_fails":
                        values["hard"] = self.random.random() < 0.5
                else:
                    (name,) = self.random.choices(names, weights)
                    values = {key: self.random.choice(choices) for key, choices in WEIGHTS[name][1].items()}
                if self._applies(machine, name):
                    self.taken.append(f"{name} {values}")
                    getattr(machine, name)(**values)
                    machine.the_world_is_in_order()
        finally:
            machine.teardown()
        return len(self.taken)

    def _applies(self, machine: Any, name: str) -> bool:
        if name in NEEDS_WAITING:
            return bool(machine.world.executor.waiting) and (name != "run_one_frozen" or len(machine.frozen) < 2)
        return {"thaw": bool(machine.frozen), "deliver_again": bool(machine.delivered)}.get(name, True)


def soak(seed: int, *, seconds: float, steps: int = 120, lives: int | None = None, tell: bool = False) -> Counter[str]:
    """Lives one after the other until the time is up or so many were lived; what was counted on the way."""
    from workspaces.models import Attempt, Transition, Workspace

    counted: Counter[str] = Counter()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and (lives is None or counted["lives"] < lives):
        life = Life(seed + counted["lives"], steps=steps)
        try:
            counted["steps"] += life.live()
        except BaseException:
            print(f"seed {life.seed}, after {len(life.taken)} steps:\n  " + "\n  ".join(life.taken[-60:]), file=sys.stderr)
            raise
        counted["lives"] += 1
        counted.update(f"run {action} {state}" for action, state in Attempt.objects.values_list("action", "state"))
        counted.update(f"to {operation}" for operation in Transition.objects.values_list("to_operation", flat=True))
        counted.update(f"end {phase} {reason}" for phase, reason in Workspace.objects.values_list("phase", "error_reason"))
        if tell and counted["lives"] % 20 == 0:
            print(f"{counted['lives']} lives, {counted['steps']} steps", flush=True)
    return counted


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    print(f"seed {options.seed}, {options.minutes} minutes", flush=True)
    arguments = ["tests/integration/test_state_machine.py", "-q", "-s", "-k", "seeded", "-p", "no:cacheprovider", "--timeout=0"]
    return int(pytest.main([*arguments, f"--soak-seed={options.seed}", f"--soak-seconds={options.minutes * 60}"]))


if __name__ == "__main__":
    sys.exit(main())
