"""`manage.py up` as people run it: a real process tree in a temporary directory, started, stopped, killed and found again."""

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import psycopg
import pytest
from dotenv import dotenv_values

from codehub.embedded.service import free_ports

ROOT = Path(__file__).resolve().parents[2]
UP = [str(ROOT / "manage.py"), "up"]
NOT_OURS = ("DATABASE_", "REDIS_", "S3_", "AWS_", "CODEHUB_", "DJANGO_", "LOG_", "ALLOWED_")

pytestmark = pytest.mark.timeout(180)


class Up:
    """One run of `manage.py up`, with its output as lines."""

    def __init__(self, data_dir: Path, port: int, *, command: list[str], **extra: str) -> None:
        self.data_dir, self.port = data_dir, port
        env = {name: value for name, value in os.environ.items() if not name.startswith(NOT_OURS)}
        env |= {"CODEHUB_DATA_DIR": str(data_dir), "PORT": str(port), "PYTHONUNBUFFERED": "1", "CODEHUB_RUNTIME": "process", **extra}
        self.process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=data_dir.parent)
        self.lines: list[str] = []
        self._ended = False
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            for line in stream:
                with self._changed:
                    self.lines.append(line.rstrip())
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, words: str, *, after: int = 0, seconds: float = 90) -> str:
        def found() -> str | None:
            return next((line for line in self.lines[after:] if words in line), None)

        with self._changed:
            self._changed.wait_for(lambda: found() or self._ended, seconds)
            line = found()
        assert line is not None, f"{words!r} never came:\n{self.output}"
        return line

    def wait_ready(self) -> "Up":
        self.wait_for("Ctrl-C stops everything")
        return self

    def tree(self) -> list[psutil.Process]:
        own = psutil.Process(self.process.pid)
        return [own, *own.children(recursive=True)]

    def recorded(self, name: str) -> psutil.Process:
        pid, _ = json.loads((self.data_dir / "processes.json").read_text())[name]
        return psutil.Process(pid)

    def database(self) -> psycopg.Connection:
        url = dotenv_values(self.data_dir / "embedded.env")["DATABASE_URL"]
        assert url
        return psycopg.connect(url)

    def readyz(self) -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=10) as response:
            return int(response.status)

    def stop(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        code = self.process.wait(40)
        self._reader.join(5)
        return code


Starter = Callable[..., Up]


@pytest.fixture
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Starter]:
    runs: list[Up] = []

    def begin(data_dir: Path, *, port: int | None = None, command: list[str] | None = None, **extra: str) -> Up:
        runs.append(Up(data_dir, port or free_ports(1)[0], command=command or [sys.executable, *UP], **extra))
        return runs[-1]

    yield begin
    for run in runs:
        if run.process.poll() is None:
            run.stop(signal.SIGTERM)


def _gone(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=15)
    return not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def test_up_gets_ready_listens_on_loopback_alone_keeps_secrets_closed_and_ctrl_c_leaves_nothing(tmp_path: Path, start: Starter) -> None:
    run = start(tmp_path / "data").wait_ready()
    assert run.readyz() == 200
    password = (tmp_path / "data/admin-password").read_text()
    assert password in run.wait_for("password")
    tree = run.tree()
    listening = {c.laddr.ip for process in tree for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
    assert listening == {"127.0.0.1"}
    secrets = [path for path in (tmp_path / "data").iterdir() if path.is_file()]
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in secrets} == {path.name: "0o600" for path in secrets}
    assert not any(password in " ".join(process.cmdline()) for process in tree)
    assert run.stop() == 0
    assert _gone(tree)
    assert not [line for line in run.lines if "|" not in line], "every line has the name of its process before it"


def test_data_survives_an_ordered_stop_and_kill_9_of_every_process(tmp_path: Path, start: Starter) -> None:
    run = start(tmp_path / "data").wait_ready()
    with run.database() as database:
        database.execute("CREATE TABLE kept (n int)")
        database.execute("INSERT INTO kept VALUES (1)")
    assert run.stop(signal.SIGTERM) == 0

    again = start(tmp_path / "data").wait_ready()
    with again.database() as database:
        database.execute("INSERT INTO kept VALUES (2)")
    tree = again.tree()
    for process in tree:
        # Some end by themselves when the first are gone.
        with suppress(psutil.NoSuchProcess):
            process.kill()
    assert _gone(tree)

    last = start(tmp_path / "data").wait_ready()
    with last.database() as database:
        assert database.execute("SELECT n FROM kept ORDER BY n").fetchall() == [(1,), (2,)]
        assert database.execute("SELECT count(*) FROM auth_user WHERE username = 'admin'").fetchone() == (1,)
    assert last.readyz() == 200


def test_kill_9_of_up_alone_leaves_no_orphans_and_the_next_start_works(tmp_path: Path, start: Starter) -> None:
    run = start(tmp_path / "data").wait_ready()
    tree = run.tree()
    run.process.kill()
    assert _gone(tree)
    assert start(tmp_path / "data").wait_ready().readyz() == 200


def test_a_second_up_on_the_same_directory_is_refused_and_a_busy_port_is_named(tmp_path: Path, start: Starter) -> None:
    run = start(tmp_path / "data").wait_ready()
    second = start(tmp_path / "data")
    assert second.process.wait(30) == 1
    assert "CodeHub already runs on" in second.wait_for("already runs")
    other = start(tmp_path / "other", port=run.port)
    assert other.process.wait(30) == 1
    assert f"PORT {run.port}" in other.wait_for("Address already in use")
    assert run.readyz() == 200


def test_a_child_that_dies_is_started_again_and_the_reason_is_printed(tmp_path: Path, start: Starter) -> None:
    run = start(tmp_path / "data").wait_ready()
    for name in ("redis", "postgres", "web"):
        before = run.recorded(name)
        seen = len(run.lines)
        before.kill()
        assert "was ended by SIGKILL; starting it again" in run.wait_for(f"{name} was ended by", after=seen)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if run.readyz() == 200:
                break
        except OSError:
            time.sleep(0.1)
    assert run.readyz() == 200
    assert run.stop() == 0


def test_services_that_are_given_are_not_embedded(tmp_path: Path, start: Starter) -> None:
    given = {name: os.environ[name] for name in ("REDIS_URL", "S3_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    run = start(tmp_path / "data", CODEHUB_ADMIN_PASSWORD="chosen-by-hand", **given).wait_ready()
    assert "embedded: postgres" in run.lines[0]
    assert "redis" not in run.lines[0]
    assert set(dotenv_values(tmp_path / "data/embedded.env")) == {"DATABASE_URL"}
    assert "chosen-by-hand" not in run.output
    assert not (tmp_path / "data/admin-password").exists()


def _become(uid: int, gid: int) -> list[str]:
    """Words before a command that run it as another user, who may also read an interpreter in root's closed home."""
    reachable = all(directory.stat().st_mode & 0o001 for directory in Path(sys.executable).resolve().parents)
    reading = [] if reachable else ["--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"]
    return ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", *reading, "--"]


@pytest.mark.skipif(os.geteuid() != 0, reason="every other test of this file already runs as an ordinary user")
def test_up_started_by_an_ordinary_user_runs_everything_as_that_user(start: Starter) -> None:
    nobody = pwd.getpwnam("nobody")
    home = Path(tempfile.mkdtemp(prefix="codehub-home-", dir="/var/tmp"))
    os.chown(home, nobody.pw_uid, nobody.pw_gid)
    command = [*_become(nobody.pw_uid, nobody.pw_gid), sys.executable, *UP]
    try:
        run = start(home / "data", command=command, HOME=str(home)).wait_ready()
        assert {process.uids().effective for process in run.tree()} == {nobody.pw_uid}
        assert run.readyz() == 200
        assert run.stop() == 0
    finally:
        shutil.rmtree(home)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root must give up its rights for PostgreSQL")
def test_up_started_by_root_below_a_closed_directory_runs_postgresql_as_somebody_else(tmp_path: Path, start: Starter) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    run = start(closed / "data").wait_ready()
    assert run.recorded("postgres").uids().effective != 0
    assert closed.stat().st_mode & 0o777 == 0o700
    tree = run.tree()
    run.process.kill()
    assert _gone(tree)
