"""Any home, archived and restored, is the same home: content and metadata, on Docker and as plain directories."""

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from coordinator import archives
from coordinator.providers.tarstream import DIRECTORY, HARD_LINK, REGULAR, SYMLINK
from tests.contract.conftest import ON_DOCKER, Harness
from tests.contract.trees import HOME, SECOND, Node, chunked, home_of, inodes, read_nodes, tar_of
from tests.fakes.store import FakeStore

names = st.one_of(
    st.binary(min_size=1, max_size=40).map(lambda raw: raw.replace(b"/", b"_").replace(b"\0", b"_")),
    st.text(min_size=1, max_size=60).map(lambda text: text.encode("utf-8", "replace").replace(b"/", b"_").replace(b"\0", b"_")[:250]),
    st.sampled_from([b"a" * 255, b"..x", b"...", b" ", b"-rf", b"*", b"\n", b".hidden", b"\xff\xfe", b"\\"]),
).filter(lambda name: name not in (b".", b".."))
modes = st.integers(0, 0o7777)
seconds = st.integers(0, 4_000_000_000)
owners = st.integers(0, 70_000)
files = st.builds(
    Node, st.just(b""), st.just(REGULAR), st.binary(max_size=3000), st.just(b""), modes, owners, owners, seconds.map(lambda s: s * SECOND)
)
targets = st.binary(min_size=1, max_size=300).filter(lambda target: b"\0" not in target)
symlinks = st.builds(
    Node, st.just(b""), st.just(SYMLINK), st.just(b""), targets, st.just(0o777), owners, owners, seconds.map(lambda s: s * SECOND)
)
hard_links = st.just(Node(b"", HARD_LINK))
directories = st.builds(
    Node, st.just(b""), st.just(DIRECTORY), st.just(b""), st.just(b""), modes, owners, owners, seconds.map(lambda s: s * SECOND)
)
leaves = st.one_of(files, symlinks, hard_links)
subtrees = st.recursive(leaves, lambda below: st.tuples(directories, st.dictionaries(names, below, max_size=4)), max_leaves=25)
trees = st.dictionaries(names, subtrees, max_size=6)


def flattened(tree: object, prefix: bytes, seen: list[Node]) -> Iterator[Node]:
    """Members in the order of a tar; a hard link is one to a file that came before, if there is any, with its metadata."""
    assert isinstance(tree, dict)
    for name, value in sorted(tree.items()):
        path = prefix + name
        if isinstance(value, tuple):
            node, below = value
            yield Node(path, DIRECTORY, mode=node.mode, uid=node.uid, gid=node.gid, mtime_ns=node.mtime_ns)
            yield from flattened(below, path + b"/", seen)
            continue
        node = Node(path, value.kind, value.data, value.link, value.mode, value.uid, value.gid, value.mtime_ns)
        if value.kind == HARD_LINK:
            target = seen[len(path) % len(seen)] if seen else Node(b"")
            node = replace(target, name=path, kind=HARD_LINK if seen else REGULAR, link=target.name, data=b"")
        if node.kind == REGULAR:
            seen.append(node)
        yield node


def through_an_archive(place: Harness, content: bytes) -> bytes:
    """The home as it is after it was written, archived, removed and restored."""
    workspace, store = place.workspace(), FakeStore()
    key = archives.archive_key(workspace, "op")
    place.runtime.provision(workspace, 1, place.spec)
    place.runtime.write_volume(workspace, 1, chunked(content))
    result = archives.archive_home(
        place.runtime, store, workspace_id=workspace, generation=1, key=key, progress=lambda *_: None, check=lambda: None
    )
    place.runtime.delete_volume(workspace, 1)
    archives.restore_home(
        place.runtime,
        store,
        workspace_id=workspace,
        generation=2,
        key=key,
        expected_sha256=result.sha256,
        spec=place.spec,
        max_bytes=1 << 30,
        max_files=100_000,
        progress=lambda *_: None,
        check=lambda: None,
    )
    after = home_of(place.runtime, workspace, 2)
    place.runtime.delete_volume(workspace, 2)
    assert [found for found in place.runtime.list_volumes() if found.workspace_id == workspace] == []
    return after


def same_after_an_archive(place: Harness, tree: object) -> None:
    content = tar_of([HOME, *flattened(tree, b"", [])])
    after = through_an_archive(place, content)
    assert read_nodes(after) == read_nodes(content)
    assert len(inodes(after)) == len(inodes(content))


EASY_GOING = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None, phases=[Phase.generate])


@pytest.mark.parametrize("place", ["process"], indirect=True)
@settings(EASY_GOING, max_examples=40)
@given(tree=trees)
def test_any_tree_comes_back_the_same_as_directories(place: Harness, tree: object) -> None:
    same_after_an_archive(place, tree)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("place", [ON_DOCKER], indirect=True)
@settings(EASY_GOING, max_examples=15)
@given(tree=trees)
def test_any_tree_comes_back_the_same_on_docker(place: Harness, tree: object) -> None:
    same_after_an_archive(place, tree)


def test_many_files_deep_paths_and_large_files_come_back_the_same(place: Harness) -> None:
    many = [Node(b"many", DIRECTORY, mode=0o755), *(Node(b"many/%d" % number, data=b"%d" % number) for number in range(3000))]
    deep = [Node(b"/".join([b"d" * 15] * depth), DIRECTORY, mode=0o755) for depth in range(1, 200)]
    large = [Node(b"sparse", data=bytes(20 << 20)), Node(b"noise", data=os.urandom(5 << 20))]
    content = tar_of([HOME, *many, *deep, *large])
    assert read_nodes(through_an_archive(place, content)) == read_nodes(content)
