"""A server of coordinators that kill themselves: each is a fork that runs the real thing and dies by SIGKILL at one named point.

Reads one JSON object a line (`workspace`, `point`), answers with the process id, and with its end once it is over. The points lie
around the calls outside and the controller's writes; without a point the process lives until it is killed from outside.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import django

django.setup()

from django.conf import settings  # noqa: E402 - needs the set-up above
from django.db import connections  # noqa: E402

from coordinator import status  # noqa: E402
from coordinator.archives import ARCHIVE_NAME  # noqa: E402
from coordinator.assembly import assemble  # noqa: E402
from coordinator.providers.s3 import S3Store  # noqa: E402
from coordinator.runs import OpenRun, RunKeeper  # noqa: E402
from coordinator.wiring import build_executor, build_runtime, build_store  # noqa: E402
from workspaces.models import Installation  # noqa: E402
from workspaces.phases import Operation  # noqa: E402


class Fate:
    """Where this process is to die, for whose sake."""

    def __init__(self, workspace: str, point: str) -> None:
        self.workspace = UUID(workspace) if workspace else None
        self.point = point

    def passing(self, workspace_id: object, point: str) -> None:
        if workspace_id == self.workspace and point == self.point:
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)

    def chunks(self, workspace_id: object, what: str, stream: Iterable[bytes]) -> Iterator[bytes]:
        """Dies when the second chunk is asked for: the first has then been used."""
        for number, chunk in enumerate(stream):
            if number == 1:
                self.passing(workspace_id, f"{what} middle")
            yield chunk


class Around:
    """Everything of the inner one, with points before and after some calls."""

    watched: frozenset[str] = frozenset()

    def __init__(self, inner: Any, fate: Fate) -> None:
        self._inner, self._fate = inner, fate

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in self.watched:
            return found

        def watched(workspace_id: UUID, *args: Any, **options: Any) -> Any:
            self._fate.passing(workspace_id, f"{name} before")
            result = found(workspace_id, *args, **options)
            self._fate.passing(workspace_id, f"{name} after")
            return result

        return watched


class DeadlyRuntime(Around):
    watched = frozenset({"provision", "delete_volume", "start", "delete"})

    @contextmanager
    def read_volume(self, workspace_id: UUID, generation: int) -> Iterator[Iterator[bytes]]:
        self._fate.passing(workspace_id, "read_volume before")
        with self._inner.read_volume(workspace_id, generation) as stream:
            yield self._fate.chunks(workspace_id, "read_volume", stream)

    def write_volume(self, workspace_id: UUID, generation: int, stream: Iterable[bytes]) -> None:
        self._fate.passing(workspace_id, "write_volume before")
        self._inner.write_volume(workspace_id, generation, self._fate.chunks(workspace_id, "write_volume", stream))
        self._fate.passing(workspace_id, "write_volume after")


class _Source:
    """What an upload reads from."""

    def __init__(self, inner: Any, passing: Callable[[], None]) -> None:
        self._inner, self._passing, self._reads = inner, passing, 0

    def read(self, size: int = -1) -> bytes:
        self._reads += 1
        if self._reads == 4:
            # Three parts were read, and at least one of them is stored.
            self._passing()
        data: bytes = self._inner.read(size)
        return data


class DeadlyStore(Around):
    def put(self, key: str, stream: Any, *, part_size: int = 8 << 20, metadata: Mapping[str, str] | None = None) -> int:
        workspace_id, what = _named(key)
        self._fate.passing(workspace_id, f"put {what} before")
        if not isinstance(stream, bytes):
            stream = _Source(stream, lambda: self._fate.passing(workspace_id, f"put {what} middle"))
        sent: int = self._inner.put(key, stream, part_size=part_size, metadata=metadata)
        self._fate.passing(workspace_id, f"put {what} after")
        return sent

    def get(self, key: str) -> Any:
        workspace_id, what = _named(key)
        self._fate.passing(workspace_id, f"get {what} before")
        return self._inner.get(key)


def _named(key: str) -> tuple[UUID, str]:
    return UUID(key.partition("/")[0]), "archive" if key.endswith(ARCHIVE_NAME) else "meta"


def watch_the_controller(fate: Fate) -> None:
    """Points around the controller's writes and before the end of a run is written."""
    record, end = status.record_decisions, RunKeeper.end

    def recording(changed: Any) -> Any:
        points = [(row.snapshot.id, name) for row, decision in changed for name in _meaning(row.snapshot, decision.after)]
        for workspace_id, name in points:
            fate.passing(workspace_id, f"{name} before")
        written = record(changed)
        for workspace_id, name in points:
            fate.passing(workspace_id, f"{name} after")
        return written

    def ending(keeper: RunKeeper, run: OpenRun, *args: Any, **options: Any) -> bool:
        fate.passing(run.workspace_id, f"end {run.action} before")
        return end(keeper, run, *args, **options)

    vars(status)["record_decisions"] = recording
    type.__setattr__(RunKeeper, "end", ending)


def _meaning(before: Any, after: Any) -> Iterator[str]:
    if after.archive_key is not None and before.archive_key != after.archive_key:
        yield "commit"
    if before.operation is Operation.NONE and after.operation is not Operation.NONE:
        yield "claim"
    if before.operation is not Operation.NONE and after.operation is Operation.NONE:
        yield "complete"


def live(fate: Fate, installation: Installation, s3: S3Store) -> None:
    config = settings.CONFIG
    watch_the_controller(fate)
    runtime: Any = DeadlyRuntime(build_runtime(config, installation), fate)
    store: Any = DeadlyStore(s3, fate)
    parts = assemble(
        config,
        runtime=runtime,
        store=store,
        executor=lambda wake: build_executor(config, runtime=runtime, store=store, wake=wake),
        loops=("reconcile",),
        stop=threading.Event(),
    )
    connections.close_all()
    parts.coordinator.start()
    while True:
        time.sleep(60)


def main() -> None:
    installation = Installation.objects.get()
    s3 = build_store(settings.CONFIG, installation)
    # Made here for all of them, without a connection: it takes longer than everything else a fork does before it leads.
    s3._client()
    connections.close_all()
    for line in sys.stdin:
        asked = json.loads(line)
        pid = os.fork()
        if pid == 0:
            live(Fate(asked["workspace"], asked["point"]), installation, s3)
        print(pid, flush=True)
        _, ended = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(ended), flush=True)


if __name__ == "__main__":
    main()
