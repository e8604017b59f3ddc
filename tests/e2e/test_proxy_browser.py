"""A person in a real browser: opens, edits, runs, walks away, comes back; and a hostile page that tries to use them.

Everything is real: `manage.py up`, Docker, code-server, JupyterLab and Chromium. One server of each runtime and one workspace
serve several tests, and the tabs that are watched for a while stand in a second browser meanwhile. Screenshots and the times
seen are kept in `artifacts/proxy`.
"""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Response, expect, sync_playwright

from tests.e2e.test_circle import PASSWORD, Person, in_container
from tests.integration.test_up import UP, Up
from tests.live import free_port

pytestmark = [pytest.mark.timeout(600), pytest.mark.docker, pytest.mark.browser, pytest.mark.slow]

ARTIFACTS = Path(__file__).resolve().parents[2] / "artifacts" / "proxy"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
TTL = 30
BETWEEN_KEYS = 20
FLUSH = 1
SLOW = 90_000
# On this machine and yet not one of its own names: where workspaces share the dashboard's origin, in path form.
ELSEWHERE = "dashboard.localhost"


@contextmanager
def running(data_dir: Path, runtime: str) -> Iterator[Person]:
    up = Up(
        data_dir,
        free_port(),
        command=[sys.executable, *UP],
        ALLOWED_HOSTS=f"localhost,127.0.0.1,{ELSEWHERE}",
        CODEHUB_ADMIN_PASSWORD=PASSWORD,
        CODEHUB_RUNTIME=runtime,
        LIMIT_MAX_RUNNING_PER_USER="5",
        TTL_STANDBY_SECONDS="0",
        TTL_MIN_SECONDS="1",
        ACTIVITY_FLUSH_INTERVAL=str(FLUSH),
        COORDINATOR_TTL_INTERVAL="1",
    )
    try:
        up.wait_for("Ctrl-C stops everything", seconds=300)
        person = Person(up.port, up.data_dir)
        yield person
        person.http.close()
    finally:
        up.stop()


@pytest.fixture(scope="module")
def on_docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    with running(tmp_path_factory.mktemp("docker") / "data", "docker") as person:
        yield person


@pytest.fixture(scope="module")
def as_processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    with running(tmp_path_factory.mktemp("process") / "data", "process") as person:
        yield person


@contextmanager
def chromium() -> Iterator[Browser]:
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as launched:
        yield launched


@contextmanager
def workspaces(person: Person, *names: str, image: str) -> Iterator[list[str]]:
    """Running workspaces, started side by side."""
    made = [person.create(name=name, image=image, standby_ttl_seconds=0) for name in names]
    try:
        for workspace in made:
            person.wait(workspace, "RUNNING")
        yield made
    finally:
        for workspace in made:
            person.delete(workspace)


@pytest.fixture(scope="module")
def editor(on_docker: Person) -> Iterator[str]:
    with workspaces(on_docker, "editor", image="code-server") as (workspace,):
        yield workspace


@pytest.fixture(scope="module")
def notebook(as_processes: Person) -> Iterator[str]:
    with workspaces(as_processes, "notebook", image="jupyterlab") as (workspace,):
        yield workspace


@pytest.fixture(scope="module")
def tabs(on_docker: Person) -> Iterator[Future[dict[str, Any]]]:
    """Three tabs that are watched for a minute, while other tests go on."""
    with ThreadPoolExecutor(1) as beside:
        yield beside.submit(watch_three_tabs, on_docker)


def sign_in(browser: Browser, base: str) -> Page:
    page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
    page.set_default_timeout(SLOW)
    page.goto(f"{base}/login/")
    page.fill("input[name=username]", "admin")
    page.fill("input[name=password]", PASSWORD)
    page.press("input[name=password]", "Enter")
    page.wait_for_url(f"{base}/")
    return page


def dashboard(person: Person, form: str) -> str:
    return str(person.http.base_url) if form == "own" else f"http://{ELSEWHERE}:{person.http.base_url.port}"


def wait_for_ide(page: Page) -> None:
    page.wait_for_selector(".monaco-workbench .part.editor")
    page.wait_for_selector(".monaco-workbench .part.statusbar [id='status.host']")


def open_terminal(page: Page) -> None:
    page.keyboard.press("Control+`")
    page.wait_for_selector(".terminal-wrapper.active .xterm-screen")
    # A click, because the IDE's own panels take the focus as they appear.
    page.locator(".terminal-wrapper.active .xterm-screen").click()


def eventually(condition: Callable[[], bool], *, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.2)


def file_is(workspace: str, name: str, text: str) -> bool:
    return text in in_container(workspace, f"cat /home/coder/project/{name} 2>/dev/null || true")


@pytest.mark.usefixtures("tabs")
@pytest.mark.parametrize("form", ["own", "path"])
def test_code_server_opens_saves_a_file_and_runs_a_command(browser: Browser, on_docker: Person, editor: str, form: str) -> None:
    in_container(editor, f"echo start > /home/coder/project/note-{form}.txt")
    base = dashboard(on_docker, form)
    page = sign_in(browser, base)
    page.goto(f"{base}/w/{editor}/")
    wait_for_ide(page)
    assert page.url.startswith(f"http://{editor}.localhost:" if form == "own" else f"{base}/w/{editor}/")
    assert "codehub_ticket" not in page.url
    page.keyboard.press("Control+p")
    page.keyboard.type(f"note-{form}.txt", delay=20)
    page.wait_for_selector(".quick-input-list .monaco-list-row")
    page.keyboard.press("Enter")
    page.locator(".monaco-editor .view-line", has_text="start").first.click()
    page.keyboard.type("typed in a browser ")
    page.keyboard.press("Control+s")
    eventually(lambda: file_is(editor, f"note-{form}.txt", "typed in a browser"))
    open_terminal(page)
    page.keyboard.type(f"echo $((6*7)) > answer-{form}.txt\n", delay=20)
    eventually(lambda: file_is(editor, f"answer-{form}.txt", "42"))
    page.screenshot(path=ARTIFACTS / f"code-server-{form}.png")
    used = on_docker.http.get(f"/api/v1/workspaces/{editor}").json()["last_activity"]["kind"]
    assert used in {"typing", "terminal", "pointer", "traffic"}
    page.context.close()


HOSTILE = """<!doctype html><title>hostile</title><script>
const base = DASHBOARD;
const tries = {
  read: () => fetch(base + '/api/v1/workspaces', {credentials: 'include'}).then(r => r.text()),
  write: () => fetch(base + '/api/v1/workspaces', {method: 'POST', credentials: 'include', mode: 'no-cors',
                headers: {'Content-Type': 'text/plain'}, body: '{"name":"hacked"}'}).then(r => { if (r.type === 'opaque') throw 'blind'; return r.text(); }),
  socket: () => new Promise((yes, no) => { const s = new WebSocket(base.replace('http', 'ws') + '/ws/dashboard/'); s.onmessage = yes; s.onerror = no; s.onclose = no; }),
  cookie: () => { document.cookie = 'codehub_session=evil; path=/'; document.cookie = 'codehub_session=evil; domain=localhost; path=/'; throw 'tried'; },
  worker: () => navigator.serviceWorker.register('/sw.js', {scope: '/'}).then(() => { throw 'own origin only'; }),
  parent: () => opener.location.href,
};
(async () => {
  const got = {};
  for (const [name, attempt] of Object.entries(tries)) {
    try { got[name] = String(await attempt()); } catch (error) { got[name] = ''; }
  }
  document.title = 'done'; window.result = got;
})();
</script>"""


SERVER = """
require('http').createServer((request, response) => {
  response.writeHead(200, {'Content-Type': 'text/html', 'Service-Worker-Allowed': '/', 'Set-Cookie': 'codehub_session=evil; Domain=localhost; Path=/'});
  response.end(PAGE);
}).listen(3000, '0.0.0.0');
"""


@pytest.mark.usefixtures("tabs")
def test_hostile_page_of_a_workspace_reaches_nothing_of_the_dashboard(browser: Browser, on_docker: Person, editor: str) -> None:
    """Served by the workspace itself, on a forwarded port, and opened by its owner who is signed in."""
    base = dashboard(on_docker, "own")
    # A server that gives the same page to every request, with headers of its own that must not reach far.
    script = SERVER.replace("PAGE", json.dumps(HOSTILE.replace("DASHBOARD", f"'{base}'")))
    subprocess.run(["docker", "exec", "-d", f"ws-{editor}", "/usr/lib/code-server/bin/node", "-e", script], check=True, timeout=60)
    page = sign_in(browser, base)
    victim = page.context.new_page()
    eventually(lambda: bool(victim.goto(f"{base}/w/{editor}/ports/3000/").ok))  # type: ignore[union-attr]
    assert victim.url.startswith(f"http://3000-{editor}.localhost:")
    expect(victim).to_have_title("done", timeout=SLOW)
    assert set(victim.evaluate("window.result").values()) == {""}
    victim.screenshot(path=ARTIFACTS / "hostile.png")
    # The owner is still signed in with the session they had, and nothing was created.
    page.goto(f"{base}/")
    assert page.url == f"{base}/"
    assert "hacked" not in on_docker.http.get("/api/v1/workspaces").text
    page.context.close()


@pytest.mark.parametrize("form", ["own", "path"])
def test_jupyterlab_runs_a_cell_on_the_process_runtime(browser: Browser, as_processes: Person, notebook: str, form: str) -> None:
    base = dashboard(as_processes, form)
    page = sign_in(browser, base)
    # The layout of the other form's test is kept with the home: begin afresh.
    page.goto(f"{base}/w/{notebook}/lab?reset")
    page.wait_for_selector(".jp-Launcher")
    assert page.url.startswith(f"http://{notebook}.localhost:" if form == "own" else f"{base}/w/{notebook}/lab")
    page.locator(".jp-LauncherCard[data-category=Notebook]").first.click()
    cell = page.locator(".jp-Notebook .jp-CodeCell .cm-content").first
    cell.click()
    page.wait_for_selector(".jp-NotebookPanel-toolbar [data-status='idle']")
    page.keyboard.type("print(6 * 7)")
    page.keyboard.press("Shift+Enter")
    expect(page.locator(".jp-OutputArea-output").first).to_have_text("42", timeout=SLOW)
    page.screenshot(path=ARTIFACTS / f"jupyterlab-{form}.png")
    page.context.close()


def test_forgotten_tab_stops_and_a_used_one_stays_awake(
    tabs: Future[dict[str, Any]], record_property: Callable[[str, object], None]
) -> None:
    seen = tabs.result()
    assert {name: body["phase"] for name, body in seen["at the end"].items()} == {
        "forgotten": "STANDBY",
        "typed": "RUNNING",
        "printing": "RUNNING",
    }
    assert seen["at the end"]["typed"]["last_activity"]["kind"] == "typing"
    assert seen["at the end"]["printing"]["last_activity"]["kind"] == "terminal"
    # The tab that was left stays where it is: what its IDE tries by itself wakes nothing.
    assert seen["at the end"]["forgotten"]["desired_state"] == "STANDBY"
    for name, seconds in seen["seconds"].items():
        record_property(name, round(seconds, 2))
    (ARTIFACTS / "seconds.json").write_text(json.dumps(seen["seconds"], indent=1))


def test_visit_to_a_stopped_workspace_ends_in_its_ide_without_a_click(tabs: Future[dict[str, Any]]) -> None:
    seen = tabs.result()
    assert seen["woken"].startswith(f"http://{seen['at the end']['forgotten']['id']}.localhost:")


def watch_three_tabs(person: Person) -> dict[str, Any]:
    """One tab is left alone, one gets a key now and then, in one a terminal prints; then the one that stopped is visited."""
    names = ("forgotten", "typed", "printing")
    base = dashboard(person, "own")
    with workspaces(person, *names, image="code-server") as ids, chromium() as browser:
        made = dict(zip(names, ids, strict=True))
        first = sign_in(browser, base)
        pages = {name: first if name == "forgotten" else first.context.new_page() for name in names}
        for name, page in pages.items():
            page.set_default_timeout(SLOW)
            page.goto(f"{base}/w/{made[name]}/", wait_until="commit")
        for page in pages.values():
            wait_for_ide(page)
        pages["printing"].bring_to_front()
        open_terminal(pages["printing"])
        pages["printing"].keyboard.type("while true; do date | tee -a printed.txt; sleep 1; done\n", delay=20)
        eventually(lambda: file_is(made["printing"], "printed.txt", ":"))
        pages["typed"].bring_to_front()
        pages["typed"].keyboard.press("Control+n")
        for workspace in ids:
            person.http.patch(f"/api/v1/workspaces/{workspace}", json={"standby_ttl_seconds": TTL}).raise_for_status()
        # A key at 0, 20 and 40 s; past the second one's TTL only the third can have kept it.
        began = time.monotonic()
        for number in range(3):
            pages["typed"].wait_for_timeout(max(0.0, began + number * BETWEEN_KEYS - time.monotonic()) * 1000)
            pages["typed"].keyboard.type("x")
        pages["typed"].wait_for_timeout((BETWEEN_KEYS + TTL + 3 - (time.monotonic() - began)) * 1000)
        at_the_end = {name: person.http.get(f"/api/v1/workspaces/{workspace}").json() for name, workspace in made.items()}
        pages["printing"].screenshot(path=ARTIFACTS / "printing.png")
        seconds = {"ttl": float(TTL), "flush interval": float(FLUSH), "stopped after its last use": idle_seconds(at_the_end["forgotten"])}
        woken = comes_back_by_a_visit(pages["forgotten"], base, made["forgotten"], seconds)
        seconds["start of the workspace"] = start_seconds(person, made["forgotten"])
        return {"at the end": at_the_end, "woken": woken, "seconds": seconds}


def comes_back_by_a_visit(page: Page, base: str, workspace: str, seconds: dict[str, float]) -> str:
    """From STANDBY, a link ends in the IDE without a click. Where it ended, and the time until the IDE's page came."""
    page.bring_to_front()
    own = f"http://{workspace}.localhost:"
    arrived: list[float] = []

    def notice(response: Response) -> None:
        if response.url.startswith(own) and response.status == 200 and response.request.is_navigation_request():
            arrived.append(time.monotonic())

    page.on("response", notice)
    began = time.monotonic()
    page.goto(f"{base}/w/{workspace}/", wait_until="commit")
    page.screenshot(path=ARTIFACTS / "waking.png")
    wait_for_ide(page)
    seconds["visit until the IDE's page came"] = arrived[0] - began
    seconds["visit until the IDE was drawn"] = time.monotonic() - began
    page.screenshot(path=ARTIFACTS / "woken.png")
    return page.url


def idle_seconds(body: dict[str, Any]) -> float:
    """From the last use to the end of STOPPING, on the database's clock."""
    return (datetime.fromisoformat(body["phase_changed_at"]) - datetime.fromisoformat(body["last_access_at"])).total_seconds()


def start_seconds(person: Person, workspace: str) -> float:
    """The last STARTING alone, from its claim to the observation that completed it."""
    rows = [row for row in person.http.get(f"/api/v1/workspaces/{workspace}/history").json()["results"] if row["type"] == "transition"]
    ended = next(row["at"] for row in rows if row["to_phase"] == "RUNNING" and row["from_operation"] == "STARTING")
    begun = next(row["at"] for row in rows if row["to_operation"] == "STARTING" and row["from_operation"] != "STARTING")
    return (datetime.fromisoformat(ended) - datetime.fromisoformat(begun)).total_seconds()
