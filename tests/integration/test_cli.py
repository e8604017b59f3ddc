"""`codehub` against a live server: what each command does and the exit code it ends with."""

import json
import os
import re
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connections

from codehub_cli.main import main
from tests.api import PASSWORD, person, workspace_of
from tests.live import session_env
from workspaces.models import Installation, LogTail, UserProfile, Workspace
from workspaces.tokens import request_token

pytestmark = pytest.mark.django_db(transaction=True)


class Cli:
    """Runs commands as one person; keeps what they printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.out = ""
        self.err = ""

    def __call__(self, *words: str) -> int:
        self._capsys.readouterr()
        try:
            code = main(words)
        except SystemExit as leaving:
            code = int(str(leaving.code))
        self.out, self.err = self._capsys.readouterr()
        return code

    def json(self, *words: str) -> Any:
        assert self(*words, "-o", "json") == 0, self.err
        return json.loads(self.out)


@pytest.fixture
def ada() -> User:
    return person("ada")


@pytest.fixture
def nobody(web_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Nobody has signed in yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("CODEHUB_URL", web_url)
    monkeypatch.delenv("CODEHUB_TOKEN", raising=False)
    return Cli(capsys)


@pytest.fixture
def cli(nobody: Cli, ada: User, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("CODEHUB_TOKEN", request_token(ada, name="cli").token)
    return nobody


@pytest.fixture
def controller() -> Iterator[Callable[[Callable[[Workspace], dict[str, Any]]], None]]:
    """Stands in for the coordinator: records what a given function makes of each workspace that wants something."""
    stop = threading.Event()
    threads = []

    def begin(decide: Callable[[Workspace], dict[str, Any]]) -> None:
        def run() -> None:
            while not stop.wait(0.05):
                for workspace in Workspace.objects.all():
                    changes = decide(workspace)
                    if changes:
                        Workspace.objects.filter(pk=workspace.pk).update(**changes)
            connections.close_all()

        threads.append(threading.Thread(target=run))
        threads[-1].start()

    yield begin
    stop.set()
    for thread in threads:
        thread.join()


def obey(workspace: Workspace) -> dict[str, Any]:
    return {"phase": workspace.desired_state} if workspace.phase != workspace.desired_state else {}


def test_signing_in_keeps_a_token_only_its_owner_can_read_until_signing_out(nobody: Cli, ada: User, tmp_path: Path) -> None:
    assert nobody("whoami") == 4
    secret = tmp_path / "password"
    secret.write_text("wrong")
    assert nobody("login", "--username", "ada", "--password-file", str(secret)) == 4
    secret.write_text(PASSWORD + "\n")
    assert nobody("login", "--username", "ada", "--password-file", str(secret)) == 0
    kept = tmp_path / "config" / "codehub" / "config.json"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert PASSWORD not in kept.read_text()
    assert nobody("whoami") == 0
    assert "ada (user)" in nobody.out
    assert nobody("whoami", "--url", "http://127.0.0.1:9") == 1
    assert nobody("logout") == 0
    assert "token" not in json.loads(kept.read_text())
    assert nobody("whoami") == 4


def test_a_kept_token_is_never_sent_to_another_server(nobody: Cli, web_url: str, tmp_path: Path) -> None:
    kept = tmp_path / "config" / "codehub" / "config.json"
    kept.parent.mkdir(parents=True)
    kept.write_text(json.dumps({"url": "http://elsewhere.example", "token": request_token(person("bob"), name="x").token}))
    assert nobody("ls") == 4


def test_a_token_that_ended_is_forgotten_by_signing_out(nobody: Cli, web_url: str, tmp_path: Path) -> None:
    kept = tmp_path / "config" / "codehub" / "config.json"
    kept.parent.mkdir(parents=True)
    kept.write_text(json.dumps({"url": web_url, "token": "ended"}))
    assert nobody("ls") == 4
    assert "codehub login" in nobody.err
    assert nobody("logout") == 0
    assert json.loads(kept.read_text()) == {"url": web_url}


@pytest.mark.parametrize(
    ("url", "code"),
    [
        *[(address, 2) for address in ("ftp://x", "127.0.0.1:8000", "http://[::1", "http://", "nonsense")],
        # Another server's 404 says nothing about a workspace of ours.
        ("http://127.0.0.1:1", 1),
        ("{web_url}/elsewhere", 1),
    ],
)
def test_a_wrong_address_is_said_to_be_wrong(cli: Cli, web_url: str, url: str, code: int) -> None:
    assert cli("ls", "--url", url.format(web_url=web_url)) == code
    assert cli.err.startswith("codehub: ")


def test_a_broken_token_or_file_ends_with_a_sentence(nobody: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "config" / "codehub" / "config.json"
    kept.parent.mkdir(parents=True)
    for content in ("[]", "{", '"x"'):
        kept.write_text(content)
        assert nobody("ls") == 1
        assert str(kept) in nobody.err
    monkeypatch.setenv("CODEHUB_TOKEN", "two\nlines")
    assert nobody("ls") == 2
    assert nobody.err.startswith("codehub: ")


def test_a_refused_value_is_told_with_what_could_be_chosen(cli: Cli) -> None:
    assert cli("ls", "--phase", "SLEEPING") == 2
    assert "STANDBY" in cli.err


def test_a_workspace_is_made_waited_for_stopped_and_deleted(cli: Cli, controller: Any) -> None:
    controller(obey)
    made = cli.json("create", "thesis", "--wait", "--standby-ttl", "0", "--memo", "m")
    assert (made["phase"], made["standby_ttl_seconds"], made["memo"]) == ("RUNNING", 0, "m")
    assert cli("ls") == 0
    assert re.search(r"thesis\s+RUNNING", cli.out)
    assert cli.json("stop", "thesis", "--wait")["phase"] == "STANDBY"
    assert cli.json("archive", "thesis", "--wait")["phase"] == "ARCHIVED"
    assert cli.json("restore", made["id"], "--wait")["phase"] == "STANDBY"
    assert cli.json("start", "thesis", "--wait")["phase"] == "RUNNING"
    assert cli("rm", "thesis") == 2
    assert cli("rm", "thesis", "--yes", "--wait") == 0
    assert cli("show", "thesis") == 3


def test_error_and_lateness_end_a_wait_with_seven(cli: Cli, ada: User, controller: Any) -> None:
    assert cli("create", "slow", "--wait", "--timeout", "0") == 7
    assert "still PENDING" in cli.err
    controller(
        lambda workspace: (
            {"phase": "ERROR", "error_reason": "ActionFailed", "error_info": {"message": "no space"}}
            if workspace.phase == "PENDING"
            else {}
        )
    )
    assert cli("create", "broken", "--wait") == 7
    assert "no space" in cli.err


def test_conflicts_limits_and_bad_values_have_their_own_codes(cli: Cli, ada: User) -> None:
    workspace_of(ada, "busy", phase="STANDBY", desired_state="RUNNING", operation="STARTING")
    assert cli("stop", "busy") == 5
    assert cli("stop", "busy", "--queue") == 0
    workspace_of(ada, "broken", phase="ERROR", desired_state="STANDBY")
    assert cli("start", "broken") == 5
    UserProfile.objects.create(user=ada, max_running=0)
    assert cli("create", "one") == 6
    assert cli("create", "") == 2
    assert cli("create", "x", "--image", "nothing", "--state", "STANDBY") == 2
    for _ in range(2):
        workspace_of(ada, "twin", desired_state="STANDBY")
    assert cli("show", "twin") == 5
    assert cli("frobnicate") == 2
    assert cli("show", "nothing") == 3


def test_show_why_logs_and_history_tell_what_is_known(cli: Cli, ada: User) -> None:
    info = {"reason": "DataLost", "message": "the home is gone"}
    workspace = workspace_of(ada, "lost", phase="ERROR", desired_state="STANDBY", error_reason="DataLost", error_info=info)
    LogTail.objects.create(workspace=workspace, text="line \x1b[31mred\x07\n")
    assert cli("show", "lost") == 0
    assert str(workspace.pk) in cli.out
    assert cli("why", "lost") == 0
    assert "the home is gone" in cli.out
    assert re.search(r"needs an operator, for \d+ s\.", cli.out)
    assert "policy.healthy" in cli.out
    assert cli("logs", "lost") == 0
    assert "red" in cli.out
    assert "\x1b" not in cli.out
    assert cli("history", "lost") == 0
    assert cli("images") == 0


def test_tokens_are_made_listed_and_revoked(cli: Cli) -> None:
    made = cli.json("tokens", "create", "backup", "--days", "3")
    assert cli("tokens") == 0
    assert "backup" in cli.out
    assert made["token"] not in cli.out
    assert cli("tokens", "revoke", made["id"]) == 0
    assert cli("tokens", "revoke", made["id"]) == 3
    assert cli("tokens", "create") == 2


def test_a_list_of_several_pages_is_read_to_its_end(cli: Cli, ada: User) -> None:
    image_id = workspace_of(ada, "w").image_id
    Workspace.objects.bulk_create(
        Workspace(owner=ada, image_id=image_id, name=f"w{number}", desired_state="STANDBY") for number in range(202)
    )
    assert len(cli.json("ls")) == 203


def test_open_prints_the_address_or_starts_the_browser(cli: Cli, ada: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = workspace_of(ada, "ide")
    assert cli("open", "ide", "--print") == 0
    assert cli.out.strip().endswith(f"/w/{workspace.pk}/")


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_knows_commands_options_and_names(cli: Cli, ada: User, shell: str) -> None:
    workspace_of(ada, "plain-name")
    odd = workspace_of(ada, "$(touch /tmp/x)")
    assert cli("completion", shell) == 0
    script = cli.out
    if shell == "bash":
        probe = script + (
            'codehub() { printf "plain-name\\n"; }\n'
            "COMP_WORDS=(codehub st); COMP_CWORD=1; _codehub; echo ${COMPREPLY[@]}\n"
            "COMP_WORDS=(codehub stop --w); COMP_CWORD=2; _codehub; echo ${COMPREPLY[@]}\n"
            "COMP_WORDS=(codehub stop pl); COMP_CWORD=2; _codehub; echo ${COMPREPLY[@]}\n"
        )
        done = subprocess.run(["bash", "-c", probe], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines() == ["start stop", "--wait", "plain-name"]
        assert done.stderr == ""
    assert cli("_names") == 0
    assert sorted(cli.out.split()) == sorted(["plain-name", str(odd.pk)])


def test_the_client_needs_nothing_of_the_server() -> None:
    probe = (
        "import sys, codehub_cli.main; print([name for name in sys.modules if name.split('.')[0] in ('django', 'workspaces', 'codehub')])"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def readme_lines() -> str:
    found = re.search(r"runs exactly these five lines -->\n```sh\n(.*?)```", Path("README.md").read_text(), re.DOTALL)
    assert found is not None
    assert len(found[1].splitlines()) == 5
    return found[1]


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_the_five_lines_of_the_readme_create_a_workspace_wait_for_it_and_open_it(web_url: str, s3: dict[str, str], tmp_path: Path) -> None:
    root = Path.cwd()
    person("admin", is_staff=True, is_superuser=True)
    for name, content in {
        ".codehub/admin-password": PASSWORD,
        ".venv/bin/codehub": f'#!/bin/sh\nPYTHONPATH="{root}" exec "{sys.executable}" -m codehub_cli "$@"\n',
        "browser": f'#!/bin/sh\necho "$1" > "{tmp_path}/opened"\n',
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(0o755)
    env = {
        **session_env(),
        **s3,
        "CODEHUB_RUNTIME": "process",
        "CODEHUB_DATA_DIR": str(tmp_path / "data"),
        "COORDINATOR_ACTIVE_INTERVAL": "0.3",
        "COORDINATOR_IDLE_INTERVAL": "1",
    }
    coordinator = subprocess.Popen([sys.executable, "manage.py", "run_coordinator"], env=env, stdout=subprocess.DEVNULL)
    try:
        # What runs here decides which image a new workspace gets by itself.
        for _ in range(600):
            if Installation.objects.filter(runtime="process").exists():
                break
            time.sleep(0.1)
        script_env = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "CODEHUB_URL": web_url,
            "BROWSER": f"{tmp_path}/browser %s",
        }
        done = subprocess.run(
            ["sh", "-e", "-c", readme_lines()], cwd=tmp_path, env=script_env, capture_output=True, text=True, timeout=240, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        workspace = Workspace.objects.get(name="demo")
        assert workspace.phase == "RUNNING"
        for _ in range(100):
            if (tmp_path / "opened").exists() and (tmp_path / "opened").read_text().strip():
                break
            time.sleep(0.05)
        assert (tmp_path / "opened").read_text().strip() == f"{web_url}/w/{workspace.pk}/"
        Workspace.objects.filter(pk=workspace.pk).update(deleted_at=workspace.created_at, desired_state="DELETED")
        for _ in range(600):
            if Workspace.objects.get(pk=workspace.pk).phase == "DELETED":
                break
            time.sleep(0.1)
    finally:
        coordinator.terminate()
        coordinator.wait(timeout=30)
