"""The supervisor of `up`: what it does when a program of its own does not come up."""

import io
from pathlib import Path

import pytest

from codehub.embedded.console import Console
from codehub.embedded.service import Command, EmbeddedError
from codehub.embedded.supervisor import Supervisor


class Stillborn:
    """A service whose program ends at once."""

    name = "stillborn"

    def prepare(self) -> None: ...

    def command(self) -> Command:
        return Command(["sh", "-c", "echo no space left on device; exit 3"])

    def env(self) -> dict[str, str]:
        return {}

    def wait_ready(self, *, seconds: float = 60.0) -> None:
        raise EmbeddedError("it does not answer")

    def cleanup(self) -> None: ...

    def is_noteworthy(self, line: str) -> bool:
        return True


def test_a_program_that_died_is_not_waited_for_and_its_last_words_are_told(tmp_path: Path) -> None:
    supervisor, service = Supervisor(tmp_path, Console(io.StringIO())), Stillborn()
    supervisor.start_service(service, tier=0)
    with pytest.raises(EmbeddedError, match=r"exit code 3 before it was ready(.|\n)*no space left on device"):
        supervisor.await_service(service)
    supervisor.stop_all()
