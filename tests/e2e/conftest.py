"""A real web server, the real events loop and a real browser on the test's database.

The server and the browser live for one module, so that neither a leader of theirs nor Playwright's event loop disturbs
other tests; each test commits its own rows and they are taken away after it.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from django.apps import apps
from django.conf import settings
from django.contrib.auth.hashers import make_password
from django.db import connection
from django.test import Client
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect, sync_playwright

if TYPE_CHECKING:
    # Loaded before Django is set up, when tests of this folder are named on the command line.
    from django.contrib.auth.models import User

    from workspaces.models import Workspace

# Playwright's synchronous interface keeps an event loop in this thread; the ORM is used between its calls, never inside.
os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"

fill_catalogue = import_module("workspaces.migrations.0002_installation_and_catalogue").fill

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]
PASSWORD = "correct horse battery"
_content_types: list[Any] = []


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until(check: Callable[[], bool], process: subprocess.Popen[bytes], *, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not check():
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"{process.args!r} did not come up")
        time.sleep(0.1)


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except (URLError, OSError):
        return False


@pytest.fixture(scope="module")
def site(django_db_setup: None, django_db_blocker: Any) -> Iterator[str]:
    """The address of CodeHub's web process, with the events loop beside it."""
    with django_db_blocker.unblock():
        name = connection.settings_dict["NAME"]
        # The tests of an earlier module left the tables empty, and without an installation nothing starts.
        fill_catalogue(apps, None)
        _content_types[:] = apps.get_model("contenttypes", "ContentType").objects.all()
    port = _free_port()
    base = os.environ["DATABASE_URL"].rpartition("/")[0]
    env = {
        **os.environ,
        "DATABASE_URL": f"{base}/{name}",
        "PORT": str(port),
        "CODEHUB_WORKSPACE_DOMAIN": "none",
        "CODEHUB_RUNTIME": "process",
        "PYTHONUNBUFFERED": "1",
    }
    env.pop("DJANGO_ALLOW_ASYNC_UNSAFE")
    web = [
        sys.executable,
        "-m",
        "uvicorn",
        "codehub.asgi:application",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--log-level",
        "warning",
    ]
    events = [sys.executable, "manage.py", "run_coordinator", "--loops", "events"]
    processes = [subprocess.Popen(command, cwd=ROOT, env=env) for command in (web, events)]
    try:
        _wait_until(lambda: _answers(f"http://127.0.0.1:{port}/healthz"), processes[0])
        # Without its leader no change would reach a page.
        with django_db_blocker.unblock():
            leads = apps.get_model("workspaces", "LoopLease").objects.filter(loop="events", holder__endswith=f":{processes[1].pid}")
            _wait_until(leads.exists, processes[1])
            connection.close()
        yield f"http://127.0.0.1:{port}"
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    executable = shutil.which("chromium") or shutil.which("chromium-browser")
    assert executable, "Chromium is not installed"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def people(site: str, transactional_db: None, django_user_model: "type[User]") -> "dict[str, User]":
    """A user and an operator."""
    # Emptied tables get new content types, and the web process remembers those it has seen.
    apps.get_model("contenttypes", "ContentType").objects.all().delete()
    apps.get_model("contenttypes", "ContentType").objects.bulk_create(_content_types)
    encoded = _slow_hash()
    return {
        "mina": django_user_model.objects.create(username="mina", password=encoded),
        "root": django_user_model.objects.create(username="root", password=encoded, is_staff=True, is_superuser=True),
    }


@cache
def _slow_hash() -> str:
    return make_password(PASSWORD)


@pytest.fixture
def open_browser(site: str, chromium: Browser) -> Iterator[Callable[..., BrowserContext]]:
    """Makes separate browsers (cookies of their own) that collect script errors; a test with one fails."""
    contexts: list[BrowserContext] = []
    problems: list[str] = []

    def make(**options: Any) -> BrowserContext:
        context = chromium.new_context(
            base_url=site, **{"viewport": {"width": 1440, "height": 900}, "timezone_id": "Asia/Seoul", **options}
        )
        context.set_default_timeout(15_000)
        context.on("weberror", lambda error: problems.append(str(error.error)))
        context.on("console", lambda message: problems.append(message.text) if "Content Security Policy" in message.text else None)
        contexts.append(context)
        return context

    yield make
    for context in contexts:
        context.close()
    assert problems == []


@pytest.fixture
def sign_in(
    people: "dict[str, User]", open_browser: Callable[..., BrowserContext], site: str, django_user_model: "type[User]"
) -> Callable[..., Page]:
    """A page of a browser in which this person is signed in. The form itself is tried by the keyboard's test."""

    def sign_in(name: str = "mina", **options: Any) -> Page:
        client = Client()
        client.force_login(django_user_model.objects.get(username=name))
        context = open_browser(**options)
        session = client.cookies[settings.SESSION_COOKIE_NAME].value
        context.add_cookies([{"name": settings.SESSION_COOKIE_NAME, "value": session, "url": site}])
        page = context.new_page()
        page.goto("/")
        return page

    return sign_in


@pytest.fixture(autouse=True)
def patient() -> None:
    # Nothing is asserted about time: this only bounds how long a broken test takes.
    expect.set_options(timeout=15_000)


def observe(workspace: "Workspace", **columns: Any) -> None:
    """What the controller would record; the database tells the events loop by itself."""
    type(workspace).objects.filter(pk=workspace.pk).update(**columns)


def card(page: Page, workspace: "Workspace") -> Locator:
    return page.locator(f"#card-{workspace.pk}")


def live(page: Page) -> None:
    """The page has its connection and was shown the current state."""
    expect(page.locator("html")).to_have_attribute("data-connection", "on")
