"""The OpenAPI description: complete, true of the live server, and good enough to make a client from."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.contrib.auth.models import User
from drf_spectacular.drainage import GENERATOR_STATS

from tests.api import person, workspace_of
from workspaces.api.documents import openapi_document
from workspaces.api.errors import CODES
from workspaces.models import Attempt, LogTail, Transition, UserProfile
from workspaces.tokens import request_token

ADDRESSES = {
    "/auth/login": {"post"},
    "/auth/logout": {"post"},
    "/tokens": {"get", "post"},
    "/tokens/{token_id}": {"delete"},
    "/me": {"get"},
    "/workspaces": {"get", "post"},
    "/workspaces/{workspace_id}": {"get", "patch", "delete"},
    "/workspaces/{workspace_id}/recover": {"post"},
    "/workspaces/{workspace_id}/history": {"get"},
    "/workspaces/{workspace_id}/logs": {"get"},
    "/images": {"get"},
    "/events": {"get"},
    "/schema": {"get"},
}


def test_the_schema_names_every_call_and_is_made_without_a_warning() -> None:
    openapi_document.cache_clear()
    GENERATOR_STATS.reset()
    document = openapi_document()
    assert not GENERATOR_STATS
    assert {path: set(calls) for path, calls in document["paths"].items()} == {f"/api/v1{path}": calls for path, calls in ADDRESSES.items()}


def test_every_code_is_documented_with_an_example_and_its_status() -> None:
    seen: set[tuple[int, str]] = set()
    for calls in openapi_document()["paths"].values():
        for call in calls.values():
            for status, answer in call["responses"].items():
                for example in answer.get("content", {}).get("application/json", {}).get("examples", {}).values():
                    if int(status) >= 400:
                        seen.add((int(status), example["value"]["code"]))
    # Of a method that no call has, nothing can be said in a list of calls.
    assert seen == {(status, code) for code, (status, _when) in CODES.items() if code != "method_not_allowed"}


@pytest.fixture
def world(transactional_db: None, web_url: str) -> dict[str, Any]:
    """A site with something of everything on it."""
    root = person("root", is_staff=True)
    UserProfile.objects.create(user=root, max_running=5, max_workspaces=60)
    # Who signs in as the schema's example does.
    person("ada", password="correct horse battery staple")
    standby = workspace_of(root, "standby", phase="STANDBY", desired_state="STANDBY")
    workspace_of(root, "running", phase="RUNNING", desired_state="RUNNING")
    workspace_of(root, "busy", phase="STANDBY", desired_state="RUNNING", operation="STARTING")
    workspace_of(
        root,
        "broken",
        id="e0e0e0e0-0000-4000-8000-000000000000",
        phase="ERROR",
        desired_state="STANDBY",
        error_reason="ActionFailed",
        error_info={
            "reason": "ActionFailed",
            "message": "m",
            "is_terminal": True,
            "operation": "STARTING",
            "error_count": 3,
            "context": {"action": "start"},
            "occurred_at": "2026-01-01T00:00:00Z",
        },
    )
    Attempt.objects.create(workspace=standby, operation="STARTING", op_id=standby.pk, action="start")
    Transition.objects.create(
        workspace=standby, from_phase="PENDING", to_phase="STANDBY", from_operation="PROVISIONING", to_operation="NONE"
    )
    LogTail.objects.create(workspace=standby, text="hello")
    return {"user": root, "token": request_token(root, name="schema"), "url": web_url}


@pytest.mark.timeout(420)
@pytest.mark.slow
def test_schemathesis_finds_nothing_wrong_on_the_live_server(world: dict[str, Any], tmp_path: Path) -> None:
    made = world["token"]
    described = httpx.get(f"{world['url']}/api/v1/schema", headers={"Authorization": f"Bearer {made.token}"}, timeout=60)
    (tmp_path / "openapi.json").write_bytes(described.content)
    env = {
        **os.environ,
        "RUN_URL": world["url"],
        "RUN_TOKEN": made.token,
        "RUN_TOKEN_ID": str(made.label.pk),
        "PYTHONPATH": str(Path.cwd()),
    }
    command = [
        *(
            str(Path(sys.executable).with_name("schemathesis")),
            "--no-color",
            "--config-file",
            str(Path("tests/schemathesis.toml").absolute()),
        ),
        *("run", "openapi.json", "--url", world["url"], "--checks", "all"),
        # In its place is a check of our own that knows of the one call it does not hold for.
        *("--exclude-checks", "use_after_free"),
    ]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout[-12_000:] + done.stderr[-2_000:]
    # Or else calls were refused, left out or never got to what they are for.
    assert "Authentication failed" not in done.stdout, done.stdout[-6_000:]
    assert re.search(r"Selected: 17/17\s+Tested: 17\n", done.stdout), done.stdout[-6_000:]


def test_a_generated_client_creates_reads_and_deletes_a_workspace(
    world: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "openapi.json").write_text(json.dumps(openapi_document()))
    (tmp_path / "config.yml").write_text("package_name_override: generated_codehub\npost_hooks: []\n")
    target = tmp_path / "generated"
    command = [str(Path(sys.executable).with_name("openapi-python-client")), "generate", "--path", str(tmp_path / "openapi.json")]
    done = subprocess.run(
        [*command, "--config", str(tmp_path / "config.yml"), "--output-path", str(target), "--meta", "setup"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout, done.stdout
    monkeypatch.syspath_prepend(str(target))
    assert importlib.util.find_spec("generated_codehub") is not None
    from generated_codehub import AuthenticatedClient  # type: ignore[import-not-found]
    from generated_codehub.api.workspaces import (  # type: ignore[import-not-found]
        workspaces_create,
        workspaces_delete,
        workspaces_list,
        workspaces_read,
    )
    from generated_codehub.models import Error, Workspace, WorkspaceCreate  # type: ignore[import-not-found]

    with AuthenticatedClient(base_url=world["url"], token=world["token"].token) as client:
        made = workspaces_create.sync(client=client, body=WorkspaceCreate(name="generated"))
        assert isinstance(made, Workspace)
        read = workspaces_read.sync(made.id, client=client)
        assert isinstance(read, Workspace)
        assert (read.name, read.phase) == ("generated", "PENDING")
        page = workspaces_list.sync(client=client, search="generated")
        assert page is not None
        assert [row.id for row in page.results] == [made.id]
        gone = workspaces_delete.sync(made.id, client=client)
        assert isinstance(gone, Workspace)
        assert gone.desired_state == "DELETED"
        missing = workspaces_read.sync(User.objects.count() and world["token"].label.pk, client=client)
        assert isinstance(missing, Error)
        assert missing.code == "not_found"
