"""Real PostgreSQL, Redis and S3 for the whole test session, before Django reads its settings.

Owns the session's services and temporary directory. With pytest-xdist the controller's PostgreSQL and Redis are
shared: each worker has its own database in both, its own channels and its own S3 server.
"""

import os
import shutil
import tempfile
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path

import django
import pytest
from django.apps import apps
from django.db import connection

from codehub.config import load
from codehub.embedded import Seaweed, services
from codehub.embedded.process import Child
from tests.available import missing

# A migration's module name is not an identifier.
fill_catalogue = import_module("workspaces.migrations.0002_installation_and_catalogue").fill

_stack = ExitStack()
_s3: list[Seaweed] = []


def _worker_number(config: pytest.Config) -> int | None:
    """0, 1, … in a pytest-xdist worker, None in the controller or an ordinary session."""
    workerinput = getattr(config, "workerinput", None)
    return int(workerinput["workerid"].removeprefix("gw")) if workerinput else None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak-seed", type=int, default=1, help="First seed of the long runs of the state machine.")
    parser.addoption("--soak-seconds", type=float, default=0, help="How long they run; 0: the fixed number CI takes.")


def pytest_configure(config: pytest.Config) -> None:
    worker = _worker_number(config)
    directory = Path(tempfile.mkdtemp(prefix="codehub-tests-"))
    directory.chmod(0o755)
    _stack.callback(shutil.rmtree, directory, ignore_errors=True)
    try:
        if worker is None:
            os.environ |= _stack.enter_context(services(directory, {"postgres", "redis"}, durable=False))
        else:
            os.environ["REDIS_URL"] = os.environ["REDIS_URL"].rpartition("/")[0] + f"/{worker + 1}"
            os.environ["REDIS_CHANNEL_SSE_PREFIX"] = f"codehub-{worker}:sse"
            os.environ["REDIS_CHANNEL_WAKE_PREFIX"] = f"codehub-{worker}:wake"
        s3 = Seaweed(directory / "s3", bucket="codehub-tests")
        s3.prepare()
        _s3.append(s3)
        os.environ |= s3.env()
        os.environ |= {
            "CODEHUB_DATA_DIR": str(directory),
            "DJANGO_SECRET_KEY": "only-for-tests-" + "0123456789abcdef" * 3,
            "DJANGO_SETTINGS_MODULE": "codehub.settings",
            "ALLOWED_HOSTS": "testserver,localhost,127.0.0.1,.localhost",
            "LOG_LEVEL": "WARNING",
        }
        load.cache_clear()
        django.setup()
        if worker is None and config.getoption("numprocesses", default=None):
            # A worker that inherited it would read its settings before the lines above have given it its own.
            del os.environ["DJANGO_SETTINGS_MODULE"]
        # After Django: these import models.
        config.pluginmanager.import_plugin("tests.integration.proxy_fixtures")
        config.pluginmanager.import_plugin("tests.live")
    except BaseException:
        _stack.close()
        raise


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test whose engine or browser is missing fails and says so: nothing is left out in silence."""
    for need, why in missing().items():
        if item.get_closest_marker(need) is not None:
            pytest.fail(f"{why}; leave such tests out with -m 'not {need}'", pytrace=False)


# Whole process trees, engines and browsers, the longest files first: with pytest-xdist they must not be what everybody waits for.
TREES = ("tests/e2e/test_proxy_browser", "tests/fault/test_kill_table", "tests/e2e/", "tests/integration/test_up", "tests/fault/")
# Nothing here depends on how busy the machine is: what fails once has a reason.
LOGIC = ("tests/unit", *(f"tests/integration/test_{name}" for name in ("state_machine", "control", "services", "crowds")))
LONG = (*TREES, "tests/integration/test_api_", "tests/integration/test_state_machine", "tests/contract/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first. Real parts on a busy machine get one second chance, whole trees two, and the summary says who took it."""
    for item in items:
        if not item.nodeid.startswith(LOGIC):
            item.add_marker(pytest.mark.flaky(reruns=2 if item.nodeid.startswith(TREES) else 1))
    items.sort(key=lambda item: next((place for place, start in enumerate(LONG) if item.nodeid.startswith(start)), len(LONG)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tables that tests recorded, from whichever process ran them."""
    reports = [report for reports in terminalreporter.stats.values() for report in reports if isinstance(report, pytest.TestReport)]
    for report in reports:
        lines = [str(line) for name, line in report.user_properties if name == "table"]
        if lines and report.when == "call":
            terminalreporter.section(lines[0])
            terminalreporter.write_line("\n".join(lines[1:]))


def pytest_unconfigure(config: pytest.Config) -> None:
    _stack.close()


@pytest.fixture(autouse=True)
def _catalogue(request: pytest.FixtureRequest) -> None:
    """A test that commits ends with every table emptied: give the next one the first migration's rows back."""
    names = {"db", "transactional_db", "django_db_serialized_rollback"}
    if request.node.get_closest_marker("django_db") or names & set(request.fixturenames):
        # Asked for here and not as an argument: a test without the mark gets no database, nor a transaction around it.
        request.getfixturevalue("_django_db_helper")
        fill_catalogue(apps, None)


@pytest.fixture(scope="session")
def s3() -> dict[str, str]:
    """The session's S3 server, started when first asked for; the value is the settings that lead to it."""
    (service,) = _s3
    child = Child(service.name, service.command(), on_line=lambda _line: None)
    _stack.callback(service.cleanup)
    _stack.callback(child.stop)
    service.wait_ready()
    return service.env()


@pytest.fixture
def subprocess_env(transactional_db: None) -> dict[str, str]:
    """An environment in which a `manage.py` command started by a test works on this test's database."""
    base = os.environ["DATABASE_URL"].rpartition("/")[0]
    return {**os.environ, "DATABASE_URL": f"{base}/{connection.settings_dict['NAME']}", "PYTHONUNBUFFERED": "1"}
