"""The tar reader alone: whole streams pass as they are, broken and ambiguous ones are refused, names are rewritten in place."""

import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.members import HomeGuard
from coordinator.providers.tarstream import (
    DIRECTORY,
    END_OF_TAR,
    HARD_LINK,
    REGULAR,
    SYMLINK,
    Member,
    TarScanner,
    TarStreamError,
    UnsafeMemberError,
    decimal_time,
    make_header,
    normalised,
    parse_time,
    pax_blocks,
    pax_record,
    scan,
)


def tar_of(*members: tuple[tarfile.TarInfo, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def entry(name: str, kind: bytes = tarfile.REGTYPE, *, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    return info


def passed(content: bytes, scanner: TarScanner, *, step: int = 700) -> bytes:
    chunks = (content[start : start + step] for start in range(0, len(content), step))
    return b"".join(bytes(part) for part in scan(chunks, scanner))


def everything(member: Member) -> bool:
    return True


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
@pytest.mark.parametrize("step", [1, 511, 512, 513, 100_000])
def test_a_whole_tar_passes_unchanged_whatever_the_chunks(form: int, step: int) -> None:
    content = tar_of(
        (entry("./", tarfile.DIRTYPE), b""),
        (entry("./a"), b"x" * 1000),
        (entry("./" + "d" * 90 + "/" + "e" * 90), b"long"),
        (entry("./s", tarfile.SYMTYPE, link="../../elsewhere"), b""),
        (entry("./h", tarfile.LNKTYPE, link="./a"), b""),
        form=form,
    )
    scanner = TarScanner(everything)
    assert passed(content, scanner, step=step) == content
    assert scanner.members == 5


@pytest.mark.parametrize("cut", [1, 511, 512, 1024])
def test_a_tar_without_its_whole_end_is_refused(cut: int) -> None:
    content = make_header(b"./a", REGULAR, size=3) + b"abc" + bytes(509) + END_OF_TAR
    with pytest.raises(TarStreamError):
        passed(content[:-cut], TarScanner(everything))


def test_a_tar_cut_inside_a_member_is_refused() -> None:
    content = make_header(b"./a", REGULAR, size=3000) + b"abc"
    with pytest.raises(TarStreamError, match="inside a member"):
        passed(content, TarScanner(everything))


def test_an_empty_stream_is_refused() -> None:
    with pytest.raises(TarStreamError, match="end marker"):
        passed(b"", TarScanner(everything))


def test_what_follows_the_end_marker_is_refused() -> None:
    with pytest.raises(TarStreamError, match="goes on"):
        passed(END_OF_TAR + make_header(b"./a", REGULAR), TarScanner(everything))


def test_a_wrong_checksum_is_refused() -> None:
    header = bytearray(make_header(b"./a", REGULAR))
    header[0] ^= 1
    with pytest.raises(TarStreamError, match="checksum"):
        passed(bytes(header) + END_OF_TAR, TarScanner(everything))


def test_dropped_members_leave_a_whole_tar_of_the_others() -> None:
    content = tar_of((entry("./a"), b"1" * 600), (entry("./drop" * 30), b"2" * 5000), (entry("./b"), b"3"))
    kept = passed(content, TarScanner(lambda member: not member.name.startswith(b"drop")))
    with tarfile.open(fileobj=io.BytesIO(kept)) as tar:
        assert [member.name for member in tar] == ["./a", "./b"]


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_names_and_hard_links_are_moved_below_another_root_and_symlinks_are_not(form: int) -> None:
    long = "./" + "d" * 90 + "/" + "e" * 90
    content = tar_of(
        (entry("./", tarfile.DIRTYPE), b""),
        (entry(long), b"x"),
        (entry("./h", tarfile.LNKTYPE, link="./a"), b""),
        (entry("./s", tarfile.SYMTYPE, link="./a"), b""),
        form=form,
    )
    moved = passed(content, TarScanner(everything, root=ord("v")))
    with tarfile.open(fileobj=io.BytesIO(moved)) as tar:
        assert [(member.name, member.linkname) for member in tar] == [("v", ""), ("v" + long[1:], ""), ("v/h", "v/a"), ("v/s", "./a")]


def test_names_without_the_leading_dot_are_given_one() -> None:
    content = tar_of(
        (entry("plain"), b"1"), (entry("link", tarfile.LNKTYPE, link="plain"), b""), (entry("sym", tarfile.SYMTYPE, link="x"), b"")
    )
    with tarfile.open(fileobj=io.BytesIO(passed(content, TarScanner(everything)))) as tar:
        assert [(member.name, member.linkname) for member in tar] == [("./plain", ""), ("./link", "./plain"), ("./sym", "x")]


HOSTILE = {
    "dotdot": make_header(b"./../x", REGULAR),
    "dotdot inside": make_header(b"./a/../../x", REGULAR),
    "absolute": make_header(b"/etc/passwd", REGULAR),
    "absolute in pax": pax_blocks(pax_record(b"path", b"/etc/passwd")) + make_header(b"./ok", REGULAR),
    "hard link out": make_header(b"./l", HARD_LINK, link=b"../x"),
    "hard link absolute": make_header(b"./l", HARD_LINK, link=b"/etc/passwd"),
    "hard link to the home": make_header(b"./l", HARD_LINK, link=b"./"),
    "char device": make_header(b"./d", b"3"[0]),
    "block device": make_header(b"./d", b"4"[0]),
    "fifo": make_header(b"./d", b"6"[0]),
    "through a symlink": make_header(b"./s", SYMLINK, link=b"/etc") + make_header(b"./s/x", REGULAR),
    "through a symlink, oddly named": make_header(b"./s", SYMLINK, link=b"/etc") + make_header(b".//./s//x", REGULAR),
    "through a linked symlink": make_header(b"./s", SYMLINK, link=b"/etc")
    + make_header(b"./t", HARD_LINK, link=b"./s")
    + make_header(b"./t/x", REGULAR),
    "in place of a symlink": make_header(b"./s", SYMLINK, link=b"/etc") + make_header(b"./s", REGULAR),
    "directory in place of a symlink": make_header(b"./s", SYMLINK, link=b"/etc") + make_header(b"./s/", DIRECTORY),
    "hard link through a symlink": make_header(b"./s", SYMLINK, link=b"/") + make_header(b"./l", HARD_LINK, link=b"./s/etc/passwd"),
    "the home as a symlink": make_header(b"./", SYMLINK, link=b"/"),
    "unknown kind": make_header(b"./x", b"7"[0]),
    "global header": make_header(b"./x", b"g"[0]),
    "sparse": pax_blocks(pax_record(b"GNU.sparse.major", b"1")) + make_header(b"./x", REGULAR),
    "link with data": make_header(b"./x", HARD_LINK, link=b"./y", size=512) + bytes(512),
    "two pax headers": pax_blocks(pax_record(b"path", b"./a")) * 2 + make_header(b"./x", REGULAR),
    "file named as a directory": make_header(b"./x/", REGULAR),
    "NUL in a name": pax_blocks(pax_record(b"path", b"./a\0b")) + make_header(b"./x", REGULAR),
    "broken pax": pax_blocks(b"99 path=./a\n") + make_header(b"./x", REGULAR),
    "negative size": pax_blocks(pax_record(b"size", b"-1")) + make_header(b"./x", REGULAR),
    "too large": make_header(b"./x", REGULAR, size=1 << 40),
    "too many": make_header(b"./x", REGULAR) * 11,
    "nothing but an extended header": pax_blocks(pax_record(b"path", b"./a")),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_restore_refuses(content: bytes) -> None:
    with pytest.raises(TarStreamError):
        passed(content + END_OF_TAR, TarScanner(HomeGuard(max_bytes=1 << 30, max_files=10)))


def test_a_restore_takes_symlinks_wherever_they_point() -> None:
    content = make_header(b"./s", SYMLINK, link=b"../../etc") + make_header(b"./t", SYMLINK, link=b"/etc") + END_OF_TAR
    assert passed(content, TarScanner(HomeGuard(max_bytes=1, max_files=10))) == content


@pytest.mark.parametrize(
    ("name", "expected"),
    [(b"./", b""), (b".", b""), (b"./a", b"a"), (b"a/", b"a"), (b".//a/./b", b"a/b"), (b"./.x", b".x"), (b"./..x/a..", b"..x/a..")],
)
def test_names_are_normalised(name: bytes, expected: bytes) -> None:
    assert normalised(name) == expected


@given(st.binary(min_size=1, max_size=300).filter(lambda name: b"\0" not in name))
def test_no_name_passes_that_would_leave_the_home(name: bytes) -> None:
    try:
        clean = normalised(name)
    except UnsafeMemberError:
        return
    assert not clean.startswith(b"/")
    assert not {b"", b".", b".."} & set(clean.split(b"/")) or clean == b""


@given(st.integers(min_value=-(10**19), max_value=10**20))
def test_times_are_exact_to_the_nanosecond(when: int) -> None:
    assert parse_time(decimal_time(when)) == when


@given(
    name=st.binary(min_size=1, max_size=400).filter(lambda n: b"\0" not in n and b"/" not in n and n not in (b".", b"..")),
    size=st.integers(0, 1 << 50),
    mtime=st.integers(-(10**18), 10**19),
    uid=st.integers(0, 1 << 31),
)
def test_headers_that_are_made_are_read_back_the_same(name: bytes, size: int, mtime: int, uid: int) -> None:
    seen: list[Member] = []

    def look(member: Member) -> bool:
        seen.append(member)
        return True

    TarScanner(look).feed(make_header(b"./" + name, REGULAR, size=size, mode=0o4755, uid=uid, gid=uid, mtime_ns=mtime))
    assert seen == [Member(name, REGULAR, size, b"", 0o4755, uid, uid, mtime)]
