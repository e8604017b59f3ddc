"""What every runtime promises, on each of them: fake, process and Docker."""

import queue
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from coordinator.providers.base import ActionFailedError, ContainerState, ImagePullFailedError, MissingError, Volume
from coordinator.providers.tarstream import DIRECTORY, HARD_LINK, SYMLINK
from tests.contract.conftest import ON_DOCKER, Harness, with_command
from tests.contract.trees import HOME, Node, chunked, home_of, inodes, read_nodes, tar_of

# What a double cannot show: programs run in it.
REAL = ["process", ON_DOCKER]


def unheard(done: int, total: int | None) -> None:
    return None


def test_identity_is_the_same_for_every_process(harness: Harness) -> None:
    assert harness.runtime.identity() == harness.again().identity() != ""


def test_provision_makes_an_empty_volume_and_a_second_time_leaves_it_alone(harness: Harness) -> None:
    workspace = harness.workspace()
    assert harness.runtime.get_volume(workspace, 1) is None
    harness.runtime.provision(workspace, 1, harness.spec)
    assert list(read_nodes(home_of(harness.runtime, workspace, 1))) == [b""]
    harness.runtime.write_volume(workspace, 1, [tar_of([HOME, Node(b"kept", data=b"x")])])
    harness.runtime.provision(workspace, 1, harness.spec)
    assert read_nodes(home_of(harness.runtime, workspace, 1))[b"kept"].data == b"x"


def test_volumes_are_listed_by_generation_and_removed_one_by_one(harness: Harness) -> None:
    workspace = harness.workspace()
    for generation in (1, 2, 3):
        harness.runtime.provision(workspace, generation, harness.spec)
    harness.runtime.delete_volume(workspace, 2)
    harness.runtime.delete_volume(workspace, 2)
    mine = {volume.generation for volume in harness.again().list_volumes() if volume.workspace_id == workspace}
    assert mine == {1, 3}
    assert harness.runtime.get_volume(workspace, 2) is None
    assert harness.runtime.get_volume(workspace, 3) == Volume(workspace, 3)


def test_start_without_a_volume_is_missing_and_creates_none(harness: Harness) -> None:
    workspace = harness.workspace()
    with pytest.raises(MissingError):
        harness.runtime.start(workspace, 1, harness.spec)
    assert harness.runtime.get_volume(workspace, 1) is None
    assert harness.runtime.get_container(workspace) is None


def test_start_gives_a_running_container_that_answers_and_twice_is_once(harness: Harness) -> None:
    workspace = harness.workspace()
    harness.runtime.provision(workspace, 1, harness.spec)
    container = harness.runtime.start(workspace, 1, harness.spec)
    assert (container.workspace_id, container.generation, container.state) == (workspace, 1, ContainerState.RUNNING)
    harness.ready(container)
    assert harness.again().start(workspace, 1, harness.spec).instance_id == container.instance_id
    (listed,) = [found for found in harness.again().list_containers() if found.workspace_id == workspace]
    assert (listed.instance_id, listed.state, listed.endpoint) == (container.instance_id, ContainerState.RUNNING, container.endpoint)
    assert harness.again().get_container(workspace) == listed


def test_start_with_another_generation_replaces_the_container(harness: Harness) -> None:
    workspace = harness.workspace()
    for generation in (1, 2):
        harness.runtime.provision(workspace, generation, harness.spec)
    first = harness.runtime.start(workspace, 1, harness.spec)
    second = harness.runtime.start(workspace, 2, harness.spec)
    assert second.generation == 2
    assert second.instance_id != first.instance_id
    assert [found.generation for found in harness.runtime.list_containers() if found.workspace_id == workspace] == [2]


def test_a_container_that_died_is_seen_as_stopped_and_replaced_by_start(harness: Harness) -> None:
    workspace = harness.workspace()
    harness.runtime.provision(workspace, 1, harness.spec)
    first = harness.ready(harness.runtime.start(workspace, 1, harness.spec))
    harness.kill(workspace)
    dead = harness.runtime.get_container(workspace)
    assert dead
    assert (dead.state, dead.endpoint) == (ContainerState.STOPPED, "")
    assert not harness.runtime.probe(dead, harness.spec)
    assert not harness.runtime.probe(first, harness.spec)
    second = harness.runtime.start(workspace, 1, harness.spec)
    assert second.instance_id != first.instance_id
    harness.ready(second)


def test_delete_removes_the_container_and_leaves_the_volume(harness: Harness) -> None:
    workspace = harness.workspace()
    harness.runtime.provision(workspace, 1, harness.spec)
    harness.runtime.start(workspace, 1, harness.spec)
    harness.runtime.delete(workspace)
    harness.again().delete(workspace)
    assert harness.runtime.get_container(workspace) is None
    assert workspace not in {found.workspace_id for found in harness.runtime.list_containers()}
    assert harness.runtime.get_volume(workspace, 1)


def test_delete_of_one_instance_leaves_a_newer_one_alone(harness: Harness) -> None:
    workspace = harness.workspace()
    harness.runtime.provision(workspace, 1, harness.spec)
    first = harness.runtime.start(workspace, 1, harness.spec)
    harness.runtime.delete(workspace, only=first.instance_id)
    assert harness.runtime.get_container(workspace) is None
    second = harness.runtime.start(workspace, 1, harness.spec)
    harness.runtime.delete(workspace, only=first.instance_id)
    left = harness.runtime.get_container(workspace)
    assert left
    assert left.instance_id == second.instance_id


def test_a_volume_in_use_is_not_removed(harness: Harness) -> None:
    workspace = harness.workspace()
    harness.runtime.provision(workspace, 1, harness.spec)
    harness.runtime.start(workspace, 1, harness.spec)
    with pytest.raises(ActionFailedError):
        harness.runtime.delete_volume(workspace, 1)
    assert harness.runtime.get_volume(workspace, 1)


def test_two_installations_do_not_see_each_other(harness: Harness) -> None:
    workspace = harness.workspace()
    harness.runtime.provision(workspace, 1, harness.spec)
    harness.runtime.start(workspace, 1, harness.spec)
    other = harness.other()
    assert other.list_containers() == []
    assert other.list_volumes() == []
    assert other.get_container(workspace) is None
    assert other.get_volume(workspace, 1) is None
    other.delete(workspace)
    other.delete_volume(workspace, 1)
    with pytest.raises(MissingError):
        other.start(workspace, 1, harness.spec)
    assert harness.runtime.get_container(workspace)
    assert harness.runtime.get_volume(workspace, 1)


TREE = [
    HOME,
    Node(b"plain", data=b"content" * 1000),
    Node(b"empty"),
    Node(b"dir", DIRECTORY, mode=0o2750, mtime_ns=1_400_000_000 * 10**9),
    Node(b"dir/run", data=b"#!/bin/sh\n", mode=0o4755),
    Node(b"dir/closed", DIRECTORY, mode=0o500),
    Node(b"dir/closed/secret", mode=0o000, data=b"s"),
    Node(b"up", SYMLINK, link=b"../../outside", mode=0o777),
    Node(b"abs", SYMLINK, link=b"/etc/passwd", mode=0o777),
    Node(b"self", SYMLINK, link=b"plain", mode=0o777),
    Node(b"dangling", SYMLINK, link=b"x" * 300, mode=0o777),
    Node(b"caf\xe9", data=b"latin"),
    Node("한글 이름".encode(), data=b"utf-8"),
    Node(b"new\nline \"quote' \\ *", data=b"odd"),
    Node(b"other", data=b"o", uid=4321, gid=8765),
]


def test_a_home_written_and_read_is_the_same(harness: Harness) -> None:
    workspace = harness.workspace()
    harness.runtime.provision(workspace, 1, harness.spec)
    deep = [Node(b"/".join([b"deep"] * depth), DIRECTORY, mode=0o755) for depth in range(1, 60)]
    hard = [Node(b"zz-hard", HARD_LINK, link=b"plain")]
    content = tar_of([*TREE, *deep, *hard])
    harness.runtime.write_volume(workspace, 1, chunked(content))
    back = home_of(harness.runtime, workspace, 1)
    assert read_nodes(back) == read_nodes(content)
    assert inodes(back) == {frozenset({b"./plain", b"./zz-hard"})}


@pytest.mark.parametrize("harness", REAL, indirect=True)
def test_a_home_is_what_the_container_sees(harness: Harness) -> None:
    workspace = harness.workspace()
    harness.runtime.provision(workspace, 1, harness.spec)
    spec = with_command(harness.spec, "sh", "-c", "echo made > inside; cat there; sleep 600")
    harness.runtime.write_volume(workspace, 1, [tar_of([HOME, Node(b"there", data=b"hello from the tar\n")])])
    harness.runtime.start(workspace, 1, spec)
    for _ in range(500):
        if "hello from the tar" in harness.runtime.logs(workspace):
            break
        threading.Event().wait(0.01)
    assert "hello from the tar" in harness.runtime.logs(workspace)
    harness.runtime.delete(workspace)
    assert read_nodes(home_of(harness.runtime, workspace, 1))[b"inside"].data == b"made\n"


class OwnError(Exception):
    """What the writer's stream raises."""


def test_an_error_of_the_stream_stops_the_write_and_comes_out_as_it_is(harness: Harness) -> None:
    workspace = harness.workspace()
    harness.runtime.provision(workspace, 1, harness.spec)

    def broken() -> Iterator[bytes]:
        yield tar_of(TREE)[:2048]
        raise OwnError

    with pytest.raises(OwnError):
        harness.runtime.write_volume(workspace, 1, broken())
    harness.runtime.delete_volume(workspace, 1)
    assert harness.runtime.get_volume(workspace, 1) is None


def test_reading_and_writing_a_volume_that_is_not_there_is_missing(harness: Harness) -> None:
    workspace = harness.workspace()
    with pytest.raises(MissingError), harness.runtime.read_volume(workspace, 1):
        pass
    with pytest.raises(MissingError):
        harness.runtime.write_volume(workspace, 1, [tar_of([HOME])])
    assert harness.runtime.get_volume(workspace, 1) is None


def test_a_reader_that_stops_early_leaves_nothing_behind(harness: Harness) -> None:
    workspace = harness.workspace()
    harness.runtime.provision(workspace, 1, harness.spec)
    harness.runtime.write_volume(workspace, 1, [tar_of([HOME, *(Node(b"%d" % n, data=b"x" * 100_000) for n in range(50))])])
    with harness.runtime.read_volume(workspace, 1) as stream:
        next(stream)
    assert harness.runtime.remove_leftovers(older_than=datetime.now(UTC) + timedelta(hours=1)) == 0
    harness.runtime.delete_volume(workspace, 1)


def test_leftovers_are_never_a_container_or_a_volume_of_a_workspace(harness: Harness) -> None:
    workspace = harness.workspace()
    harness.runtime.provision(workspace, 1, harness.spec)
    harness.runtime.start(workspace, 1, harness.spec)
    harness.runtime.remove_leftovers(older_than=datetime.now(UTC) + timedelta(hours=1))
    assert harness.runtime.get_container(workspace)
    assert harness.runtime.get_volume(workspace, 1)


def test_logs_are_what_the_ide_printed_and_empty_without_a_container(harness: Harness) -> None:
    workspace = harness.workspace()
    assert harness.runtime.logs(workspace) == ""
    harness.runtime.provision(workspace, 1, harness.spec)
    harness.ready(harness.runtime.start(workspace, 1, harness.spec))
    assert harness.runtime.logs(workspace).strip()
    assert len(harness.runtime.logs(workspace, lines=1).splitlines()) == 1
    printed = harness.runtime.logs(workspace)
    assert harness.runtime.delete(workspace).startswith(printed)
    assert harness.runtime.delete(workspace) == ""


def test_what_cannot_be_had_is_told_as_such(harness: Harness) -> None:
    workspace = harness.workspace()
    harness.runtime.provision(workspace, 1, harness.spec)
    bad = replace(harness.spec, image="codehub/no-such-image:latest", command=("no-such-program",))
    if harness.runtime.name == "fake":
        harness.runtime.images = {harness.spec.image}  # type: ignore[attr-defined]

    def have_it() -> None:
        harness.runtime.ensure_image(bad.image, unheard)
        harness.runtime.start(workspace, 1, bad)

    with pytest.raises(ImagePullFailedError):
        have_it()
    harness.runtime.ensure_image(harness.spec.image, unheard)


@pytest.mark.parametrize("harness", REAL, indirect=True)
def test_a_container_that_ends_at_once_is_stopped_with_its_code(harness: Harness) -> None:
    workspace = harness.workspace()
    harness.runtime.provision(workspace, 1, harness.spec)
    harness.runtime.start(workspace, 1, with_command(harness.spec, "sh", "-c", "exit 3"))
    for _ in range(500):
        found = harness.runtime.get_container(workspace)
        assert found
        if found.state is ContainerState.STOPPED and found.exit_code is not None:
            break
        threading.Event().wait(0.01)
    assert found
    assert found.exit_code == 3


def test_changes_come_as_events(harness: Harness) -> None:
    workspace = harness.workspace()
    seen: queue.Queue[object] = queue.Queue()
    runtime = harness.again()

    def follow() -> None:
        for subject in runtime.events():
            seen.put(subject)

    harness.runtime.provision(workspace, 1, harness.spec)
    threading.Thread(target=follow, daemon=True).start()

    def came() -> bool:
        try:
            return seen.get(timeout=1) == workspace
        except queue.Empty:
            return False

    # The stream says nothing when it is open: start and stop until the first event comes.
    for _ in range(20):
        harness.runtime.start(workspace, 1, harness.spec)
        if came():
            return
        harness.runtime.delete(workspace)
    pytest.fail("no event came")


def test_free_space_is_known_or_said_to_be_unknown(harness: Harness) -> None:
    free = harness.runtime.free_bytes()
    assert free is None or free > 0


def test_the_length_of_a_home_is_about_that_of_its_tar_or_said_to_be_unknown(harness: Harness) -> None:
    workspace = harness.workspace()
    harness.runtime.provision(workspace, 1, harness.spec)
    harness.runtime.write_volume(workspace, 1, [tar_of([HOME, *(Node(b"%d" % n, data=b"x" * 100_000) for n in range(50))])])
    told = harness.runtime.home_bytes(workspace, 1)
    assert told is None or 0.9 < told / len(home_of(harness.runtime, workspace, 1)) < 1.1
    assert harness.runtime.home_bytes(uuid4(), 1) is None


def test_unknown_workspaces_are_no_error(harness: Harness) -> None:
    unknown = uuid4()
    harness.runtime.delete(unknown)
    harness.runtime.delete_volume(unknown, 1)
    assert harness.runtime.get_container(unknown) is None
