"""A lean reader of tar streams: it checks, filters and renames members while their data passes through untouched.

Owns the tar format: headers, pax and GNU long names, completeness. Decides nothing about which members are wanted (the
visitor does) and never touches the disk. Anything two tar readers could understand differently is refused.
"""

import re
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from coordinator.providers.base import Buffer

BLOCK = 512
_ZERO = bytes(BLOCK)
_MAX_EXTENSION = 1 << 20
_ODD_COMPONENT = re.compile(rb"(?:^|/)\.{0,2}(?:/|$)")

REGULAR, HARD_LINK, SYMLINK, CHAR_DEVICE, BLOCK_DEVICE, DIRECTORY, FIFO = b"0123456"
SPECIAL = frozenset((CHAR_DEVICE, BLOCK_DEVICE, FIFO))
_PAX, _GNU_NAME, _GNU_LINK = b"xLK"
# What engines call the one extended attribute they keep.
CAPABILITY = b"SCHILY.xattr.security.capability"


class TarStreamError(ValueError):
    """The stream is not a whole, plain tar. The message is for people."""


class UnsafeMemberError(TarStreamError):
    """A member that would leave the home, or that no home of ours holds."""


@dataclass(slots=True)
class Member:
    """What a visitor may look at. `name` is normalised: no leading `./`, no trailing slash; the home itself is empty."""

    name: bytes
    kind: int
    size: int
    link: bytes
    mode: int
    uid: int
    gid: int
    mtime_ns: int


def normalised(name: bytes) -> bytes:
    """The name relative to the home. Refuses absolute names and `..`; `.` and empty components vanish."""
    if name.startswith(b"/"):
        raise UnsafeMemberError(f"absolute name in the archive: {name[:200]!r}")
    if name.startswith(b"./"):
        name = name[2:]
    if name.endswith(b"/"):
        name = name[:-1]
    if not name or not _ODD_COMPONENT.search(name):
        return name
    parts = [part for part in name.split(b"/") if part not in (b"", b".")]
    if b".." in parts:
        raise UnsafeMemberError(f"name that leaves the home: {name[:200]!r}")
    return b"/".join(parts)


def _number(field: bytes) -> int:
    if field[0] & 0x80:
        if field[0] != 0x80:
            raise TarStreamError("negative number in a tar header")
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b" \0")
    try:
        return int(digits, 8) if digits else 0
    except ValueError:
        raise TarStreamError("broken number in a tar header") from None


def _signed(field: bytes) -> int:
    """A time may lie before 1970, in base 256."""
    return int.from_bytes(field, "big", signed=True) if field[0] == 0xFF else _number(field)


def _text(field: bytes) -> bytes:
    end = field.find(0)
    return field if end < 0 else field[:end]


def parse_pax(data: bytes) -> dict[bytes, tuple[bytes, int]]:
    """Records of a pax header: key -> (value, offset of the value)."""
    records: dict[bytes, tuple[bytes, int]] = {}
    position = 0
    while position < len(data):
        space = data.find(b" ", position, position + 20)
        try:
            length = int(data[position:space]) if space > 0 else 0
        except ValueError:
            length = 0
        equals = data.find(b"=", space, position + length)
        end = position + length
        if length < 5 or end > len(data) or equals < 0 or data[end - 1 : end] != b"\n":
            raise TarStreamError("broken pax header")
        records[data[space + 1 : equals]] = (data[equals + 1 : end - 1], equals + 1)
        position = end
    return records


def pax_record(key: bytes, value: bytes) -> bytes:
    """One record; its length counts its own digits."""
    rest = len(key) + len(value) + 3
    length = rest + len(str(rest))
    if len(str(length)) != len(str(rest)):
        length = rest + len(str(length))
    return b"%d %s=%s\n" % (length, key, value)


def make_header(
    name: bytes,
    kind: int,
    *,
    size: int = 0,
    link: bytes = b"",
    mode: int = 0o644,
    uid: int = 0,
    gid: int = 0,
    mtime_ns: int = 0,
    capability: bytes = b"",
) -> bytes:
    """Header blocks of one member: ustar, with a pax header before it for whatever ustar cannot say."""
    records: list[bytes] = [pax_record(CAPABILITY, capability)] if capability else []
    if len(name) > 100 or not name.isascii():
        records.append(pax_record(b"path", name))
    if len(link) > 100 or not link.isascii():
        records.append(pax_record(b"linkpath", link))
    whole, rest = divmod(mtime_ns, 10**9)
    if rest or not 0 <= whole <= 0o77777777777:
        records.append(pax_record(b"mtime", decimal_time(mtime_ns)))
    for key, value, limit in ((b"size", size, 0o77777777777), (b"uid", uid, 0o7777777), (b"gid", gid, 0o7777777)):
        if value > limit:
            records.append(pax_record(key, b"%d" % value))
    block = _ustar(name[:100], kind, size, link[:100], mode, uid, gid, max(0, min(whole, 0o77777777777)))
    return pax_blocks(b"".join(records)) + block if records else block


def decimal_time(mtime_ns: int) -> bytes:
    """Seconds as pax writes them, exact to the nanosecond, before 1970 too."""
    sign = b"-" if mtime_ns < 0 else b""
    whole, rest = divmod(abs(mtime_ns), 10**9)
    return sign + b"%d.%09d" % (whole, rest) if rest else sign + b"%d" % whole


def parse_time(text: bytes) -> int:
    """Nanoseconds of a pax time."""
    whole, _, rest = text.decode("ascii").partition(".")
    value = abs(int(whole)) * 10**9 + (int(rest[:9].ljust(9, "0")) if rest else 0)
    return -value if whole.startswith("-") else value


def _ustar(name: bytes, kind: int, size: int, link: bytes, mode: int, uid: int, gid: int, mtime: int) -> bytes:
    block = bytearray(
        struct.pack(
            "100s8s8s8s12s12s8sc100s8s32s32s8s8s155s12x",
            name,
            b"%07o\0" % (mode & 0o7777),
            b"%07o\0" % min(uid, 0o7777777),
            b"%07o\0" % min(gid, 0o7777777),
            b"%011o\0" % min(size, 0o77777777777),
            b"%011o\0" % mtime,
            b"        ",
            bytes((kind,)),
            link,
            b"ustar\x0000",
            b"",
            b"",
            b"0000000\0",
            b"0000000\0",
            b"",
        )
    )
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def pax_blocks(data: bytes) -> bytes:
    """A pax extended header with these records, padded."""
    return _ustar(b"././@PaxHeader", _PAX, len(data), b"", 0o644, 0, 0, 0) + data + bytes(-len(data) % BLOCK)


END_OF_TAR = bytes(2 * BLOCK)


class TarScanner:
    """Fed a tar stream in chunks of any size; gives back the chunks to pass on.

    `visit` is called once for each member, before its data, and answers whether to keep it; it may raise. With `root` every
    name (and hard link target) `./x` is written as `{root}/x`, a single letter, so that lengths stay as they are.
    """

    def __init__(self, visit: Callable[[Member], bool], *, root: int | None = None, verify: bool = True) -> None:
        self._visit = visit
        self._root = root
        self._verify = verify
        self._pending = b""
        self._left = 0
        self._keep = True
        self._zero_blocks = 0
        self.members = 0
        self.bytes_out = 0

    def feed(self, chunk: Buffer) -> list[Buffer]:
        view = memoryview(b"".join((self._pending, chunk)) if self._pending else chunk)
        self._pending = b""
        if self._root is not None and view.readonly:
            view = memoryview(bytearray(view))
        size = len(view)
        position = start = 0
        out: list[Buffer] = []
        while position < size:
            if self._left:
                step = min(self._left, size - position)
                self._left -= step
                position += step
                if not self._keep:
                    start = position
                continue
            group = self._group(view, position)
            if group is None:
                self._pending = bytes(view[position:])
                size = position
                break
            end, replacement = group
            if replacement is not None:
                out.append(view[start:position])
                out.append(replacement)
                start = end
            elif not self._keep:
                out.append(view[start:position])
                start = end
            position = end
        if start < size:
            out.append(view[start:size])
        out = [part for part in out if len(part)]
        self.bytes_out += sum(len(part) for part in out)
        return out

    def close(self) -> None:
        """Call at the end of the stream: raises unless the tar was whole."""
        if self._left or self._pending:
            raise TarStreamError("the tar stream ends inside a member")
        if self._zero_blocks < 2:
            raise TarStreamError("the tar stream ends without its end marker")

    def _group(self, view: memoryview, position: int) -> tuple[int, bytes | None] | None:
        """Read the headers of one member at `position`: where its data begins and, if they had to be made anew, the new
        headers. None: more bytes are needed."""
        cursor = position
        extensions: dict[int, tuple[int, int]] = {}
        while True:
            if len(view) - cursor < BLOCK:
                return None
            block = bytes(view[cursor : cursor + BLOCK])
            if self._zero_blocks or block == _ZERO:
                return self._end_marker(block, cursor, extensions)
            if self._verify:
                _check_sum(block)
            kind = block[156]
            if kind not in (_PAX, _GNU_NAME, _GNU_LINK):
                break
            length = _number(block[124:136])
            if length > _MAX_EXTENSION or kind in extensions:
                raise TarStreamError("extended header that is too long or given twice")
            body = cursor + BLOCK
            cursor = body + length + -length % BLOCK
            if cursor > len(view):
                return None
            extensions[kind] = (body, length)
        replacement = self._member(view, cursor, block, extensions)
        return cursor + BLOCK, replacement

    def _end_marker(self, block: bytes, cursor: int, extensions: dict[int, tuple[int, int]]) -> tuple[int, None]:
        if block != _ZERO:
            raise TarStreamError("the tar stream goes on after its end marker")
        if extensions:
            raise TarStreamError("extended header without a member")
        self._zero_blocks += 1
        self._keep = True
        return cursor + BLOCK, None

    def _member(self, view: memoryview, cursor: int, block: bytes, extensions: dict[int, tuple[int, int]]) -> bytes | None:
        if _PAX in extensions and len(extensions) > 1:
            raise TarStreamError("pax and GNU headers on one member")
        records: dict[bytes, tuple[bytes, int]] = {}
        pax_body = 0
        if _PAX in extensions:
            pax_body, length = extensions[_PAX]
            records = parse_pax(bytes(view[pax_body : pax_body + length]))
        raw_name, name_at = _long_text(view, records, pax_body, b"path", extensions.get(_GNU_NAME))
        raw_link, link_at = _long_text(view, records, pax_body, b"linkpath", extensions.get(_GNU_LINK))
        if name_at < 0:
            raw_name, name_at = _short_name(block, cursor)
        if link_at < 0:
            raw_link, link_at = _text(block[157:257]), cursor + 157
        member = _describe(block, records, raw_name, raw_link)
        self._left = member.size + -member.size % BLOCK
        self._keep = self._visit(member)
        self.members += self._keep
        if not self._keep or self._root is None:
            return None if not self._keep or _is_canonical(raw_name, raw_link, member) else _rebuilt(block, records, member)
        if not _is_canonical(raw_name, raw_link, member):
            raise TarStreamError("member names must begin with ./")
        _rename(view, cursor, name_at, self._root)
        if member.kind == HARD_LINK:
            _rename(view, cursor, link_at, self._root)
        return None


def _rename(view: memoryview, cursor: int, at: int, root: int) -> None:
    change = root - view[at]
    view[at] = root
    if at >= cursor:
        total = _number(bytes(view[cursor + 148 : cursor + 156])) + change
        view[cursor + 148 : cursor + 156] = b"%06o\0 " % total


def _check_sum(block: bytes) -> None:
    if sum(block) - sum(block[148:156]) + 256 != _number(block[148:156]):
        raise TarStreamError("tar header with a wrong checksum")


def _long_text(
    view: memoryview, records: dict[bytes, tuple[bytes, int]], pax_body: int, key: bytes, gnu: tuple[int, int] | None
) -> tuple[bytes, int]:
    """A name or link target given by an extended header, and where it lies in the buffer (-1: there is none)."""
    if gnu:
        return _text(bytes(view[gnu[0] : gnu[0] + gnu[1]])), gnu[0]
    value, offset = records.get(key, (b"", 0))
    if not value:
        return b"", -1
    if b"\0" in value:
        raise UnsafeMemberError("NUL in a name")
    return value, pax_body + offset


def _short_name(block: bytes, cursor: int) -> tuple[bytes, int]:
    name = _text(block[:100])
    if block[257:263] == b"ustar\0" and block[345]:
        return _text(block[345:500]) + b"/" + name, cursor + 345
    return name, cursor


def _describe(block: bytes, records: dict[bytes, tuple[bytes, int]], name: bytes, link: bytes) -> Member:
    kind = block[156] or REGULAR
    if not REGULAR <= kind <= FIFO:
        raise UnsafeMemberError(f"member of an unknown kind {chr(kind)!r}: {name[:200]!r}")
    if any(key.startswith(b"GNU.sparse") for key in records):
        raise TarStreamError("sparse member")
    size = _number(block[124:136])
    mtime_ns = _signed(block[136:148]) * 10**9
    uid, gid = _number(block[108:116]), _number(block[116:124])
    try:
        size = int(records[b"size"][0]) if b"size" in records else size
        uid = int(records[b"uid"][0]) if b"uid" in records else uid
        gid = int(records[b"gid"][0]) if b"gid" in records else gid
        mtime_ns = parse_time(records[b"mtime"][0]) if b"mtime" in records else mtime_ns
    except ValueError:
        raise TarStreamError("broken number in a pax header") from None
    if size < 0 or (size and kind != REGULAR):
        raise TarStreamError(f"member with data it cannot have: {name[:200]!r}")
    if kind == REGULAR and name.endswith(b"/"):
        raise TarStreamError(f"file with the name of a directory: {name[:200]!r}")
    clean = normalised(name)
    if not clean and kind != DIRECTORY:
        raise UnsafeMemberError("the home itself must be a directory")
    target = normalised(link) if kind == HARD_LINK else link
    return Member(clean, kind, size, target, _number(block[100:108]) & 0o7777, uid, gid, mtime_ns)


def _is_canonical(name: bytes, link: bytes, member: Member) -> bool:
    """Whether the names are `./x` as they stand, so that only their first byte tells the root."""
    if not name.startswith(b"./") and name != b".":
        return False
    return member.kind != HARD_LINK or link.startswith(b"./")


def _rebuilt(block: bytes, records: dict[bytes, tuple[bytes, int]], member: Member) -> bytes:
    """The same member with `./` names: another producer left them out."""
    changed = {key: value for key, (value, _) in records.items()}
    changed[b"path"] = b"./" + member.name
    if member.kind == HARD_LINK:
        changed[b"linkpath"] = b"./" + member.link
    elif member.kind == SYMLINK:
        changed[b"linkpath"] = member.link
    return pax_blocks(b"".join(pax_record(key, value) for key, value in changed.items())) + block


def scan(stream: Iterable[Buffer], scanner: TarScanner) -> Iterator[Buffer]:
    """The whole stream through a scanner; ends only after a whole tar."""
    for chunk in stream:
        yield from scanner.feed(chunk)
    scanner.close()
