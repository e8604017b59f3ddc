"""A directory tree as a tar stream, and back: for runtimes that hold homes as plain directories.

Owns reading and writing of members with their metadata. Never follows a symlink nor leaves the tree, as long as nobody else writes
there; removes trees whose modes forbid it. Without root, owners stay the caller's own.
"""

# Names are bytes in any encoding, which pathlib does not take.
# ruff: noqa: PTH101, PTH103, PTH106, PTH108, PTH115, PTH118, PTH120, PTH123, PTH208, PTH211

import errno
import io
import os
import stat
import tarfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from coordinator.providers.base import ActionFailedError, Buffer
from coordinator.providers.tarstream import (
    BLOCK,
    BLOCK_DEVICE,
    CAPABILITY,
    CHAR_DEVICE,
    DIRECTORY,
    END_OF_TAR,
    FIFO,
    HARD_LINK,
    REGULAR,
    SYMLINK,
    Member,
    TarScanner,
    make_header,
    scan,
)

CHUNK = 1 << 20
_CAPABILITY = "security.capability"
# CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
_READS_ANYTHING = 1 << 1 | 1 << 2
# What a person waits for a total without noticing; a home that takes longer to look through shows bytes and speed instead.
LOOK_SECONDS = 2.0


def sees_every_file() -> bool:
    """Whether this process may read any file here and is told its true owner: root, with its powers, in no namespace of users."""
    try:
        status = Path("/proc/self/status").read_text()
        owners = Path("/proc/self/uid_map").read_text().split()
    except OSError:
        return False
    powers = int(status.partition("CapEff:")[2].split()[0], 16)
    return os.geteuid() == 0 and bool(powers & _READS_ANYTHING) and owners == ["0", "0", "4294967295"]


def read_tree(root: bytes) -> Iterator[bytes]:
    """The tree as a whole tar with names `./x`. A file that changes its length meanwhile is a failure, never a short member."""
    buffered: list[bytes] = []
    size = 0
    for part in _read_members(root):
        buffered.append(part)
        size += len(part)
        if size >= CHUNK:
            yield b"".join(buffered)
            buffered, size = [], 0
    yield b"".join([*buffered, END_OF_TAR])


def tree_bytes(root: bytes, *, seconds: float = LOOK_SECONDS) -> int | None:
    """About how long its tar would be, from sizes alone. None: it may not be looked into, or takes longer than that."""
    deadline = time.monotonic() + seconds
    linked: set[tuple[int, int]] = set()
    total = BLOCK + len(END_OF_TAR)
    stack = [root]
    try:
        while stack:
            if time.monotonic() > deadline:
                return None
            with os.scandir(stack.pop()) as entries:
                for entry in entries:
                    total += BLOCK
                    if entry.is_dir(follow_symlinks=False):
                        stack.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        info = entry.stat(follow_symlinks=False)
                        if info.st_nlink > 1:
                            if (info.st_dev, info.st_ino) in linked:
                                continue
                            linked.add((info.st_dev, info.st_ino))
                        total += info.st_size + -info.st_size % BLOCK
    except OSError:
        return None
    return total


def _read_members(root: bytes) -> Iterator[bytes]:
    linked: dict[tuple[int, int], bytes] = {}
    closed: list[tuple[bytes, int]] = []
    try:
        yield _header(b"./", os.lstat(root), DIRECTORY)
        stack = [b""]
        while stack:
            directory = stack.pop()
            _open_up(os.path.join(root, directory), closed)
            below = []
            for name, info in _children(os.path.join(root, directory)):
                relative = os.path.join(directory, name)
                if stat.S_ISDIR(info.st_mode):
                    below.append(relative)
                    yield _header(b"./" + relative + b"/", info, DIRECTORY)
                else:
                    yield from _read_other(os.path.join(root, relative), b"./" + relative, info, linked)
            stack.extend(reversed(below))
    finally:
        for path, mode in reversed(closed):
            os.chmod(path, mode)


def _read_other(path: bytes, member: bytes, info: os.stat_result, linked: dict[tuple[int, int], bytes]) -> Iterator[bytes]:
    if info.st_nlink > 1:
        first = linked.setdefault((info.st_dev, info.st_ino), member)
        if first != member:
            yield _header(member, info, HARD_LINK, link=first)
            return
    if stat.S_ISREG(info.st_mode):
        yield from _read_file(path, member, info)
    elif stat.S_ISLNK(info.st_mode):
        yield _header(member, info, SYMLINK, link=os.readlink(path))
    else:
        yield _header(member, info, _special_kind(info.st_mode))


def _special_kind(mode: int) -> int:
    """Tar has no sockets: shown as fifos, so that whoever leaves special files out can count them."""
    if stat.S_ISCHR(mode):
        return CHAR_DEVICE
    return BLOCK_DEVICE if stat.S_ISBLK(mode) else FIFO


def _header(name: bytes, info: os.stat_result, kind: int, *, link: bytes = b"", size: int = 0, capability: bytes = b"") -> bytes:
    return make_header(
        name,
        kind,
        size=size,
        link=link,
        mode=stat.S_IMODE(info.st_mode),
        uid=info.st_uid,
        gid=info.st_gid,
        mtime_ns=info.st_mtime_ns,
        capability=capability,
    )


def _capability_of(descriptor: int) -> bytes:
    try:
        return os.getxattr(descriptor, _CAPABILITY)
    except OSError:
        # None, or a file system without such attributes.
        return b""


def _children(directory: bytes) -> Iterator[tuple[bytes, os.stat_result]]:
    """In order. Only names are held: somebody may keep millions of files in one directory."""
    for name in sorted(os.listdir(directory)):
        yield name, os.lstat(os.path.join(directory, name))


def _read_file(path: bytes, member: bytes, info: os.stat_result) -> Iterator[bytes]:
    closed: list[tuple[bytes, int]] = []
    _open_up(path, closed, bits=0o400)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    finally:
        for opened, mode in closed:
            os.chmod(opened, mode)
    with open(descriptor, "rb", buffering=0) as file:
        left = os.fstat(file.fileno()).st_size
        yield _header(member, info, REGULAR, size=left, capability=_capability_of(file.fileno()))
        padding = bytes(-left % BLOCK)
        while left:
            part = file.read(min(CHUNK, left))
            if not part:
                raise ActionFailedError("a file became shorter while it was read", stderr=os.fsdecode(member))
            left -= len(part)
            yield part
        yield padding


def _open_up(path: bytes, closed: list[tuple[bytes, int]], *, bits: int = 0o500) -> None:
    """Owners may forbid themselves to read; as they are us, lift that and note what to put back. Root needs none of it."""
    if os.geteuid() == 0:
        return
    mode = stat.S_IMODE(os.lstat(path).st_mode)
    if mode & bits != bits:
        os.chmod(path, mode | bits)
        closed.append((path, mode))


class _IterableFile(io.RawIOBase):
    """What tarfile reads from. Errors of the iterable come out as they are."""

    def __init__(self, stream: Iterator[Buffer]) -> None:
        self._stream = stream
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while not self._rest:
            part = next(self._stream, None)
            if part is None:
                return b""
            self._rest = memoryview(part)
        taken = self._rest[:size] if size >= 0 else self._rest
        self._rest = self._rest[len(taken) :]
        return bytes(taken)


class _ForgetfulTar(tarfile.TarFile):
    """Keeps no list of the members it has seen: a home may have millions."""

    members: list[tarfile.TarInfo]

    def next(self) -> tarfile.TarInfo | None:
        member = super().next()
        self.members = []
        return member


def write_tree(root: bytes, stream: Iterable[Buffer]) -> None:
    """Fill an empty directory from a whole tar with names `./x`. Directories get their modes and times last."""
    checked = scan(stream, TarScanner(_any_member))
    directories: list[tuple[bytes, tarfile.TarInfo]] = []
    try:
        source = _IterableFile(checked)
        with _ForgetfulTar.open(fileobj=source, mode="r|", encoding="utf-8", errors="surrogateescape") as tar:
            while member := tar.next():
                _write_member(root, tar, member, directories)
        for _ in checked:
            pass
        for path, member in reversed(directories):
            _give_metadata(path, member)
    except (OSError, tarfile.TarError) as error:
        raise ActionFailedError("the home cannot be unpacked", stderr=str(error)) from error


def _any_member(member: Member) -> bool:
    return True


def _inside(root: bytes, name: str) -> bytes:
    return os.path.normpath(os.path.join(root, os.fsencode(name)))


def _write_member(root: bytes, tar: tarfile.TarFile, member: tarfile.TarInfo, directories: list[tuple[bytes, tarfile.TarInfo]]) -> None:
    path = _inside(root, member.name)
    if member.isdir():
        os.makedirs(path, exist_ok=True)
        os.chmod(path, 0o700)
        directories.append((path, member))
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if member.islnk():
        os.link(_inside(root, member.linkname), path, follow_symlinks=False)
        return
    if member.issym():
        os.symlink(os.fsencode(member.linkname), path)
    elif member.isreg():
        _write_file(path, tar, member)
    else:
        raise ActionFailedError("a home holds files, directories and links only", stderr=member.name)
    _give_metadata(path, member)


def _write_file(path: bytes, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb", buffering=0) as file:
        source = tar.extractfile(member)
        left = member.size
        while left and source:
            part = source.read(min(CHUNK, left))
            if not part:
                raise ActionFailedError("the archive ends inside a file", stderr=member.name)
            left -= len(part)
            rest = memoryview(part)
            while rest:
                # A disk that fills up takes some of the bytes and says so; only the next write fails.
                rest = rest[file.write(rest) :]


def _give_metadata(path: bytes, member: tarfile.TarInfo) -> None:
    if os.geteuid() == 0:
        os.chown(path, member.uid, member.gid, follow_symlinks=False)
    if not member.issym():
        os.chmod(path, member.mode & 0o7777)
    if os.geteuid() == 0 and (capability := member.pax_headers.get(CAPABILITY.decode())):
        # After the owner: a change of it takes them away. Where they cannot be kept, the file itself is what matters.
        try:
            os.setxattr(path, _CAPABILITY, capability.encode("utf-8", "surrogateescape"), follow_symlinks=False)
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EPERM):
                raise
    when = _mtime_ns(member)
    os.utime(path, ns=(when, when), follow_symlinks=False)


def _mtime_ns(member: tarfile.TarInfo) -> int:
    """tarfile's float has lost the last digits; the pax record has them."""
    text = member.pax_headers.get("mtime", "")
    if not text:
        return int(member.mtime) * 10**9
    whole, _, rest = text.partition(".")
    value = abs(int(whole)) * 10**9 + int(rest[:9].ljust(9, "0") or 0)
    return -value if whole.startswith("-") else value


def remove_tree(root: bytes) -> None:
    """Gone on return, whatever modes its directories have and however deep it is. Symlinks are removed, not followed."""
    stack = [root]
    order = []
    while stack:
        directory = stack.pop()
        order.append(directory)
        os.chmod(directory, 0o700)
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    stack.append(entry.path)
                else:
                    os.unlink(entry.path)
    for directory in reversed(order):
        os.rmdir(directory)
