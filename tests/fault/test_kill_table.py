"""kill -9 at every step of archive, restore, delete and start: the next coordinator finishes it and the home is the same.

Each workspace meets one death. The process that dies next is the one that first finishes what the one before left behind, so
every recovery is that of a fresh process. The table of all steps is printed with the test summary.
"""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import User

from coordinator.gc import Collector
from coordinator.providers.base import Runtime
from coordinator.providers.docker import DockerRuntime
from coordinator.providers.process import ProcessRuntime
from coordinator.providers.s3 import S3Store
from coordinator.providers.tarstream import DIRECTORY, HARD_LINK, SYMLINK
from tests.contract.trees import HOME, Node, home_of, inodes, read_nodes, tar_of
from tests.engine import a_subnet, build_tiny_image, remove_installation
from tests.fault.processes import ROOT, until
from workspaces import services
from workspaces.models import Attempt, Image, Installation, Workspace

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(400)]

ARCHIVE = {
    "claimed, nothing done": "claim after",
    "before tar": "read_volume before",
    "mid tar": "read_volume middle",
    "mid upload": "put archive middle",
    "uploaded, not read back": "get archive before",
    "before .meta": "put meta before",
    "after .meta": "put meta after",
    "before the run's end is written": "end archive before",
    "before the commit": "commit before",
    "after the commit": "commit after",
    "before the volume's removal": "delete_volume before",
    "after the volume's removal": "delete_volume after",
    "before it counts as archived": "complete before",
}
RESTORE = {
    "before the volume": "provision before",
    "volume made, nothing in it": "write_volume before",
    "mid stream": "write_volume middle",
    "filled, not told": "write_volume after",
    "before the marker": "complete before",
    "after the marker": "complete after",
}
DELETE = {
    "before the container": "delete before",
    "container gone, not told": "delete after",
    "before the volume": "delete_volume before",
    "after the volume": "delete_volume after",
    "before it counts as deleted": "complete before",
}
START = {"before the container": "start before", "container started, not told": "start after"}

EVERYTHING = {"archive": ARCHIVE, "restore": RESTORE, "delete": DELETE, "start": START}
# On Docker, where a death leaves something of the engine's behind: a helper, a half-filled volume, a volume without its container.
ON_DOCKER = {
    "archive": {name: ARCHIVE[name] for name in ("mid tar", "mid upload", "before the volume's removal", "after the volume's removal")},
    "restore": {name: RESTORE[name] for name in ("volume made, nothing in it", "mid stream", "filled, not told")},
    "delete": {name: DELETE[name] for name in ("container gone, not told", "after the volume")},
    "start": {name: START[name] for name in ("container started, not told",)},
}
BEGIN = {"archive": "STANDBY", "restore": "ARCHIVED", "delete": "RUNNING", "start": "STANDBY"}
END = {"archive": "ARCHIVED", "restore": "STANDBY", "delete": "DELETED", "start": "RUNNING"}


@dataclass(slots=True, repr=False)
class Case:
    operation: str
    step: str
    point: str
    owner: User
    id: UUID
    home: bytes = b""
    outcome: str = "not reached"


class Coordinators:
    """The server of forks, one of which lives at a time."""

    def __init__(self, env: dict[str, str], log: Path) -> None:
        with log.open("wb") as output:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "tests.fault.killed_coordinator"],
                cwd=ROOT,
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
            )
        self.pid = 0

    def start(self, case: Case | None = None) -> None:
        assert self._server.stdin
        asked = {"workspace": str(case.id) if case else "", "point": case.point if case else ""}
        self._server.stdin.write(json.dumps(asked) + "\n")
        self._server.stdin.flush()
        self.pid = self._answer()

    def wait_death(self) -> int:
        code = self._answer()
        self.pid = 0
        return code

    def kill(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            assert self.wait_death() == -signal.SIGKILL

    def end(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
        self._server.kill()
        self._server.communicate()

    def _answer(self) -> int:
        assert self._server.stdout
        return int(self._server.stdout.readline())


def a_tree(number: int, *, megabytes: int) -> list[Node]:
    """A home of odd things, with noise in it: three megabytes are several pieces of a stream, twenty several parts of an upload."""
    noise = random.Random(number)
    return [
        HOME,
        Node(b"dir", DIRECTORY, mode=0o750),
        Node(b"dir/note", data=b"precious %d" % number, mode=0o640),
        Node(b"dir/run", data=b"#!/bin/sh\n", mode=0o755),
        Node(b"empty", DIRECTORY, mode=0o700),
        Node(b"link", SYMLINK, link=b"../nowhere", mode=0o777),
        Node("한글".encode(), data=b"utf-8"),
        *(Node(b"noise-%d" % index, data=noise.randbytes(1 << 20)) for index in range(megabytes)),
        Node(b"zz-hard", HARD_LINK, link=b"dir/note", mode=0o640),
    ]


@pytest.fixture(params=["process", pytest.param("docker", marks=pytest.mark.docker)])
def runtime(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Runtime]:
    installation = str(Installation.objects.get().pk)
    kind = request.param
    command = ["python3", "-m", "http.server", "{port}", "--bind", "127.0.0.1"] if kind == "process" else []
    if kind == "docker":
        build_tiny_image()
    Image.objects.create(name="tiny", title="tiny", ref="codehub/tiny:latest", command=command, runtimes=[kind], memory_mb=64, position=0)
    if kind == "process":
        processes = ProcessRuntime(installation, data_dir=tmp_path / "data")
        yield processes
        for container in processes.list_containers():
            processes.delete(container.workspace_id)
        return
    containers = DockerRuntime(installation, subnet=a_subnet())
    yield containers
    containers.close()
    remove_installation(installation)


@pytest.fixture
def store(s3: dict[str, str]) -> S3Store:
    return S3Store(
        endpoint_url=s3["S3_ENDPOINT_URL"],
        bucket=s3["S3_BUCKET"],
        prefix=f"{Installation.objects.get().pk}/",
        access_key=s3["AWS_ACCESS_KEY_ID"],
        secret_key=s3["AWS_SECRET_ACCESS_KEY"],
    )


@pytest.fixture
def coordinators(subprocess_env: dict[str, str], s3: dict[str, str], runtime: Runtime, tmp_path: Path) -> Iterator[Coordinators]:
    env = {
        **subprocess_env,
        **s3,
        "CODEHUB_RUNTIME": runtime.name,
        "CODEHUB_DATA_DIR": str(tmp_path / "data"),
        "DOCKER_SUBNET": a_subnet(),
        "COORDINATOR_IDLE_INTERVAL": "0.5",
        "COORDINATOR_ACTIVE_INTERVAL": "0.2",
        "RECONCILER_RETRY_BACKOFF": "0.1",
        "LOG_LEVEL": "INFO",
        "LOG_FORMAT": "json",
    }
    made = Coordinators(env, tmp_path / "coordinators.log")
    yield made
    made.end()
    print((tmp_path / "coordinators.log").read_text()[-20_000:])


def reached(case: Case, phase: str) -> Callable[[], bool]:
    def look() -> bool:
        row = Workspace.objects.get(pk=case.id)
        assert row.phase != "ERROR", (case.operation, case.step, row.error_info)
        return row.phase == phase and row.operation == "NONE"

    return look


def prepared(steps: dict[str, dict[str, str]], coordinators: Coordinators, runtime: Runtime) -> list[Case]:
    """A workspace for each step, where its operation begins, with a home of its own."""
    cases: list[Case] = []
    for operation, points in steps.items():
        for step, point in points.items():
            owner = User.objects.create_user(f"owner-{len(cases)}")
            row, _ = services.request_create(user=owner, name=step, desired_state="STANDBY")
            cases.append(Case(operation, step, point, owner, row.pk))
    coordinators.start()
    for number, case in enumerate(cases):
        until(reached(case, "STANDBY"), seconds=60)
        case.home = tar_of(a_tree(number, megabytes=22 if case.step == "mid upload" else 3))
        runtime.write_volume(case.id, Workspace.objects.get(pk=case.id).home_ctx["generation"], [case.home])
        if BEGIN[case.operation] != "STANDBY":
            services.request_state(case.id, user=case.owner, desired_state=BEGIN[case.operation])
    for case in cases:
        until(reached(case, BEGIN[case.operation]), seconds=60)
    coordinators.kill()
    return cases


def ask(case: Case) -> None:
    if case.operation == "delete":
        services.request_delete(case.id, user=case.owner)
    else:
        services.request_state(case.id, user=case.owner, desired_state=END[case.operation])


def home_now(case: Case, runtime: Runtime) -> bytes:
    return home_of(runtime, case.id, Workspace.objects.get(pk=case.id).home_ctx["generation"])


def same(one: bytes, other: bytes) -> bool:
    return read_nodes(one) == read_nodes(other) and inodes(one) == inodes(other)


def test_kill_nine_at_every_step_and_the_next_coordinator_finishes_it(
    runtime: Runtime, store: S3Store, coordinators: Coordinators, record_property: Callable[[str, Any], None]
) -> None:
    cases = prepared(EVERYTHING if runtime.name == "process" else ON_DOCKER, coordinators, runtime)
    try:
        before: Case | None = None
        for case in [*cases, None]:
            coordinators.start(case)
            if before is not None:
                until(reached(before, END[before.operation]), seconds=60, why=f"{before.operation}, {before.step}: never finished")
                runs = Attempt.objects.filter(workspace_id=before.id, state="LOST").count()
                before.outcome = f"{END[before.operation]}, {runs} lost run{'s' * (runs != 1)}"
            if case is not None:
                case.outcome = "not killed"
                ask(case)
                assert coordinators.wait_death() == -signal.SIGKILL, case.step
                case.outcome = "killed, not finished"
            before = case
        check_the_homes(cases, runtime)
        check_nothing_is_left(cases, runtime, store)
    finally:
        width = max(len(case.step) for case in cases)
        record_property("table", f"kill -9 on the {runtime.name} runtime")
        for case in cases:
            record_property("table", f"  {case.operation:8} {case.step:{width}}  {case.outcome}")


def check_the_homes(cases: list[Case], runtime: Runtime) -> None:
    """All of them on disk again, and equal to what was put there."""
    alive = [case for case in cases if case.operation != "delete"]
    for case in alive:
        services.request_state(case.id, user=case.owner, desired_state="STANDBY", queue=True)
    for case in alive:
        until(reached(case, "STANDBY"), seconds=60)
        assert same(home_now(case, runtime), case.home), case.step
        case.outcome += ", home equal"


def check_nothing_is_left(cases: list[Case], runtime: Runtime, store: S3Store) -> None:
    """After garbage collection engine and store hold what the rows say and nothing else."""
    collector = Collector(runtime=runtime, store=store, grace_seconds=0)
    for _ in range(2):
        assert collector.collect().failed == 0
    soon = datetime.now(UTC) + timedelta(hours=1)
    runtime.remove_leftovers(older_than=soon)
    store.abort_stale_uploads(older_than=soon)
    assert store.abort_stale_uploads(older_than=soon) == 0
    rows = {row.pk: row for row in Workspace.objects.filter(pk__in=[case.id for case in cases])}
    living = [row for row in rows.values() if row.phase != "DELETED"]
    assert {(volume.workspace_id, volume.generation) for volume in runtime.list_volumes()} == {
        (row.pk, row.home_ctx["generation"]) for row in living
    }
    assert runtime.list_containers() == []
    keys = {row.archive_key for row in living if row.archive_key}
    assert {found.key for found in store.list()} == keys | {f"{key}.meta" for key in keys}
    for case in cases:
        case.outcome += ", nothing left"
