"""A coordinator process whose controller only leaves traces: what the two-process tests start, stop, freeze and kill.

Each tick is one "provider call" (a line in the file `TRACE`) and one transaction of two rows written through the connection that
leads. Everything else (leadership, loops, wake-ups, events) is the real thing.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from uuid import UUID

import django

django.setup()

from django.conf import settings  # noqa: E402 - needs the set-up above
from django.db import transaction  # noqa: E402

from coordinator.events import EventsWork  # noqa: E402
from coordinator.leader import Timing  # noqa: E402
from coordinator.loops import Coordinator, ReconcileWork, Work, stop_on_signals, wait_for_database  # noqa: E402
from coordinator.reconcile import TickReport  # noqa: E402
from coordinator.wakeups import POSTGRES_ERRORS, PostgresSource, SourceThread  # noqa: E402
from workspaces.models import AuditEvent  # noqa: E402

TRACE = Path(os.environ["TRACE"])
INSIDE = float(os.environ.get("INSIDE", "0"))


def trace(what: str) -> None:
    line = json.dumps({"pid": os.getpid(), "what": what, "at": time.time()}) + "\n"
    descriptor = os.open(TRACE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, line.encode())
    os.close(descriptor)


class TracingController:
    """Calls outside, then writes inside a transaction; may dwell there, so that it can be frozen in the middle."""

    between: Callable[[], None] | None = None

    def check_engine(self) -> None:
        return None

    def tick(self) -> TickReport:
        return self._act("tick")

    def reconcile(self, ids: Collection[UUID], *, probe: bool = False) -> TickReport:
        return self._act("reconcile")

    def _act(self, what: str) -> TickReport:
        trace("call")
        with transaction.atomic():
            AuditEvent.objects.create(action=what, actor_name=str(os.getpid()))
            if INSIDE:
                trace("inside")
                time.sleep(INSIDE)
            AuditEvent.objects.create(action=what, actor_name=str(os.getpid()))
        trace("wrote")
        return TickReport(0, 0, 0, False, True)


def main() -> None:
    stop = threading.Event()
    stop_on_signals(stop)
    timing = Timing(*(float(word) for word in os.environ.get("TIMING", "10,15,4").split(",")))
    interval = float(os.environ.get("INTERVAL", "0.1"))
    work = ReconcileWork(TracingController(), idle_interval=interval, active_interval=interval, active_duration=1)
    source = PostgresSource(wake=work.inbox.wake, wake_all=work.inbox.wake_all)
    config = settings.CONFIG
    events = EventsWork(url=config.redis_url, sse_prefix=config.redis_channel_sse_prefix, wake_prefix=config.redis_channel_wake_prefix)
    works: list[Work] = [work, events]
    wait_for_database(stop)
    coordinator = Coordinator(works, sources=[SourceThread(source, stop=stop, errors=POSTGRES_ERRORS)], stop=stop, timing=timing)
    coordinator.start()
    trace("started")
    stop.wait()
    coordinator.stop()
    trace("stopped")


if __name__ == "__main__":
    main()
