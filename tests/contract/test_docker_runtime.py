"""What only Docker can show: hardening, what is not ours, an engine that is down, slow or stumbles."""

import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal
from uuid import UUID, uuid4

import docker
import pytest
import requests
from docker.errors import APIError

from coordinator.providers import docker_volumes
from coordinator.providers.base import (
    ActionFailedError,
    ContainerSpec,
    ContainerState,
    ImagePullFailedError,
    MissingError,
    UnreachableError,
)
from coordinator.providers.docker import DockerRuntime
from coordinator.providers.tarstream import DIRECTORY, HARD_LINK, SYMLINK
from tests.contract.conftest import Harness, docker_runtime, docker_spec, with_command
from tests.contract.trees import HOME, Node, home_of, inodes, read_nodes, tar_of
from tests.engine import TINY, a_subnet

pytestmark = pytest.mark.docker


@pytest.fixture
def client() -> Iterator[docker.DockerClient]:
    made = docker.from_env()
    yield made
    made.close()


def test_a_container_is_hardened_and_limited(on_docker: Harness, client: docker.DockerClient) -> None:
    workspace = on_docker.workspace()
    on_docker.runtime.provision(workspace, 1, on_docker.spec)
    on_docker.runtime.start(workspace, 1, on_docker.spec)
    facts = client.api.inspect_container(f"ws-{workspace}")
    host = facts["HostConfig"]
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert host["CapDrop"] == ["ALL"]
    assert (host["Privileged"], host["PidsLimit"], host["Memory"], host["MemorySwap"]) == (False, 64, 64 << 20, 64 << 20)
    assert (host["NanoCpus"], host["Init"], host["RestartPolicy"]["Name"]) == (10**9, True, "no")
    assert host["LogConfig"]["Config"]["max-size"]
    assert facts["Config"]["User"] == "1000:1000"
    assert [(mount["Type"], mount["Destination"]) for mount in facts["Mounts"]] == [("volume", "/home/coder")]
    assert host["PortBindings"] in (None, {})
    network = client.api.inspect_network(host["NetworkMode"])
    assert network["Options"]["com.docker.network.bridge.enable_icc"] == "false"


def test_the_image_s_own_home_is_never_copied_into_a_volume(on_docker: Harness) -> None:
    workspace = on_docker.workspace()
    on_docker.runtime.provision(workspace, 1, on_docker.spec)
    on_docker.ready(on_docker.runtime.start(workspace, 1, on_docker.spec))
    nodes = read_nodes(home_of(on_docker.runtime, workspace, 1))
    assert list(nodes) == [b""]
    assert (nodes[b""].uid, nodes[b""].gid, nodes[b""].mode) == (1000, 1000, 0o755)


def test_a_volume_whose_maker_died_before_giving_it_away_is_given_by_the_next(on_docker: Harness) -> None:
    workspace = on_docker.workspace()
    on_docker.runtime._create_volume(workspace, 1)  # type: ignore[attr-defined]
    on_docker.runtime.provision(workspace, 1, on_docker.spec)
    assert read_nodes(home_of(on_docker.runtime, workspace, 1))[b""].uid == 1000


def test_one_helper_image_serves_every_workspace_of_an_installation(on_docker: Harness, client: docker.DockerClient) -> None:
    for workspace in (on_docker.workspace(), on_docker.workspace()):
        on_docker.runtime.provision(workspace, 1, on_docker.spec)
        on_docker.runtime.write_volume(workspace, 1, [tar_of([HOME])])
    label = f"codehub.installation={on_docker.runtime._installation}"  # type: ignore[attr-defined]
    assert len(client.images.list(filters={"label": label})) == 1


def test_a_volume_with_something_in_it_keeps_its_owner(on_docker: Harness) -> None:
    workspace = on_docker.workspace()
    on_docker.runtime.provision(workspace, 1, on_docker.spec)
    on_docker.runtime.write_volume(workspace, 1, [tar_of([replace(HOME, uid=77, gid=78), Node(b"kept")])])
    on_docker.runtime.provision(workspace, 1, on_docker.spec)
    home = read_nodes(home_of(on_docker.runtime, workspace, 1))[b""]
    assert (home.uid, home.gid) == (77, 78)


def test_a_container_with_our_name_that_is_not_ours_is_left_alone(on_docker: Harness, client: docker.DockerClient) -> None:
    workspace = on_docker.workspace()
    stranger = client.containers.create(TINY, name=f"ws-{workspace}")
    try:
        on_docker.runtime.provision(workspace, 1, on_docker.spec)
        with pytest.raises(ActionFailedError, match="left alone"):
            on_docker.runtime.start(workspace, 1, on_docker.spec)
        on_docker.runtime.delete(workspace)
        assert on_docker.runtime.get_container(workspace) is None
        stranger.reload()
    finally:
        stranger.remove()


def test_a_volume_with_our_name_that_is_not_ours_is_left_alone(on_docker: Harness, client: docker.DockerClient) -> None:
    workspace = on_docker.workspace()
    stranger = client.volumes.create(f"ws-{workspace}-home-1")
    try:
        assert on_docker.runtime.get_volume(workspace, 1) is None
        with pytest.raises(ActionFailedError, match="left alone"):
            on_docker.runtime.provision(workspace, 1, on_docker.spec)
        with pytest.raises(MissingError):
            on_docker.runtime.start(workspace, 1, on_docker.spec)
        on_docker.runtime.delete_volume(workspace, 1)
        stranger.reload()
    finally:
        stranger.remove()


def test_a_renamed_container_is_found_and_replaced_not_doubled(on_docker: Harness, client: docker.DockerClient) -> None:
    workspace = on_docker.workspace()
    for generation in (1, 2):
        on_docker.runtime.provision(workspace, generation, on_docker.spec)
    on_docker.runtime.start(workspace, 1, on_docker.spec)
    client.api.rename(f"ws-{workspace}", f"hidden-{workspace}")
    assert on_docker.runtime.get_container(workspace)
    on_docker.runtime.start(workspace, 2, on_docker.spec)
    assert [found.generation for found in on_docker.runtime.list_containers() if found.workspace_id == workspace] == [2]


def test_the_helper_of_a_killed_process_neither_shows_nor_holds_the_volume(on_docker: Harness) -> None:
    workspace, runtime = on_docker.workspace(), on_docker.runtime
    assert isinstance(runtime, DockerRuntime)
    runtime.provision(workspace, 1, on_docker.spec)
    runtime._create_helper(workspace, 1)
    assert workspace not in {found.workspace_id for found in runtime.list_containers()}
    # The next reader takes its place, and so does the removal.
    assert home_of(runtime, workspace, 1)
    runtime._create_helper(workspace, 1)
    runtime.delete_volume(workspace, 1)
    assert runtime.get_volume(workspace, 1) is None
    runtime.provision(workspace, 2, on_docker.spec)
    runtime._create_helper(workspace, 2)
    assert runtime.remove_leftovers(older_than=datetime.now(UTC) - timedelta(hours=1)) == 0
    assert runtime.remove_leftovers(older_than=datetime.now(UTC) + timedelta(hours=1)) == 1


def test_a_frozen_reader_of_a_home_does_not_keep_others_from_reading_it(on_docker: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker_volumes, "_HELPER_PATIENCE", 0.5)
    workspace, runtime = on_docker.workspace(), on_docker.runtime
    runtime.provision(workspace, 1, on_docker.spec)
    runtime.write_volume(workspace, 1, [tar_of([Node(b"big", data=os.urandom(8 << 20))])])
    with runtime.read_volume(workspace, 1) as frozen:
        next(iter(frozen))
        assert len(home_of(runtime, workspace, 1)) > 8 << 20
    runtime.delete_volume(workspace, 1)


CAPABILITY = struct.pack("<5I", 0x0200_0001, 1 << 10, 0, 0, 0)
CORNERS = [
    HOME,
    Node(b"program", data=b"\x7fELF", mode=0o755, uid=1234, gid=4321),
    Node(b"s\xe9cret", data=b"s" * 3000, mode=0o4000),
    Node(b"closed", DIRECTORY, mode=0o700),
    Node(b"one", data=b"1"),
    Node(b"closed/twin", HARD_LINK, link=b"one"),
    Node(b"way-out", SYMLINK, link=b"/etc/passwd"),
    Node(b"loop", SYMLINK, link=b"loop"),
]


@pytest.fixture
def corners(on_docker: Harness, client: docker.DockerClient) -> tuple[DockerRuntime, UUID, Path]:
    """A home with something of everything, and its directory on the engine's disk."""
    workspace, runtime = on_docker.workspace(), on_docker.runtime
    assert isinstance(runtime, DockerRuntime)
    runtime.provision(workspace, 1, on_docker.spec)
    runtime.write_volume(workspace, 1, [tar_of(CORNERS)])
    directory = Path(client.api.inspect_volume(f"ws-{workspace}-home-1")["Mountpoint"])
    os.setxattr(directory / "program", "security.capability", CAPABILITY)
    return runtime, workspace, directory


def test_a_home_is_the_same_read_from_its_directory_and_through_the_engine(
    corners: tuple[DockerRuntime, UUID, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, workspace, directory = corners
    when = 1_600_000_000_123_456_789
    os.utime(directory / "program", ns=(when, when))
    direct = home_of(runtime, workspace, 1)
    # Engines tell times to the second: this one came from the directory itself.
    assert b"mtime=1600000000.123456789" in direct
    monkeypatch.setattr(runtime, "_open_directory", lambda *_args: None)
    streamed = home_of(runtime, workspace, 1)
    assert b"mtime=1600000000.123456789" not in streamed
    assert read_nodes(direct) == read_nodes(streamed)
    assert len(inodes(direct)) == len(inodes(streamed)) == 1
    for content in (direct, streamed):
        assert b"SCHILY.xattr.security.capability=" + CAPABILITY in content


def test_what_a_program_may_do_comes_back_with_it(corners: tuple[DockerRuntime, UUID, Path], on_process: Harness, tmp_path: Path) -> None:
    runtime, workspace, directory = corners
    content = home_of(runtime, workspace, 1)
    runtime.provision(workspace, 2, docker_spec())
    runtime.write_volume(workspace, 2, [content])
    again = Path(str(directory).replace("-home-1", "-home-2"))
    assert os.getxattr(again / "program", "security.capability") == CAPABILITY
    other = on_process.workspace()
    on_process.runtime.provision(other, 1, on_process.spec)
    on_process.runtime.write_volume(other, 1, [content])
    assert os.getxattr(tmp_path / "data/homes" / f"ws-{other}-home-1/program", "security.capability") == CAPABILITY


@pytest.mark.parametrize("lie", ["another machine", "another disk", "a network's", "shifted owners", "no powers"])
def test_a_directory_that_may_not_be_the_home_itself_is_not_read(
    corners: tuple[DockerRuntime, UUID, Path], lie: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, workspace, directory = corners
    expected = read_nodes(home_of(runtime, workspace, 1))
    # What a copy of the engine's directory would look like, older than the home.
    decoy = tmp_path / "volumes" / directory.parent.name / "_data"
    decoy.mkdir(parents=True)
    (decoy / "other").write_text("not this home")
    api = runtime._engine.connect()
    inspect, info = api.inspect_volume, api.info
    lies: dict[str, dict[str, Any]] = {
        "another machine": {"DockerRootDir": str(tmp_path)},
        "another disk": {"DockerRootDir": str(tmp_path / "none")},
        "shifted owners": {"SecurityOptions": ["name=seccomp,profile=default", "name=userns"]},
    }
    monkeypatch.setattr(api, "info", lambda: {**info(), **lies.get(lie, {})})
    if lie == "a network's":
        monkeypatch.setattr(api, "inspect_volume", lambda name: {**inspect(name), "Options": {"type": "nfs"}})
    if lie == "no powers":
        monkeypatch.setattr(docker_volumes, "sees_every_file", lambda: False)
    streams: list[str] = []
    stream = runtime._engine.stream

    def counted(path: str, **words: Any) -> Any:
        streams.append(path)
        return stream(path, **words)

    monkeypatch.setattr(runtime._engine, "stream", counted)
    assert read_nodes(home_of(runtime, workspace, 1)) == expected
    assert len(streams) == 1


def test_containers_cannot_reach_each_other(on_docker: Harness, client: docker.DockerClient) -> None:
    first, second = on_docker.workspace(), on_docker.workspace()
    for workspace in (first, second):
        on_docker.runtime.provision(workspace, 1, on_docker.spec)
    on_docker.ready(on_docker.runtime.start(first, 1, on_docker.spec))
    networks = client.api.inspect_container(f"ws-{first}")["NetworkSettings"]["Networks"]
    address = next(iter(networks.values()))["IPAddress"]
    script = f"nc -w 2 {address} 8080 </dev/null && echo reached || echo apart; sleep 600"
    on_docker.runtime.start(second, 1, with_command(on_docker.spec, "sh", "-c", script))
    for _ in range(1000):
        said = on_docker.runtime.logs(second).split()
        if {"apart", "reached"} & set(said):
            break
        threading.Event().wait(0.01)
    assert {"apart", "reached"} & set(said) == {"apart"}


@pytest.mark.parametrize(("publish", "host"), [("auto", "10."), ("bridge", "10."), ("loopback", "127.")])
def test_a_container_answers_by_its_own_address_or_a_port_on_loopback(
    docker_installation: str, on_docker: Harness, publish: Literal["auto", "bridge", "loopback"], host: str
) -> None:
    workspace = on_docker.workspace()
    runtime = DockerRuntime(docker_installation, publish=publish, subnet=a_subnet())
    runtime.provision(workspace, 1, on_docker.spec)
    container = runtime.start(workspace, 1, on_docker.spec)
    assert container.endpoint.startswith(f"http://{host}")
    on_docker.ready(container)
    # Whoever looks, however their own containers are reached, sees the way that leads to this one.
    assert [found.endpoint for found in on_docker.runtime.list_containers() if found.workspace_id == workspace] == [container.endpoint]


def test_more_processors_than_there_are_is_as_many_as_there_are(on_docker: Harness) -> None:
    workspace = on_docker.workspace()
    on_docker.runtime.provision(workspace, 1, on_docker.spec)
    assert on_docker.runtime.start(workspace, 1, replace(on_docker.spec, cpus=4096)).state is ContainerState.RUNNING


def test_a_command_that_cannot_run_is_a_failed_action_with_the_engine_s_words(on_docker: Harness) -> None:
    workspace = on_docker.workspace()
    on_docker.runtime.provision(workspace, 1, on_docker.spec)
    with pytest.raises((ActionFailedError, ImagePullFailedError)) as caught:
        on_docker.runtime.start(workspace, 1, replace(on_docker.spec, home="relative"))
    assert caught.value.stderr


CALLS: dict[str, Callable[[DockerRuntime], object]] = {
    "identity": lambda runtime: runtime.identity(),
    "list_containers": lambda runtime: runtime.list_containers(),
    "list_volumes": lambda runtime: runtime.list_volumes(),
    "get_container": lambda runtime: runtime.get_container(uuid4()),
    "get_volume": lambda runtime: runtime.get_volume(uuid4(), 1),
    "provision": lambda runtime: runtime.provision(uuid4(), 1, docker_spec()),
    "start": lambda runtime: runtime.start(uuid4(), 1, docker_spec()),
    "delete": lambda runtime: runtime.delete(uuid4()),
    "delete_volume": lambda runtime: runtime.delete_volume(uuid4(), 1),
    "ensure_image": lambda runtime: runtime.ensure_image(TINY, lambda *_: None),
    "write_volume": lambda runtime: runtime.write_volume(uuid4(), 1, [tar_of([HOME])]),
    "events": lambda runtime: next(runtime.events()),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_an_engine_that_is_down_is_unreachable_and_never_empty(call: Callable[[DockerRuntime], object], tmp_path: Path) -> None:
    with pytest.raises(UnreachableError):
        call(DockerRuntime("down", host=f"unix://{tmp_path}/none.sock"))


@contextmanager
def silent_engine(directory: Path) -> Iterator[str]:
    """Accepts connections and never answers."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(directory / "silent.sock"))
    server.listen(50)
    try:
        yield f"unix://{directory}/silent.sock"
    finally:
        server.close()


def test_an_engine_that_never_answers_is_unreachable_after_the_time_limit(tmp_path: Path) -> None:
    with silent_engine(tmp_path) as host, pytest.raises(UnreachableError):
        DockerRuntime("slow", host=host, timeout=1).list_containers()


class Stumbling:
    """An engine that answers 500 to every second call of a kind, after having done the work or before."""

    def __init__(self, api: Any, *, after: bool) -> None:
        self._api, self._after = api, after
        self._count: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._api, name)
        if not callable(real) or name == "get":
            return real

        def stumble(*args: Any, **kwargs: Any) -> Any:
            self._count[name] = self._count.get(name, 0) + 1
            if self._count[name] % 2 == 0:
                return real(*args, **kwargs)
            if self._after:
                real(*args, **kwargs)
            response = type("Response", (), {"status_code": 500, "reason": "stumbled", "url": ""})()
            raise APIError("stumbled", response=response)

        return stumble


@pytest.mark.parametrize("after", [False, True], ids=["before the work", "after the work"])
def test_an_engine_that_answers_500_to_every_second_call_still_gives_the_whole_circle(
    docker_installation: str, on_docker: Harness, after: bool
) -> None:
    workspace = on_docker.workspace()
    runtime = docker_runtime(docker_installation)
    real = runtime._engine.connect()
    stumbling: Any = Stumbling(real, after=after)
    runtime._engine._client = stumbling
    spec: ContainerSpec = on_docker.spec
    runtime.ensure_image(spec.image, lambda *_: None)
    runtime.provision(workspace, 1, spec)
    container = runtime.start(workspace, 1, spec)
    assert len([found for found in runtime.list_containers() if found.workspace_id == workspace]) == 1
    on_docker.ready(container)
    runtime.delete(workspace)
    assert runtime.get_container(workspace) is None
    runtime.delete_volume(workspace, 1)
    assert on_docker.runtime.get_volume(workspace, 1) is None


def test_a_home_as_it_is_read_holds_what_the_engine_wrote(on_docker: Harness) -> None:
    workspace = on_docker.workspace()
    on_docker.runtime.provision(workspace, 1, on_docker.spec)
    on_docker.runtime.write_volume(workspace, 1, [tar_of([HOME, Node(b"x", data=b"1")])])
    with on_docker.runtime.read_volume(workspace, 1) as stream:
        first = next(stream)
    assert first.startswith(b"./")


def test_an_engine_out_of_address_pools_is_given_a_network_of_our_own_choice(
    client: docker.DockerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = DockerRuntime(f"pools-{uuid4().hex[:12]}")
    make, asked = runtime._create_network, list[str | None]()

    def without_pools(subnet: str | None, api: Any) -> None:
        asked.append(subnet)
        if len(asked) == 1:
            response = requests.Response()
            response.status_code = 403
            raise APIError("refused", response=response, explanation="could not find an available, non-overlapping IPv4 address pool")
        make(subnet, api)

    monkeypatch.setattr(runtime, "_create_network", without_pools)
    runtime._ensure_network()
    network = client.networks.get(runtime._network)
    try:
        assert asked[0] is None
        assert network.attrs["IPAM"]["Config"][0]["Subnet"] == asked[-1]
    finally:
        network.remove()
        runtime.close()


def test_a_start_makes_the_network_again_after_somebody_pruned_it(on_docker: Harness, client: docker.DockerClient) -> None:
    workspace = on_docker.workspace()
    on_docker.runtime.provision(workspace, 1, on_docker.spec)
    on_docker.runtime.start(workspace, 1, on_docker.spec)
    on_docker.runtime.delete(workspace)
    assert isinstance(on_docker.runtime, DockerRuntime)
    client.networks.get(on_docker.runtime._network).remove()
    on_docker.ready(on_docker.runtime.start(workspace, 1, on_docker.spec))
