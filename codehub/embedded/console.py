"""What a person who runs CodeHub in a terminal sees: one line at a time, the name of the process before it.

Owns the terminal and the log files under the data directory. Threads write here, so every line goes out whole.
"""

import os
import sys
import threading
from io import FileIO
from pathlib import Path
from typing import TextIO

from codehub.embedded.service import ensure_directory

COLORS = (36, 35, 33, 32, 34, 96, 95)
WIDTH = 11
LOG_BYTES = 10_000_000


class Console:
    """Prefixed lines on standard output."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self.in_color = self._stream.isatty() and not os.environ.get("NO_COLOR")
        self._lock = threading.Lock()
        self._colors: dict[str, int] = {}

    def say(self, name: str, text: str) -> None:
        with self._lock:
            prefix = f"{name:<{WIDTH}} | "
            if self.in_color:
                color = self._colors.setdefault(name, COLORS[len(self._colors) % len(COLORS)])
                prefix = f"\033[{color}m{prefix}\033[0m"
            try:
                self._stream.write("".join(f"{prefix}{line}\n" for line in text.splitlines() or [""]))
                self._stream.flush()
            except (OSError, ValueError):
                # Whoever read our output is gone, or its disk is full; the programs must go on, and stop in order when we are told to.
                return


class LogFile:
    """One program's whole output on disk, at most two files of ten megabytes."""

    def __init__(self, directory: Path, name: str) -> None:
        ensure_directory(directory)
        self._path = directory / f"{name}.log"
        self._file = self._open()

    def write(self, line: str) -> None:
        """A line that does not fit on a full disk is dropped: nobody may wait for it, least of all the program that wrote it."""
        try:
            self._file.write(f"{line}\n".encode(errors="replace"))
            if self._file.tell() > LOG_BYTES:
                self._file.close()
                self._path.replace(self._path.with_suffix(".log.1"))
                self._file = self._open()
        except (OSError, ValueError):
            return

    def close(self) -> None:
        self._file.close()

    def _open(self) -> FileIO:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        # Unbuffered: what could not be written must not be tried again with each later line.
        return FileIO(descriptor, "a")
