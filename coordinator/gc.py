"""Garbage collection: what exists outside and no row accounts for, remembered, and removed after a grace.

Protective by construction: everything is listed before any row is read, a failure of either skips the cycle, the grace is the
database's, and protection is asked again right before each removal. What belongs to no row waits for an operator.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any, Literal, TypeVar
from uuid import UUID

import structlog
from django.db import connection

from coordinator.leader import AsideTimeoutError, LeadershipLostError, Term, aside
from coordinator.providers.base import ArchiveStore, ProviderError, Runtime, UnreachableError
from coordinator.wakeups import Inbox

log = structlog.get_logger(__name__)
T = TypeVar("T")

MAX_REMOVED = 1_000
"""Removals of one cycle; what remains is taken up soon."""
_CHUNK = 50
_VERIFY_EVERY = 4.0
_SOON = 60.0
_FIRST_DELAY = 20.0
_LISTING_SECONDS = 900.0
_REMOVAL_SECONDS = 900.0
# Clocks of engines and stores may differ from the database's by less than this.
_LEAST_AGE = 3_600
# Made before any run that has not ended began, and old: what made it is no more.
_LEFT_BEHIND = """
    SELECT LEAST(now() - make_interval(secs => %(age)s),
        (SELECT min(COALESCE(started_at, now())) FROM workspaces_attempt WHERE finished_at IS NULL) - interval '1 hour')
"""

Kind = Literal["container", "volume", "archive"]
# A container holds its volume: it goes first.
_ORDER: dict[Kind, int] = {"container": 0, "volume": 1, "archive": 2}

# Ordinals of what nothing protects, and whether a row accounts for it. The current generation is an orphan, too, once its removal or
# a restore into it was given up: the home is in the archive, and whatever comes next takes a new generation. A generation above the current one can only come from a
# future this database does not know (an older backup was restored): as little ours to judge as a workspace without a row.
_UNPROTECTED = """
    SELECT f.ordinal,
        w.id IS NOT NULL AND NOT (
            f.kind = 'volume' AND w.deleted_at IS NULL AND f.generation > COALESCE((w.home_ctx->>'generation')::int, 0)
        ) AS known
    FROM unnest(%(kinds)s::text[], %(ids)s::uuid[], %(generations)s::int[], %(op_ids)s::uuid[], %(names)s::text[])
        WITH ORDINALITY AS f(kind, workspace_id, generation, op_id, name, ordinal)
    LEFT JOIN workspaces_workspace w ON w.id = f.workspace_id
    WHERE (
        w.id IS NULL OR w.deleted_at IS NOT NULL OR (
            w.phase <> 'ERROR' AND (
                (f.kind = 'archive' AND (f.op_id IS NULL OR f.op_id IS DISTINCT FROM w.archive_op_id)
                    AND NOT starts_with(COALESCE(w.archive_key, ''), f.name))
                OR (f.kind = 'volume' AND f.generation <> COALESCE((w.home_ctx->>'generation')::int, 0))
                OR (f.kind = 'volume' AND w.phase = 'ARCHIVED' AND w.operation = 'NONE'
                    AND (w.conditions->'storage.archive_ready'->>'status')::boolean
                    AND NOT COALESCE((w.home_ctx->>'whole')::boolean, false) AND NOT COALESCE((w.home_ctx->>'expected')::boolean, false))
            )
        )
    )
"""
# A run that has not ended may be reading or writing just this: it is looked at again next time.
_AND_NOTHING_RUNS = """
    AND NOT EXISTS (SELECT 1 FROM workspaces_attempt a WHERE a.workspace_id = f.workspace_id AND a.finished_at IS NULL)
"""
_REMEMBER = """
    INSERT INTO workspaces_orphan AS o (kind, name, workspace_id, known, size, first_seen_at, last_seen_at)
    SELECT f.kind, f.name, f.workspace_id, f.known, f.size, now(), now()
    FROM unnest(%(kinds)s::text[], %(names)s::text[], %(ids)s::uuid[], %(known)s::boolean[], %(sizes)s::bigint[])
        AS f(kind, name, workspace_id, known, size)
    ON CONFLICT (kind, name) DO UPDATE SET last_seen_at = now(), size = EXCLUDED.size, known = EXCLUDED.known,
        workspace_id = EXCLUDED.workspace_id
"""
_FORGET = """
    DELETE FROM workspaces_orphan o
    WHERE NOT EXISTS (SELECT 1 FROM unnest(%(kinds)s::text[], %(names)s::text[]) AS f(kind, name) WHERE f.kind = o.kind AND f.name = o.name)
"""
_SEEN = """
    SELECT kind, name, first_seen_at + make_interval(secs => %(grace)s), confirmed_at IS NOT NULL,
        first_seen_at + make_interval(secs => %(grace)s) <= now()
    FROM workspaces_orphan
"""


@dataclass(frozen=True, slots=True)
class Thing:
    """Something that exists outside. An archive is everything below its folder, `.meta` included."""

    kind: Kind
    name: str
    workspace_id: UUID | None
    generation: int | None = None
    op_id: UUID | None = None
    size: int | None = None
    keys: tuple[str, ...] = ()
    known: bool = True


@dataclass(frozen=True, slots=True)
class Entry:
    """An orphan, and what is to become of it."""

    thing: Thing
    due: bool
    """Its grace is over and, where a row does not account for it, an operator confirmed."""
    free_at: datetime | None
    """When its grace ends; None: not seen before."""
    confirmed: bool


@dataclass(frozen=True, slots=True)
class Report:
    entries: tuple[Entry, ...]
    removed: int = 0
    bytes_freed: int = 0
    failed: int = 0
    more: bool = False
    """Some were due and left for the next cycle."""


class Collector:
    """One cycle at a time. `beat` is called while something slow runs aside; it raises when nothing may go on."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        store: ArchiveStore,
        grace_seconds: int,
        beat: Callable[[], None] = lambda: None,
        every: float = 0.5,
        max_removed: int = MAX_REMOVED,
    ) -> None:
        self._runtime = runtime
        self._store = store
        self._grace = grace_seconds
        self.beat = beat
        self._every = every
        self._max_removed = max_removed

    def plan(self) -> Report:
        """What a cycle would find and remove. Changes nothing, not even the memory of orphans."""
        return Report(self._entries(self._orphans()))

    def collect(self) -> Report:
        """One cycle. Any failure to list or to query comes out before anything was removed."""
        orphans = self._orphans()
        self.beat()
        _remember(orphans)
        self._sweep_leftovers()
        entries = self._entries(orphans)
        due = sorted((entry.thing for entry in entries if entry.due), key=lambda thing: (_ORDER[thing.kind], thing.name))
        report = Report(entries, more=len(due) > self._max_removed)
        for chunk in _chunks(due[: self._max_removed], _CHUNK):
            self.beat()
            report = self._remove(chunk, report)
        return report

    def _orphans(self) -> list[Thing]:
        # Listed first, rows read after: what was begun in between is in the rows and cannot be taken for an orphan.
        things = self._aside(self._list, seconds=_LISTING_SECONDS)
        return unprotected(things)

    def _list(self) -> list[Thing]:
        return [*_archives(self._store), *_containers(self._runtime), *_volumes(self._runtime)]

    def _entries(self, orphans: Sequence[Thing]) -> tuple[Entry, ...]:
        with connection.cursor() as cursor:
            cursor.execute(_SEEN, {"grace": self._grace})
            seen = {(kind, name): (free_at, confirmed, over) for kind, name, free_at, confirmed, over in cursor.fetchall()}
        entries = []
        for thing in orphans:
            free_at, confirmed, over = seen.get((thing.kind, thing.name), (None, False, False))
            entries.append(Entry(thing, due=over and (thing.known or confirmed), free_at=free_at, confirmed=confirmed))
        return tuple(entries)

    def _remove(self, things: Sequence[Thing], report: Report) -> Report:
        """Asked again in the same step: an archive may have become somebody's, a run may have begun."""
        allowed = [thing for thing in unprotected(things, idle=True) if thing in things]
        over = threading.Event()
        try:
            gone, failed = self._aside(lambda: self._delete(allowed, over), seconds=_REMOVAL_SECONDS)
        finally:
            # A term that ended meanwhile leaves the thread behind: it must not go on in its name.
            over.set()
        with connection.cursor() as cursor:
            cursor.execute(
                "DELETE FROM workspaces_orphan WHERE (kind, name) IN (SELECT * FROM unnest(%s::text[], %s::text[]))",
                [[thing.kind for thing in gone], [thing.name for thing in gone]],
            )
        return replace(
            report,
            removed=report.removed + len(gone),
            bytes_freed=report.bytes_freed + sum(thing.size or 0 for thing in gone),
            failed=report.failed + failed,
        )

    def _delete(self, things: Sequence[Thing], over: threading.Event) -> tuple[list[Thing], int]:
        gone: list[Thing] = []
        failed = 0
        for thing in things:
            if over.is_set():
                break
            try:
                self._delete_one(thing)
            except UnreachableError:
                raise
            except ProviderError as error:
                failed += 1
                log.warning("orphan not removed", kind=thing.kind, name=thing.name, error=str(error))
            else:
                gone.append(thing)
                log.info("orphan removed", kind=thing.kind, name=thing.name, size=thing.size)
        return gone, failed

    def _delete_one(self, thing: Thing) -> None:
        if thing.kind == "archive":
            # The commit marker goes first: what a crash leaves is no archive to anybody.
            self._store.delete(sorted(thing.keys, key=lambda key: not key.endswith(".meta")))
        elif thing.workspace_id is not None and thing.kind == "container":
            self._runtime.delete(thing.workspace_id)
        elif thing.workspace_id is not None and thing.generation is not None:
            self._runtime.delete_volume(thing.workspace_id, thing.generation)

    def _sweep_leftovers(self) -> None:
        """What killed runs left of the providers' own making. It is in nobody's way: failing to remove it stops nothing."""
        with connection.cursor() as cursor:
            cursor.execute(_LEFT_BEHIND, {"age": max(self._grace, _LEAST_AGE)})
            [(older_than,)] = cursor.fetchall()
        for what, sweep in (("helpers", self._runtime.remove_leftovers), ("uploads", self._store.abort_stale_uploads)):
            try:
                removed = self._aside(partial(sweep, older_than=older_than), seconds=_REMOVAL_SECONDS)
            except (ProviderError, OSError, AsideTimeoutError) as error:
                log.warning("leftovers not removed", what=what, error=str(error))
            else:
                if removed:
                    log.info("leftovers removed", what=what, number=removed)

    def _aside(self, call: Callable[[], T], *, seconds: float) -> T:
        return aside(call, beat=self.beat, every=self._every, timeout=seconds)


def unprotected(things: Sequence[Thing], *, idle: bool = False) -> list[Thing]:
    """Those that no row protects now, in one statement. `idle`: nor is any run of their workspace unfinished."""
    with connection.cursor() as cursor:
        cursor.execute(
            _UNPROTECTED + (_AND_NOTHING_RUNS if idle else "") + "ORDER BY f.ordinal",
            {
                "kinds": [thing.kind for thing in things],
                "ids": [thing.workspace_id for thing in things],
                "generations": [thing.generation for thing in things],
                "op_ids": [thing.op_id for thing in things],
                "names": [thing.name for thing in things],
            },
        )
        return [replace(things[ordinal - 1], known=known) for ordinal, known in cursor.fetchall()]


def _remember(orphans: Sequence[Thing]) -> None:
    """What is an orphan now is remembered since when; what is none any more is forgotten, and starts anew if it becomes one."""
    facts: dict[str, Any] = {
        "kinds": [thing.kind for thing in orphans],
        "names": [thing.name for thing in orphans],
        "ids": [thing.workspace_id for thing in orphans],
        "known": [thing.known for thing in orphans],
        "sizes": [thing.size for thing in orphans],
    }
    with connection.cursor() as cursor:
        cursor.execute(_FORGET, facts)
        cursor.execute(_REMEMBER, facts)


def _archives(store: ArchiveStore) -> Iterator[Thing]:
    folders: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for stored in store.list():
        folder = "/".join(stored.key.split("/")[:2]) + "/" if stored.key.count("/") >= 2 else stored.key
        folders[folder].append((stored.key, stored.size))
    for folder, objects in folders.items():
        first, _, rest = folder.partition("/")
        yield Thing(
            "archive",
            folder,
            _uuid(first),
            op_id=_uuid(rest.rstrip("/")),
            size=sum(size for _, size in objects),
            keys=tuple(key for key, _ in objects),
        )


def _containers(runtime: Runtime) -> Iterator[Thing]:
    # By workspace: two can exist after somebody renamed one, and they go together.
    for container in {found.workspace_id: found for found in runtime.list_containers()}.values():
        yield Thing("container", f"ws-{container.workspace_id}", container.workspace_id, generation=container.generation)


def _volumes(runtime: Runtime) -> Iterator[Thing]:
    for volume in runtime.list_volumes():
        name = f"ws-{volume.workspace_id}-home-{volume.generation}"
        yield Thing("volume", name, volume.workspace_id, generation=volume.generation, size=volume.size)


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def _chunks(things: Iterable[Thing], size: int) -> Iterator[list[Thing]]:
    iterator = iter(things)
    while chunk := list(islice(iterator, size)):
        yield chunk


class GcWork:
    """A cycle once an interval, and again soon while more is due than one cycle may remove."""

    name = "gc"
    shard = 0

    def __init__(
        self,
        collector: Collector,
        *,
        interval: float,
        stop: threading.Event | None = None,
        check_engine: Callable[[], None] = lambda: None,
    ) -> None:
        """`check_engine` raises when this is another engine than ours: its listing would be a partial view."""
        self._collector = collector
        self._interval = interval
        self._stop_asked = stop or threading.Event()
        self._check_engine = check_engine
        self._more = False
        self._inbox = Inbox()
        self._term: Term | None = None
        self._verified = 0.0

    def begin(self, term: Term) -> None:
        self._term, self._verified = term, 0.0
        self._collector.beat = self._beat

    def wait(self, timeout: float) -> bool:
        return self._inbox.wait(timeout)

    def tick(self, term: Term, *, full: bool) -> None:
        self._check_engine()
        report = self._collector.collect()
        self._more = report.more
        log.info(
            "garbage collected",
            orphans=len(report.entries),
            unknown=sum(1 for entry in report.entries if not entry.thing.known),
            removed=report.removed,
            bytes_freed=report.bytes_freed,
            failed=report.failed,
        )

    def interval(self) -> float:
        return min(_SOON, self._interval) if self._more else self._interval

    def first_delay(self) -> float:
        return min(_FIRST_DELAY, self._interval)

    def end(self) -> None:
        self._more = False

    def poke(self) -> None:
        self._inbox.poke()

    def _beat(self) -> None:
        """While something slow runs aside: give up when told to stop, and show every few seconds that the term stands."""
        if self._stop_asked.is_set():
            raise LeadershipLostError("told to stop")
        if self._term is not None and time.monotonic() - self._verified >= _VERIFY_EVERY:
            self._term.verify()
            self._verified = time.monotonic()
