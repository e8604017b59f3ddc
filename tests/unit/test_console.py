"""What `up` prints and keeps never stops the programs that write it: not a closed terminal, not a full disk."""

import io
from pathlib import Path

import pytest

from codehub.embedded.console import Console, LogFile


class _Gone(io.StringIO):
    """A terminal that was closed: the kernel answers EIO."""

    def write(self, text: str, /) -> int:
        raise OSError(5, "Input/output error")


def test_a_closed_terminal_stops_nobody() -> None:
    Console(_Gone()).say("web", "still here")


def test_a_line_on_a_full_disk_is_dropped_and_later_ones_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Path("/dev/full")
    log = LogFile(tmp_path, "web")
    log.write("before")
    with monkeypatch.context() as patch:
        patch.setattr(log, "_file", io.FileIO(full, "w"))
        log.write("lost")
        log._file.close()
    log.write("after")
    log.close()
    assert (tmp_path / "web.log").read_text() == "before\nafter\n"
