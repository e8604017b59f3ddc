"""Behind PgBouncer: in transaction mode the coordinator refuses and says why, in session mode it leads."""

import os
import pwd
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from codehub.embedded.service import free_ports
from tests.fault.processes import ROOT

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def pooler(subprocess_env: dict[str, str], tmp_path: Path) -> Iterator[Callable[[str], dict[str, str]]]:
    """Starts a PgBouncer in the given mode and gives the environment that leads through it."""
    running: list[subprocess.Popen[bytes]] = []
    binary = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    assert binary, "pgbouncer is missing: apt-get install pgbouncer"

    def begin(mode: str) -> dict[str, str]:
        url = urlsplit(subprocess_env["DATABASE_URL"])
        (port,) = free_ports(1)
        name = url.path.lstrip("/")
        lines = [
            "[databases]",
            f"{name} = host={url.hostname} port={url.port} dbname={name} user={url.username} password={url.password}",
            "[pgbouncer]",
            "listen_addr = 127.0.0.1",
            f"listen_port = {port}",
            "unix_socket_dir =",
            "auth_type = any",
            f"pool_mode = {mode}",
            "default_pool_size = 5",
            f"logfile = {tmp_path}/pgbouncer.log",
        ]
        configuration = tmp_path / "pgbouncer.ini"
        configuration.write_text("\n".join(lines) + "\n")
        argv = [binary, "-q", str(configuration)]
        user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        if user is not None:
            # It refuses to run as root.
            for path in (configuration, tmp_path):
                os.chown(path, user.pw_uid, user.pw_gid)
            for step in tmp_path.parents:
                if step.stat().st_uid == 0 and step != Path("/"):
                    step.chmod(step.stat().st_mode | 0o111)
        running.append(subprocess.Popen(argv, user=user.pw_uid if user else None, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        through = f"postgresql://{url.username}:{url.password}@127.0.0.1:{port}/{name}"
        deadline = time.monotonic() + 20
        while True:
            try:
                psycopg.connect(through, connect_timeout=2).close()
                break
            except psycopg.OperationalError:
                assert time.monotonic() < deadline, (tmp_path / "pgbouncer.log").read_text()
                time.sleep(0.05)
        return {**subprocess_env, "DATABASE_URL": through}

    yield begin
    for process in running:
        process.terminate()
        process.wait()


def _run(env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "manage.py", "run_coordinator", "--once", "--loops", "ttl"]
    return subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("mode", ["transaction", "statement"])
def test_a_pooler_that_does_not_keep_sessions_is_refused_with_the_reason(pooler: Callable[[str], dict[str, str]], mode: str) -> None:
    result = _run(pooler(mode))
    assert result.returncode != 0
    assert "pooler" in result.stderr


def test_a_pooler_in_session_mode_is_accepted(pooler: Callable[[str], dict[str, str]]) -> None:
    result = _run(pooler("session"))
    assert "pooler" not in result.stderr
