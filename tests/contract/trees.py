"""Homes as values: building a tar of one, and reading one back for comparison."""

import io
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from uuid import UUID

from coordinator.providers.base import Runtime
from coordinator.providers.tarstream import BLOCK, DIRECTORY, END_OF_TAR, HARD_LINK, REGULAR, SYMLINK, make_header

SECOND = 10**9


@dataclass(frozen=True, slots=True)
class Node:
    """One member, by its name relative to the home (empty: the home itself)."""

    name: bytes
    kind: int = REGULAR
    data: bytes = b""
    link: bytes = b""
    mode: int = 0o644
    uid: int = 1000
    gid: int = 1000
    mtime_ns: int = 1_500_000_000 * SECOND


HOME = Node(b"", DIRECTORY, mode=0o755)


def tar_of(nodes: Iterable[Node]) -> bytes:
    out = []
    for node in nodes:
        name = b"./" + node.name + (b"/" if node.kind == DIRECTORY and node.name else b"")
        link = b"./" + node.link if node.kind == HARD_LINK else node.link
        out.append(
            make_header(name, node.kind, size=len(node.data), link=link, mode=node.mode, uid=node.uid, gid=node.gid, mtime_ns=node.mtime_ns)
        )
        out.append(node.data + bytes(-len(node.data) % BLOCK))
    return b"".join(out) + END_OF_TAR


def read_nodes(content: bytes) -> dict[bytes, Node]:
    """What a tar holds, with hard links resolved to their content: which of two names comes first is no difference."""
    found: dict[bytes, Node] = {}
    with tarfile.open(fileobj=io.BytesIO(content), encoding="utf-8", errors="surrogateescape") as tar:
        for member in tar:
            name = member.name.encode("utf-8", "surrogateescape").removeprefix(b".").removeprefix(b"/")
            link = member.linkname.encode("utf-8", "surrogateescape")
            if member.islnk():
                found[name] = found[link.removeprefix(b"./")]
                continue
            reader = tar.extractfile(member) if member.isreg() else None
            kind = DIRECTORY if member.isdir() else SYMLINK if member.issym() else REGULAR if member.isreg() else member.type[0]
            mode = 0o777 if member.issym() else member.mode & 0o7777
            found[name] = Node(
                name, kind, reader.read() if reader else b"", link, mode, member.uid, member.gid, int(member.mtime // 1) * SECOND
            )
    return {name: Node(name, n.kind, n.data, n.link, n.mode, n.uid, n.gid, n.mtime_ns) for name, n in found.items()}


def inodes(content: bytes) -> set[frozenset[bytes]]:
    """Which names share one file."""
    groups: dict[bytes, set[bytes]] = {}
    with tarfile.open(fileobj=io.BytesIO(content), encoding="utf-8", errors="surrogateescape") as tar:
        for member in tar:
            if member.islnk():
                first = member.linkname.encode("utf-8", "surrogateescape")
                groups.setdefault(first, {first}).add(member.name.encode("utf-8", "surrogateescape"))
    return {frozenset(group) for group in groups.values()}


def chunked(content: bytes, step: int = 100_000) -> Iterator[bytes]:
    for start in range(0, len(content), step):
        yield content[start : start + step]


def home_of(runtime: Runtime, workspace_id: UUID, generation: int) -> bytes:
    with runtime.read_volume(workspace_id, generation) as stream:
        return b"".join(stream)
