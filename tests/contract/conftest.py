"""One harness for each runtime, so that one suite runs on all of them, with what only a test may do: kill behind its back.

The Docker engine must be there: its absence is a failure. Everything made on it is removed at the end of the session.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID, uuid4

import docker
import pytest

from coordinator.providers.base import Container, ContainerSpec, Runtime
from coordinator.providers.docker import DockerRuntime
from coordinator.providers.process import ProcessRuntime
from tests.engine import TINY, a_subnet, build_tiny_image, remove_installation
from tests.fakes.runtime import FakeRuntime


@dataclass(slots=True)
class Harness:
    runtime: Runtime
    spec: ContainerSpec
    kill: Callable[[UUID], None]
    """The main process dies at once, behind the runtime's back."""
    again: Callable[[], Runtime]
    """Another process' view of the same installation."""
    other: Callable[[], Runtime]
    """Another installation on the same machine."""
    workspaces: list[UUID]

    def workspace(self) -> UUID:
        workspace_id = uuid4()
        self.workspaces.append(workspace_id)
        return workspace_id

    def ready(self, container: Container) -> Container:
        """Wait until the IDE answers."""
        deadline = time.monotonic() + 30
        while not self.runtime.probe(container, self.spec):
            assert time.monotonic() < deadline, self.runtime.logs(container.workspace_id)
            time.sleep(0.01)
        return container

    def clean_up(self) -> None:
        self._remove_all()
        if isinstance(self.runtime, DockerRuntime):
            self.runtime.close()

    def _remove_all(self) -> None:
        for workspace_id in self.workspaces:
            self.runtime.delete(workspace_id)
        for volume in self.runtime.list_volumes():
            if volume.workspace_id in self.workspaces:
                self.runtime.delete_volume(volume.workspace_id, volume.generation)


@pytest.fixture(scope="session")
def tiny_image() -> str:
    return build_tiny_image()


@pytest.fixture(scope="session")
def docker_installation(tiny_image: str) -> Iterator[str]:
    installation_id = f"contract-{uuid4().hex[:12]}"
    yield installation_id
    remove_installation(installation_id)
    remove_installation(f"{installation_id}-other")


def docker_spec() -> ContainerSpec:
    return ContainerSpec(image=TINY, memory_mb=64, cpus=1.0, pids_limit=64)


def fake_harness() -> Harness:
    fake = FakeRuntime()
    return Harness(fake, ContainerSpec(image="fake"), fake.kill, lambda: fake, FakeRuntime, [])


def process_harness(directory: Path) -> Harness:
    runtime = ProcessRuntime("contract", data_dir=directory / "data")
    # Serves its directory and says so, as the tiny image does.
    server = "import http.server as h, os; print('serving', flush=True); h.test(h.SimpleHTTPRequestHandler, bind='127.0.0.1', port=int(os.environ['PORT']))"
    spec = ContainerSpec(image="python", command=(sys.executable, "-c", server))

    def kill(workspace_id: UUID) -> None:
        pid = runtime._load(workspace_id).pid  # type: ignore[union-attr]
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while (found := runtime.get_container(workspace_id)) and found.state == "running":
            assert time.monotonic() < deadline
            time.sleep(0.01)

    return Harness(
        runtime,
        spec,
        kill,
        lambda: ProcessRuntime("contract", data_dir=directory / "data"),
        lambda: ProcessRuntime("other", data_dir=directory / "other"),
        [],
    )


def docker_runtime(installation_id: str) -> DockerRuntime:
    return DockerRuntime(installation_id, subnet=a_subnet())


def docker_harness(installation_id: str) -> Harness:
    def kill(workspace_id: UUID) -> None:
        client = docker.from_env()
        container = client.containers.get(f"ws-{workspace_id}")
        container.kill()
        container.wait(timeout=10)
        client.close()

    return Harness(
        docker_runtime(installation_id),
        docker_spec(),
        kill,
        lambda: docker_runtime(installation_id),
        lambda: docker_runtime(f"{installation_id}-other"),
        [],
    )


ON_DOCKER = pytest.param("docker", marks=pytest.mark.docker)


@pytest.fixture(params=["fake", "process", ON_DOCKER])
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    if request.param == "docker":
        made = docker_harness(request.getfixturevalue("docker_installation"))
    else:
        made = fake_harness() if request.param == "fake" else process_harness(tmp_path)
    yield made
    made.clean_up()


@pytest.fixture
def on_docker(docker_installation: str) -> Iterator[Harness]:
    made = docker_harness(docker_installation)
    yield made
    made.clean_up()


@pytest.fixture
def on_process(tmp_path: Path) -> Iterator[Harness]:
    made = process_harness(tmp_path)
    yield made
    made.clean_up()


def with_command(spec: ContainerSpec, *command: str) -> ContainerSpec:
    return replace(spec, command=command)


@pytest.fixture(params=["process", ON_DOCKER], scope="module")
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """One for a whole module, where its tests leave each other alone."""
    if request.param == "docker":
        made = docker_harness(request.getfixturevalue("docker_installation"))
    else:
        made = process_harness(Path(tmp_path_factory.mktemp("place")))
    yield made
    made.clean_up()
