"""What is really there: three listings for everyone, or direct looks at one workspace. Never guesses.

Owns asking and its limits in time: an engine that hangs makes things unknown, it does not stop the loop. A failed listing is
unknown, never empty. Plans nothing.
"""

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import structlog

from coordinator.archives import meta_key
from coordinator.asking import Askers, NoAnswerError
from coordinator.breaker import Breakers
from coordinator.providers.base import ArchiveStore, Container, ContainerSpec, ContainerState, ProviderError, Runtime, Volume
from coordinator.specs import load_specs
from coordinator.state import ArchiveSight, ContainerSight, Look, Observation, Sight, Snapshot

log = structlog.get_logger(__name__)

ENGINE, STORE = "docker", "s3"
LISTING_SECONDS = 10.0
LOOK_SECONDS = 5.0
# How much older than a commit a listing may seem because clocks were read at slightly different moments.
_MARGIN = timedelta(seconds=2)
_NONE: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ArchiveListing:
    keys: frozenset[str]
    began: float
    """When it was begun, on this process's monotonic clock."""


@dataclass(frozen=True, slots=True)
class Listing:
    """One look at everything. None: could not be asked."""

    containers: Mapping[UUID, Container] | None = None
    volumes: Mapping[UUID, frozenset[int]] | None = None
    archives: ArchiveListing | None = None

    @property
    def observed(self) -> bool:
        return self.containers is not None and self.volumes is not None


@dataclass(slots=True)
class Observer:
    runtime: Runtime
    store: ArchiveStore
    breakers: Breakers
    archive_interval: float = 60.0
    background: bool = True
    """List archives in a thread of their own. Off, they are listed on the spot, for tests and single looks."""
    _askers: Askers = field(default_factory=Askers)
    _silent: set[str] = field(default_factory=set)
    """Systems that did not answer when they were asked last."""
    _archives: ArchiveListing | None = None
    _archives_began: float | None = None
    _archives_lock: threading.Lock = field(default_factory=threading.Lock)

    def close(self) -> None:
        self._askers.close()

    # --- everything at once
    def list_everything(self) -> Listing:
        """One listing of containers and one of volumes; the archives' from its own thread, with its age."""
        self._list_archives()
        if not self.breakers.may_ask(ENGINE):
            return Listing(archives=self._archives)
        listed = self._askers.ask({"containers": self.runtime.list_containers, "volumes": self.runtime.list_volumes}, LISTING_SECONDS)
        self._count(ENGINE, [next((answer for answer in listed.values() if isinstance(answer, Exception)), None)])
        containers = None if isinstance(listed["containers"], Exception) else listed["containers"]
        volumes = None if isinstance(listed["volumes"], Exception) else listed["volumes"]
        return Listing(
            containers=None if containers is None else _one_each(containers),
            volumes=None if volumes is None else _by_workspace(volumes),
            archives=self._archives,
        )

    def _count(self, name: str, answers: Collection[object]) -> None:
        """Tell the breaker how asking went. One answer among many shows that the system is there, whatever hangs beside it."""
        if not answers:
            return
        failures = [answer for answer in answers if isinstance(answer, Exception)]
        for failure in failures:
            if not isinstance(failure, (ProviderError, NoAnswerError)):
                log.error("observation failed", system=name, error=repr(failure))
        if len(failures) < len(answers):
            self._record_answer(name)
        else:
            self._record_silence(name, str(failures[0]))

    def _record_answer(self, name: str) -> None:
        self.breakers.record_success(name)
        if name in self._silent:
            self._silent.discard(name)
            log.info("observed again", system=name)

    def _record_silence(self, name: str, error: str) -> None:
        """Said once: what is away is asked again and again."""
        self.breakers.record_failure(name, error)
        if name not in self._silent:
            self._silent.add(name)
            log.warning("cannot be observed", system=name, error=error)

    def _list_archives(self) -> None:
        now = time.monotonic()
        with self._archives_lock:
            due = self._archives_began is None or now - self._archives_began >= self.archive_interval
            if not due or not self.breakers.may_ask(STORE):
                return
            self._archives_began = now
        if self.background:
            threading.Thread(target=self._list_archives_now, args=(now,), name="archive-listing", daemon=True).start()
        else:
            self._list_archives_now(now)

    def _list_archives_now(self, began: float) -> None:
        try:
            keys = frozenset(found.key for found in self.store.list())
        except ProviderError as error:
            self._archives = None
            self._record_silence(STORE, str(error))
        except Exception as error:
            # A listing that broke in an unforeseen way is no listing; the thread's end must not go unnoticed.
            self._archives = None
            log.exception("archives could not be listed", error=repr(error))
        else:
            self._archives = ArchiveListing(keys, began)
            self._record_answer(STORE)

    def try_store(self) -> None:
        """While object storage's breaker waits for trials nothing else would ask it: ask for an object that never exists."""
        if self.breakers.is_closed(STORE) or not self.breakers.may_ask(STORE):
            return
        answers = self._askers.ask({"trial": lambda: (self.store.head("trial"),)}, LOOK_SECONDS)
        self._count(STORE, [answers["trial"]])

    def observation(self, ws: Snapshot, listing: Listing, *, now: datetime) -> Observation:
        """What the listings say of one workspace."""
        generation = ws.generation
        generations = listing.volumes.get(ws.id, _NONE) if listing.volumes is not None else None
        seen: dict[str, Any] = {
            "volume": _sight(None if generations is None else generation in generations),
            "any_volume": _sight(None if generations is None else bool(generations)),
            "generation": generation,
            "archive_key": ws.archive_key,
        }
        if ws.archive_key is not None:
            seen["archive"] = self._archive_sight(ws, listing.archives, now=now)
        if listing.containers is not None:
            seen |= _container_values(listing.containers.get(ws.id))
        return Observation(**seen)

    def _archive_sight(self, ws: Snapshot, archives: ArchiveListing | None, *, now: datetime) -> ArchiveSight:
        if ws.archive_key is None or archives is None:
            return ArchiveSight.UNKNOWN
        began = now - timedelta(seconds=time.monotonic() - archives.began)
        if ws.archived_at is None or ws.archived_at + _MARGIN >= began:
            # It was stored after the listing began: not finding it there means nothing.
            return ArchiveSight.UNKNOWN
        if ws.archive_key not in archives.keys:
            return ArchiveSight.ABSENT
        return ArchiveSight.PRESENT if meta_key(ws.archive_key) in archives.keys else ArchiveSight.NO_META

    # --- one by one
    def look(self, wanted: Mapping[UUID, tuple[Snapshot, Observation, Collection[Look]]]) -> dict[UUID, Observation]:
        """Ask directly, for many workspaces side by side. What does not answer in time is unknown."""
        questions: dict[tuple[UUID, Look], Callable[[], object]] = {}
        specs = load_specs([key for key, (_, _, looks) in wanted.items() if Look.PROBE in looks])
        for key, (ws, _, looks) in wanted.items():
            for look in looks:
                if self.breakers.may_ask(STORE if look is Look.ARCHIVE else ENGINE):
                    questions[key, look] = self._question(ws, look, specs.get(key))
        answers = self._askers.ask(questions, LOOK_SECONDS)
        self._count(STORE, [answer for (_, look), answer in answers.items() if look is Look.ARCHIVE])
        self._count(ENGINE, [answer for (_, look), answer in answers.items() if look is not Look.ARCHIVE])
        seen: dict[UUID, Observation] = {}
        for key, (ws, before, looks) in wanted.items():
            found = before
            for look in looks:
                found = _seen(ws, found, look, answers.get((key, look), NoAnswerError("the circuit breaker is open")))
            seen[key] = found
        return seen

    def look_at_engine(self, wanted: Mapping[UUID, Snapshot], *, probe: bool) -> dict[UUID, Observation]:
        """A whole targeted observation of each, without object storage (asked when a decision needs it)."""
        looks: list[Look] = [Look.CONTAINER, Look.VOLUME]
        start = {key: (ws, Observation(generation=ws.generation, archive_key=ws.archive_key), looks) for key, ws in wanted.items()}
        seen = self.look(start)
        deleting = {key: ws for key, ws in wanted.items() if ws.deleted_at is not None}
        if deleting:
            volumes = self._all_volumes()
            for key in deleting:
                sight = _sight(None if volumes is None else bool(volumes.get(key)))
                seen[key] = replace(seen[key], any_volume=sight)
        if probe:
            alive = {key: (wanted[key], one, [Look.PROBE]) for key, one in seen.items() if one.container is ContainerSight.RUNNING}
            seen |= self.look(alive)
        return seen

    def _all_volumes(self) -> Mapping[UUID, frozenset[int]] | None:
        if not self.breakers.may_ask(ENGINE):
            return None
        answer = self._askers.ask({"volumes": self.runtime.list_volumes}, LISTING_SECONDS)["volumes"]
        self._count(ENGINE, [answer])
        return None if isinstance(answer, Exception) else _by_workspace(answer)

    def _question(self, ws: Snapshot, look: Look, spec: ContainerSpec | None) -> Callable[[], object]:
        match look:
            case Look.CONTAINER:
                return lambda: self.runtime.get_container(ws.id)
            case Look.VOLUME:
                return lambda: self.runtime.get_volume(ws.id, ws.generation)
            case Look.ARCHIVE:
                return lambda: self._head(ws.archive_key)
            case Look.PROBE:
                return lambda: self._probe(ws, spec)

    def _head(self, key: str | None) -> ArchiveSight:
        if key is None or self.store.head(key) is None:
            return ArchiveSight.ABSENT
        return ArchiveSight.PRESENT if self.store.head(meta_key(key)) is not None else ArchiveSight.NO_META

    def _probe(self, ws: Snapshot, spec: ContainerSpec | None) -> tuple[Container | None, bool]:
        """The port, of the container that is there at this moment."""
        container = self.runtime.get_container(ws.id)
        alive = container is not None and container.state is ContainerState.RUNNING
        return container, bool(alive and container is not None and spec is not None and self.runtime.probe(container, spec))


def _seen(ws: Snapshot, found: Observation, look: Look, answer: object) -> Observation:
    """One answer put into an observation. An exception makes that kind unknown."""
    failed = isinstance(answer, Exception)
    match look:
        case Look.CONTAINER:
            values = (
                {"container": ContainerSight.UNKNOWN} if failed else _container_values(answer if isinstance(answer, Container) else None)
            )
            return replace(found, **values, container_direct=True)
        case Look.VOLUME:
            sight = Sight.UNKNOWN if failed else _sight(isinstance(answer, Volume))
            return replace(found, volume=sight, volume_direct=True, generation=ws.generation)
        case Look.ARCHIVE:
            archive = answer if isinstance(answer, ArchiveSight) else ArchiveSight.UNKNOWN
            return replace(found, archive=archive, archive_direct=True, archive_key=ws.archive_key)
        case Look.PROBE:
            if not isinstance(answer, tuple):
                return replace(found, container=ContainerSight.UNKNOWN, container_direct=True)
            container, listening = answer
            return replace(found, **_container_values(container), container_direct=True, listening=listening)


def _container_values(container: Container | None) -> dict[str, Any]:
    if container is None:
        return {"container": ContainerSight.ABSENT, "instance": "", "endpoint": "", "container_generation": 0}
    return {
        "container": ContainerSight.RUNNING if container.state is ContainerState.RUNNING else ContainerSight.STOPPED,
        "container_generation": container.generation,
        "instance": container.instance_id,
        "endpoint": container.endpoint,
        "exit_code": container.exit_code,
        "detail": container.detail,
        "ended_in_order": container.is_ended_in_order,
    }


def _sight(found: bool | None) -> Sight:
    if found is None:
        return Sight.UNKNOWN
    return Sight.PRESENT if found else Sight.ABSENT


def _one_each(containers: Collection[Container]) -> dict[UUID, Container]:
    """Two can exist after somebody renamed one: the one that runs is the one that matters."""
    found = {one.workspace_id: one for one in containers}
    if len(found) < len(containers):
        found |= {one.workspace_id: one for one in containers if one.state is ContainerState.RUNNING}
    return found


def _by_workspace(volumes: Collection[Volume]) -> dict[UUID, frozenset[int]]:
    grouped: dict[UUID, set[int]] = {}
    for volume in volumes:
        grouped.setdefault(volume.workspace_id, set()).add(volume.generation)
    return {key: frozenset(generations) for key, generations in grouped.items()}
