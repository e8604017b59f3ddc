"""Puts one coordinator process together: its loops, its wake-up sources and who tells whom.

Owns the wiring between loops only. The parts that touch the outside (engine, store, executor) are given.
"""

import json
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from uuid import UUID

import structlog

from codehub.config import Config
from coordinator.breaker import Breakers
from coordinator.events import EventsWork
from coordinator.executor import Executor
from coordinator.gc import Collector, GcWork
from coordinator.leader import Timing
from coordinator.logtail import WANT_CHANNEL, LogTaker
from coordinator.loops import Coordinator, ReconcileWork, Work
from coordinator.providers.base import ArchiveStore, Runtime
from coordinator.reconcile import Reconciler
from coordinator.status import shard_of
from coordinator.ttl import TtlWork
from coordinator.wakeups import (
    ENGINE_ERRORS,
    POSTGRES_ERRORS,
    REDIS_ERRORS,
    EngineSource,
    Inbox,
    PostgresSource,
    RedisSource,
    SourceThread,
    redis_client,
)

log = structlog.get_logger(__name__)

_ECHO_SECONDS = 2.0
LOOPS = ("events", "reconcile", "ttl", "gc")


class Switchboard:
    """Passes wake-ups on to the reconcile loops of this process: each shard is woken for its own workspaces."""

    def __init__(self) -> None:
        self.works: list[ReconcileWork] = []
        self.leading = threading.Event()
        self._led: set[int] = set()
        self._finished: dict[UUID, float] = {}
        self._lock = threading.Lock()

    def wish(self, workspace_id: UUID) -> None:
        """Somebody asked for something."""
        self._inbox(workspace_id).wake(workspace_id, wish=True)

    def wake(self, workspace_id: UUID) -> None:
        """Something happened to it."""
        self._inbox(workspace_id).wake(workspace_id)

    def finished(self, workspace_id: UUID) -> None:
        """A run ended in this process. Everybody else hears of it through Redis; our own echo is not worth a second look."""
        now = time.monotonic()
        with self._lock:
            self._finished = {key: at for key, at in self._finished.items() if now - at < _ECHO_SECONDS}
            self._finished[workspace_id] = now
        self.wake(workspace_id)

    def observe(self, workspace_id: UUID) -> None:
        """Somebody asks for a look, and finds the IDE's port dead perhaps."""
        with self._lock:
            echo = time.monotonic() - self._finished.pop(workspace_id, -_ECHO_SECONDS) < _ECHO_SECONDS
        if not echo:
            self._inbox(workspace_id).wake(workspace_id, probe=True)

    def wake_all(self) -> None:
        for work in self.works:
            work.inbox.wake_all()

    def doubt_engine(self) -> None:
        for work in self.works:
            work.doubt_engine()

    def set_leading(self, shard: int, leads: bool) -> None:
        with self._lock:
            (self._led.add if leads else self._led.discard)(shard)
            (self.leading.set if self._led else self.leading.clear)()

    def _inbox(self, workspace_id: UUID) -> Inbox:
        return self.works[shard_of(workspace_id, len(self.works))].inbox if self.works else Inbox()


@dataclass(slots=True)
class Assembled:
    """One process's parts, ready to start or to be ticked once."""

    works: list[Work]
    coordinator: Coordinator
    reconcilers: list[Reconciler]
    executor: Executor


def assemble(
    config: Config,
    *,
    runtime: Runtime,
    store: ArchiveStore,
    executor: Callable[[Callable[[UUID], None]], Executor],
    loops: Collection[str] = LOOPS,
    shards: int = 1,
    stop: threading.Event,
    timing: Timing | None = None,
) -> Assembled:
    """`executor` is given the function that wakes a workspace whose run ended here."""
    board = Switchboard()
    built = executor(board.finished)
    breakers = Breakers()

    def reconciler(shard: int) -> Reconciler:
        return Reconciler(runtime=runtime, store=store, executor=built, config=config, breakers=breakers, shards=shards, shard=shard)

    reconcilers = [reconciler(shard) for shard in range(shards)] if "reconcile" in loops else []
    board.works = [
        ReconcileWork(
            found,
            shard=shard,
            idle_interval=config.coordinator_idle_interval,
            active_interval=config.coordinator_active_interval,
            active_duration=config.coordinator_active_duration,
            leading=board.set_leading,
        )
        for shard, found in enumerate(reconcilers)
    ]
    works: list[Work] = []
    if "events" in loops:
        works.append(
            EventsWork(
                url=config.redis_url,
                sse_prefix=config.redis_channel_sse_prefix,
                wake_prefix=config.redis_channel_wake_prefix,
                wake_all=board.wake_all,
            )
        )
    works.extend(board.works)
    if "ttl" in loops:
        works.append(
            TtlWork(
                url=config.redis_url,
                standby_seconds=config.ttl_standby_seconds,
                archive_seconds=config.ttl_archive_seconds,
                interval=config.coordinator_ttl_interval,
            )
        )
    if "gc" in loops:
        collector = Collector(runtime=runtime, store=store, grace_seconds=config.gc_grace_seconds)
        engine = reconcilers[0] if reconcilers else reconciler(0)
        works.append(GcWork(collector, interval=config.coordinator_gc_interval, stop=stop, check_engine=engine.check_engine))
    sources = _sources(config, runtime=runtime, board=board, stop=stop) if board.works else []
    return Assembled(works, Coordinator(works, sources=sources, stop=stop, timing=timing), reconcilers, built)


def _sources(config: Config, *, runtime: Runtime, board: Switchboard, stop: threading.Event) -> Sequence[threading.Thread]:
    def tell_logs(workspace_id: UUID, user_id: int) -> None:
        client = redis_client(config.redis_url)
        try:
            client.publish(f"{config.redis_channel_sse_prefix}:{user_id}", json.dumps({"type": "logs", "id": str(workspace_id)}))
        except REDIS_ERRORS as error:
            log.info("logs not announced", workspace=str(workspace_id), error=str(error))
        finally:
            client.close()

    taker = LogTaker(runtime, leading=board.leading, stop=stop, told=tell_logs)
    postgres = PostgresSource(wake=board.wish, wake_all=board.wake_all)
    channels = RedisSource(
        url=config.redis_url,
        prefix=config.redis_channel_wake_prefix,
        wake=board.wish,
        observe=board.observe,
        wake_all=board.wake_all,
        want_logs=taker.want,
        told_directly=postgres.connected,
        logs_channel=WANT_CHANNEL,
    )
    engine = EngineSource(runtime, leading=board.leading, wake=board.wake, broke=board.doubt_engine)
    return [
        SourceThread(postgres, stop=stop, errors=POSTGRES_ERRORS),
        SourceThread(channels, stop=stop, errors=REDIS_ERRORS),
        SourceThread(engine, stop=stop, errors=ENGINE_ERRORS),
        taker,
    ]
