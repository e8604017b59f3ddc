"""`manage.py run_coordinator` itself, twice, on real PostgreSQL, Redis and S3 with workspaces as processes: killed while it works."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.contrib.auth.models import User

from coordinator.providers.process import ProcessRuntime
from tests.fault.processes import ROOT, until
from workspaces import services
from workspaces.models import Attempt, Image, Installation, LoopLease, Workspace

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(300)]

IDLE = "0.5"


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[ProcessRuntime]:
    Image.objects.create(
        name="tiny",
        title="tiny",
        command=["python3", "-m", "http.server", "{port}", "--bind", "127.0.0.1"],
        home="/home/coder",
        runtimes=["process"],
        position=0,
    )
    made = ProcessRuntime(str(Installation.objects.get().pk), data_dir=tmp_path / "data")
    yield made
    for container in made.list_containers():
        made.delete(container.workspace_id)


@pytest.fixture
def coordinator(
    subprocess_env: dict[str, str], s3: dict[str, str], runtime: ProcessRuntime, tmp_path: Path
) -> Iterator[Callable[..., "subprocess.Popen[bytes]"]]:
    running: list[subprocess.Popen[bytes]] = []
    env = {
        **subprocess_env,
        **s3,
        "CODEHUB_RUNTIME": "process",
        "CODEHUB_DATA_DIR": str(tmp_path / "data"),
        "COORDINATOR_IDLE_INTERVAL": IDLE,
        "RECONCILER_RETRY_BACKOFF": "0.5",
        "LOG_LEVEL": "INFO",
        "LOG_FORMAT": "json",
    }

    def begin(*arguments: str, **extra: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "manage.py", "run_coordinator", *arguments]
        with (tmp_path / f"coordinator-{len(running)}.log").open("wb") as output:
            process = subprocess.Popen(command, cwd=ROOT, env={**env, **extra}, stderr=output)
        running.append(process)
        return process

    yield begin
    for process in running:
        if process.poll() is None:
            process.kill()
            process.wait()
    for log in sorted(tmp_path.glob("coordinator-*.log")):
        print(log.name, log.read_text()[-6000:])


def _leader() -> int:
    lease = LoopLease.objects.filter(loop="reconcile").exclude(holder="").first()
    return int(lease.holder.rpartition(":")[2]) if lease else 0


def _phase(workspace: Workspace) -> str:
    return str(Workspace.objects.values_list("phase", flat=True).get(pk=workspace.pk))


def _settled(workspace: Workspace) -> bool:
    row = Workspace.objects.get(pk=workspace.pk)
    assert row.phase != "ERROR", row.error_info
    return row.operation == "NONE" and row.phase == row.desired_state


def test_a_home_survives_leaders_killed_in_every_operation(
    coordinator: Callable[..., "subprocess.Popen[bytes]"], runtime: ProcessRuntime
) -> None:
    user = User.objects.create_user("ann")
    processes = {process.pid: process for process in (coordinator(), coordinator())}
    until(_leader)
    workspace, _ = services.request_create(user=user, name="one")

    def kill_the_leader_during(operation: str) -> None:
        until(lambda: Workspace.objects.filter(pk=workspace.pk, operation=operation).exists(), why=f"{operation} never began")
        pid = _leader()
        os.kill(pid, signal.SIGKILL)
        processes.pop(pid).wait()
        replacement = coordinator()
        processes[replacement.pid] = replacement

    until(lambda: _settled(workspace), seconds=60)
    row = Workspace.objects.get(pk=workspace.pk)
    home = runtime._home(workspace.pk, row.home_ctx["generation"])
    (home / "kept").write_text("precious")
    for desired, operation in (("ARCHIVED", "ARCHIVING"), ("RUNNING", "RESTORING"), ("STANDBY", "STOPPING"), ("RUNNING", "STARTING")):
        services.request_state(workspace.pk, user=user, desired_state=desired)
        kill_the_leader_during(operation)
        until(lambda: _settled(workspace), seconds=120, why=f"never {desired}")
    row.refresh_from_db()
    assert (runtime._home(workspace.pk, row.home_ctx["generation"]) / "kept").read_text() == "precious"
    assert [container.workspace_id for container in runtime.list_containers()] == [workspace.pk]
    services.request_delete(workspace.pk, user=user)
    until(lambda: _phase(workspace) == "DELETED", seconds=60)
    assert not runtime.list_containers()
    assert not runtime.list_volumes()


def test_told_to_stop_it_leaves_in_time_and_once_does_one_tick(coordinator: Callable[..., "subprocess.Popen[bytes]"]) -> None:
    first = coordinator()
    every_loop = {"events", "reconcile", "ttl", "gc"}
    until(lambda: set(LoopLease.objects.exclude(holder="").values_list("loop", flat=True)) == every_loop)
    first.send_signal(signal.SIGTERM)
    assert first.wait(30) == 0
    assert not LoopLease.objects.exclude(holder="").exists()
    ticks = dict(LoopLease.objects.values_list("loop", "ticks"))
    user = User.objects.create_user("ann")
    workspace, _ = services.request_create(user=user, name="one", desired_state="STANDBY")
    assert coordinator("--once").wait(60) == 0
    assert {loop: now - ticks[loop] for loop, now in LoopLease.objects.values_list("loop", "ticks")} == dict.fromkeys(ticks, 1)
    # The one tick claimed the operation and its run was waited for; that it is complete is for the next look to say.
    assert Workspace.objects.get(pk=workspace.pk).operation == "PROVISIONING" or _settled(workspace)
    assert coordinator("--once", "--loops", "reconcile").wait(60) == 0
    assert _settled(workspace)


@pytest.mark.usefixtures("runtime")
def test_told_to_stop_it_leaves_although_object_storage_hangs_in_a_run_a_listing_and_a_collection(
    coordinator: Callable[..., "subprocess.Popen[bytes]"],
) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=100) as hung:
        # Connections are taken by the system and nobody ever answers on them.
        address = f"http://127.0.0.1:{hung.getsockname()[1]}"
        workspace, _ = services.request_create(user=User.objects.create_user("ann"), name="one", desired_state="ARCHIVED")
        process = coordinator(S3_ENDPOINT_URL=address, COORDINATOR_GC_INTERVAL="0.1")
        until(lambda: Attempt.objects.filter(workspace=workspace, state="RUNNING").exists(), seconds=60)
        until(lambda: LoopLease.objects.filter(loop="gc").exclude(holder="").exists(), seconds=60)
        process.send_signal(signal.SIGTERM)
        # Far less than the store's own time-outs; how long it takes is for the bench to say.
        assert process.wait(30) == 0


def test_shards_are_led_one_by_one_and_together_serve_everybody(coordinator: Callable[..., "subprocess.Popen[bytes]"]) -> None:
    user = User.objects.create_user("ann")
    coordinator("--shards", "3", "--loops", "reconcile")
    workspaces = [services.request_create(user=user, name=str(number), desired_state="STANDBY")[0] for number in range(12)]
    until(lambda: all(_settled(workspace) for workspace in workspaces), seconds=60)
    assert set(LoopLease.objects.filter(loop="reconcile").values_list("shard", flat=True)) == {0, 1, 2}
