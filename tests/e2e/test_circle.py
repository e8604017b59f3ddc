"""The whole circle as a newcomer runs it: `manage.py up`, a real IDE, and a home that comes back as it was.

Real code-server on Docker and real JupyterLab as a process, with actuators in threads and in a real Celery worker.
"""

import hashlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine import a_subnet, remove_installation
from tests.integration.test_up import UP, Up
from tests.live import free_port

PASSWORD = "a-password-for-this-test"
pytestmark = [pytest.mark.timeout(400), pytest.mark.docker]


class Person:
    """Somebody who scripts against the API and opens the workspace through the proxy."""

    def __init__(self, port: int, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)
        answer = self.http.post("/api/v1/auth/login", json={"username": "admin", "password": PASSWORD})
        assert answer.status_code == 200, answer.text
        self.http.headers["Authorization"] = f"Bearer {answer.json()['token']}"

    def create(self, **body: Any) -> str:
        answer = self.http.post("/api/v1/workspaces", json=body)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def ask(self, workspace: str, state: str) -> None:
        answer = self.http.patch(f"/api/v1/workspaces/{workspace}", json={"desired_state": state})
        assert answer.status_code == 200, answer.text
        self.wait(workspace, state)

    def wait(self, workspace: str, phase: str, *, seconds: float = 120) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while True:
            seen: dict[str, Any] = self.http.get(f"/api/v1/workspaces/{workspace}").json()
            if seen.get("phase") == phase and seen["operation"] == "NONE":
                return seen
            assert phase == "ERROR" or seen.get("phase") != "ERROR", seen["error_info"]
            assert time.monotonic() < deadline, seen
            time.sleep(0.1)

    def recover(self, workspace: str, strategy: str) -> None:
        answer = self.http.post(f"/api/v1/workspaces/{workspace}/recover", json={"strategy": strategy})
        assert answer.status_code == 200, answer.text
        deadline = time.monotonic() + 60
        while strategy != "reobserve" and self.http.get(f"/api/v1/workspaces/{workspace}").json()["phase"] == "ERROR":
            assert time.monotonic() < deadline, "the controller never took the recovery up"
            time.sleep(0.05)

    def delete(self, workspace: str, *, seconds: float = 60) -> None:
        assert self.http.delete(f"/api/v1/workspaces/{workspace}?queue=true").status_code == 202
        deadline = time.monotonic() + seconds
        while self.http.get(f"/api/v1/workspaces/{workspace}").status_code != 404:
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def jupyter(self, workspace: str, method: str, path: str, **options: Any) -> httpx.Response:
        """One call of JupyterLab's own API through the proxy, with the cookie it wants to see again."""
        base = f"/w/{workspace}"
        self.http.get(f"{base}/lab")
        token = self.http.cookies.get("_xsrf", path=f"{base}/") or ""
        return self.http.request(method, f"{base}{path}", headers={"X-XSRFToken": token}, **options)


@pytest.fixture(scope="module")
def people(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    runtime, executor = request.param
    data_dir = tmp_path_factory.mktemp(f"{runtime}-{executor}") / "data"
    port = free_port()
    up = Up(
        data_dir,
        port,
        command=[sys.executable, *UP],
        CODEHUB_RUNTIME=runtime,
        CODEHUB_EXECUTOR=executor,
        CODEHUB_ADMIN_PASSWORD=PASSWORD,
        CODEHUB_WORKSPACE_DOMAIN="none",
        DOCKER_SUBNET=a_subnet(),
    )
    person = Person(up.wait_ready().port, data_dir)
    with up.database() as database:
        (installation,) = database.execute("SELECT id FROM workspaces_installation").fetchone() or ("",)
    try:
        yield person
    finally:
        person.http.close()
        code = up.stop()
        remove_installation(str(installation))
    assert code == 0, up.output


def in_container(workspace: str, script: str) -> str:
    done = subprocess.run(
        ["docker", "exec", f"ws-{workspace}", "sh", "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


PLANT = """
set -e; cd /home/coder/project
mkdir -p deep/er empty; printf 'kept\\n' > deep/er/note; ln -s ../nowhere dangling; ln deep/er/note hard; chmod 640 deep/er/note
head -c 3000000 /dev/urandom > blob; touch -d '2001-02-03 04:05:06' old
"""
PICTURE = "cd /home/coder/project; find . -printf '%p %y %m %U %G %n %l %Ts\\n' | sort; find . -type f -exec sha256sum {} + | sort"


@pytest.mark.parametrize("people", [("docker", "threads"), ("docker", "celery")], indirect=True, ids=["threads", "celery"])
def test_code_server_on_docker_goes_round_with_its_files(people: Person) -> None:
    workspace = people.create(name="circle", image="code-server")
    try:
        people.wait(workspace, "RUNNING")
        page = people.http.get(f"/w/{workspace}/", follow_redirects=True, headers={"Accept": "text/html"})
        assert page.status_code == 200
        assert "workbench" in page.text
        in_container(workspace, PLANT)
        before = in_container(workspace, PICTURE)
        people.ask(workspace, "STANDBY")
        people.ask(workspace, "ARCHIVED")
        archived = people.wait(workspace, "ARCHIVED")
        assert archived["archive_size"] > 3_000_000
        volumes = subprocess.run(["docker", "volume", "ls", "-q"], capture_output=True, text=True, check=True, timeout=60).stdout
        assert workspace not in volumes
        people.ask(workspace, "RUNNING")
        assert in_container(workspace, PICTURE) == before
    finally:
        people.delete(workspace)
    left = subprocess.run(
        ["docker", "ps", "-aq", "--filter", f"name=ws-{workspace}"], capture_output=True, text=True, check=True, timeout=60
    )
    assert left.stdout == ""


def remove_volume(workspace: str) -> None:
    """What no operator should do: take the home away behind CodeHub's back."""
    names = subprocess.run(["docker", "volume", "ls", "-q"], capture_output=True, text=True, check=True, timeout=60).stdout.split()
    (home,) = [name for name in names if name.startswith(f"ws-{workspace}-home-")]
    subprocess.run(["docker", "volume", "rm", home], check=True, capture_output=True, timeout=60)


@pytest.mark.parametrize("people", [("docker", "threads")], indirect=True, ids=["threads"])
def test_a_home_removed_behind_its_back_is_data_lost_and_both_recoveries_work(people: Person) -> None:
    workspace = people.create(name="lost", image="code-server")
    try:
        people.wait(workspace, "RUNNING")
        in_container(workspace, "echo archived > /home/coder/project/note")
        people.ask(workspace, "STANDBY")
        people.ask(workspace, "ARCHIVED")
        people.ask(workspace, "RUNNING")
        in_container(workspace, "echo newer > /home/coder/project/note")
        people.ask(workspace, "STANDBY")
        remove_volume(workspace)
        assert people.wait(workspace, "ERROR")["error_reason"] == "DataLost"
        refused = people.http.patch(f"/api/v1/workspaces/{workspace}", json={"desired_state": "RUNNING"})
        assert (refused.status_code, refused.json()["code"]) == (409, "recover_first")
        people.recover(workspace, "reobserve")
        assert people.wait(workspace, "ERROR")["error_reason"] == "DataLost"
        people.recover(workspace, "restore_archive")
        people.wait(workspace, "STANDBY")
        people.ask(workspace, "RUNNING")
        assert in_container(workspace, "cat /home/coder/project/note") == "archived\n"
        people.ask(workspace, "STANDBY")
        remove_volume(workspace)
        people.wait(workspace, "ERROR")
        people.recover(workspace, "start_empty")
        assert people.wait(workspace, "STANDBY")["has_archive"] is False
        people.ask(workspace, "RUNNING")
        assert in_container(workspace, "ls /home/coder/project/") == ""
    finally:
        people.delete(workspace)


@pytest.mark.parametrize("people", [("process", "threads"), ("process", "celery")], indirect=True, ids=["threads", "celery"])
def test_jupyterlab_as_a_process_goes_round_with_its_files(people: Person) -> None:
    workspace = people.create(name="circle", image="jupyterlab")
    text = "한글 and ünïcode\n" * 1000
    try:
        people.wait(workspace, "RUNNING")
        written = people.jupyter(workspace, "PUT", "/api/contents/note.txt", json={"type": "file", "format": "text", "content": text})
        assert written.status_code == 201, written.text
        people.ask(workspace, "STANDBY")
        people.ask(workspace, "ARCHIVED")
        assert not list((people.data_dir / "homes").glob(f"*{workspace}*"))
        people.ask(workspace, "RUNNING")
        read = people.jupyter(workspace, "GET", "/api/contents/note.txt")
        assert hashlib.sha256(read.json()["content"].encode()).digest() == hashlib.sha256(text.encode()).digest()
    finally:
        people.delete(workspace)
