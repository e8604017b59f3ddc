"""The whole of CodeHub on one machine: embedded services, schema, web, coordinator, in this order, under one lock.

Owns start-up and shut-down of `manage.py up`. Holds no settings of its own and never opens the database itself:
this process began before there was one.
"""

import fcntl
import http.client
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from codehub.config import EMBEDDED_ENV_FILE, Config
from codehub.embedded.console import Console
from codehub.embedded.orchestrate import build_services
from codehub.embedded.service import Command, EmbeddedError, ensure_directory, why_not_bindable, write_private
from codehub.embedded.supervisor import Program, Supervisor

WEB_TIER, STORES_TIER, DATABASE_TIER = 0, 1, 2
SETTLE_SECONDS = 15.0


class StopRequestedError(Exception):
    """SIGINT, SIGTERM or SIGHUP: somebody wants CodeHub to stop."""


class Stack:
    """One run of CodeHub. `given` are the settings people gave, without what an earlier run left in the data directory;
    `end_rest` ends what our programs started to outlive them, and says how many."""

    def __init__(
        self, given: Config, *, manage: Path, workers: dict[str, list[str]], console: Console, end_rest: Callable[[Path], int]
    ) -> None:
        self._given = given
        self._manage = manage
        self._workers = workers
        self._console = console
        self._end_rest = end_rest
        self._data_dir = given.codehub_data_dir.absolute()
        self._supervisor = Supervisor(self._data_dir, console)
        self._env: dict[str, str] = {}

    def run(self) -> None:
        """Start everything, keep it running, and return once it was asked to stop and has."""
        ensure_directory(self._data_dir)
        with _only_one(self._data_dir), _stop_signals():
            try:
                self._start()
                self._supervisor.supervise()
            except StopRequestedError:
                self._console.say("up", "stopping")
            finally:
                self._stop()

    def _start(self) -> None:
        self._supervisor.stop_leftovers()
        if problem := why_not_bindable(self._given.port, host=self._given.host):
            raise EmbeddedError(
                f"nothing can listen on HOST {self._given.host}, PORT {self._given.port}: {problem}. Set PORT to a free one."
            )
        self._start_services()
        self._prepare_database()
        for name, arguments in self._workers.items():
            self._supervisor.start(Program(name, self._python(*arguments), WEB_TIER))
        self._supervisor.supervise(until=self._answers)
        # The coordinator says which runtime it took and why; the address and password come after it, where people look.
        patience = time.monotonic() + SETTLE_SECONDS
        self._supervisor.supervise(until=lambda: self._supervisor.has_spoken("coordinator") or time.monotonic() > patience)
        self._say_ready()

    def _start_services(self) -> None:
        given = {"postgres": self._given.database_url, "redis": self._given.redis_url, "s3": self._given.s3_endpoint_url}
        wanted = {name for name, url in given.items() if not url}
        services = build_services(self._data_dir, wanted, bucket=self._given.s3_bucket)
        self._console.say("up", f"data in {self._data_dir}; embedded: {', '.join(service.name for service in services) or 'nothing'}")
        for service in services:
            service.prepare()
            self._supervisor.start_service(service, tier=DATABASE_TIER if service.name == "postgres" else STORES_TIER)
            self._env |= service.env()
        for service in services:
            self._supervisor.await_service(service)
        lines = [f"{name}={shlex.quote(value)}" for name, value in self._env.items()]
        write_private(self._data_dir / EMBEDDED_ENV_FILE, "\n".join(lines) + "\n")

    def _prepare_database(self) -> None:
        command = self._python("prepare_database")
        result = subprocess.run(command.argv, env={**os.environ, **command.env}, text=True, capture_output=True, check=False)
        if result.returncode != 0:
            raise EmbeddedError(f"the database could not be prepared:\n{result.stderr.strip() or result.stdout.strip()}")
        if result.stdout.strip():
            self._console.say("database", result.stdout.strip())

    def _python(self, *arguments: str) -> Command:
        """One of our own management commands, with the embedded services' settings and logs for people."""
        env = {"CODEHUB_DATA_DIR": str(self._data_dir), "PYTHONUNBUFFERED": "1", **self._env}
        if self._given.log_format == "auto":
            env["LOG_FORMAT"] = "console"
        if self._console.in_color:
            env["FORCE_COLOR"] = "1"
        return Command([sys.executable, str(self._manage), *arguments], env=env, stop_seconds=12.0)

    def _answers(self) -> bool:
        """One look at `/readyz`, as a visitor of the first allowed host."""
        host = self._given.host if self._given.host not in {"0.0.0.0", "::"} else "127.0.0.1"  # noqa: S104 (compared, not bound)
        allowed = next((name.lstrip(".") for name in self._given.allowed_hosts if name != "*"), "localhost")
        connection = http.client.HTTPConnection(host, self._given.port, timeout=5)
        try:
            connection.request("GET", "/readyz", headers={"Host": allowed})
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _say_ready(self) -> None:
        password_file = self._data_dir / "admin-password"
        if password_file.exists():
            password = f"{password_file.read_text().strip()}  (also in {password_file})"
        else:
            password = "the one you chose"  # noqa: S105 (words for people)
        self._console.say(
            "up",
            f"ready    {self._given.public_url}\nuser     admin\npassword {password}\nCtrl-C stops everything; starting again finds everything.",
        )

    def _stop(self) -> None:
        def hurry(number: int, frame: FrameType | None) -> None:
            self._supervisor.kill_all()

        for number in STOP_SIGNALS:
            signal.signal(number, hurry)
        self._supervisor.stop_all()
        if ended := self._end_rest(self._data_dir):
            self._console.say("up", f"ended {ended} workspaces that ran as processes; the next start runs them again")
        self._console.say("up", "stopped")


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def _stop_signals() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise StopRequestedError

    before = {number: signal.signal(number, stop) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _only_one(data_dir: Path) -> Iterator[None]:
    """Hold the data directory's lock. The kernel drops it with the process, so a killed run never blocks the next."""
    descriptor = os.open(data_dir / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = file.read().strip() or "unknown"
            raise EmbeddedError(
                f"CodeHub already runs on {data_dir} (process {holder}). Stop that one first, or set CODEHUB_DATA_DIR and PORT to run another."
            ) from None
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        yield
