"""Wishes, time, crashes, failures, duplicates and frozen processes in any order: no home is ever lost and everything converges."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.fakes.machine import ControlMachine
from tests.soak import soak

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.timeout(0)
def test_seeded_lives_lose_no_home_and_converge(request: pytest.FixtureRequest) -> None:
    """A fixed budget of steps in CI; as long as told, from any seed, in a soak."""
    seconds = request.config.getoption("--soak-seconds")
    counted = soak(request.config.getoption("--soak-seed"), seconds=seconds or 600, lives=None if seconds else 25, tell=bool(seconds))
    print(f"\n{counted['lives']} lives, {counted['steps']} steps")
    for what, times in sorted(counted.items()):
        print(f"{times:8} {what}")
    assert counted["run restore SUCCEEDED"] > 0
    assert counted["run archive SUCCEEDED"] > 0


@pytest.mark.timeout(400)
def test_no_order_of_events_loses_a_home_and_everything_converges() -> None:
    run_state_machine_as_test(
        ControlMachine,
        settings=settings(
            max_examples=60,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
            derandomize=False,
        ),
    )
