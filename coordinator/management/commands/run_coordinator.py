"""`manage.py run_coordinator`: the process that makes what was asked for true. Start as many as you like, anywhere."""

import os
import threading
import time
from argparse import ArgumentParser
from typing import Any

import structlog
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import ProgrammingError, connections

from coordinator.assembly import LOOPS, Assembled, assemble
from coordinator.leader import SessionsNotKeptError
from coordinator.loops import STOP_SECONDS, leave, run_once, stop_on_signals, wait_for_database
from coordinator.wiring import build_executor, build_runtime, build_store
from workspaces.models import Installation

log = structlog.get_logger(__name__)

ONCE_SECONDS = 3600.0


def loop_names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = sorted(set(names) - set(LOOPS))
    if unknown or not names:
        raise CommandError(f"--loops takes any of {', '.join(LOOPS)}" + (f", not {', '.join(unknown)}" if unknown else ""))
    return names


class Command(BaseCommand):
    help = "Run the coordinator's loops: live events, reconcile, expiry and garbage collection."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--once", action="store_true", help="One tick of each loop, wait for the runs it started, and exit.")
        parser.add_argument("--loops", default=",".join(LOOPS), help=f"Loops to take part in, of {', '.join(LOOPS)}. Default: all.")
        parser.add_argument("--shards", type=int, default=1, help="Parts reconcile is split into; the same number everywhere.")

    def handle(self, *args: Any, **options: Any) -> None:
        loops = loop_names(options["loops"])
        if not 1 <= options["shards"] <= 256:
            raise CommandError("--shards takes a number from 1 to 256")
        stop = threading.Event()
        if threading.current_thread() is threading.main_thread():
            stop_on_signals(stop)
        try:
            wait_for_database(stop)
        except SessionsNotKeptError as error:
            raise CommandError(str(error)) from error
        if stop.is_set():
            return
        parts = self._build(loops, shards=options["shards"], stop=stop)
        if options["once"]:
            self._once(parts)
        else:
            self._run(parts, stop=stop)

    def _build(self, loops: list[str], *, shards: int, stop: threading.Event) -> Assembled:
        config = settings.CONFIG
        try:
            installation = Installation.objects.get()
        except (ProgrammingError, Installation.DoesNotExist) as error:
            raise CommandError("The database has no tables yet: run `manage.py migrate` first.") from error
        runtime, store = build_runtime(config, installation), build_store(config, installation)
        parts = assemble(
            config,
            runtime=runtime,
            store=store,
            executor=lambda wake: build_executor(config, runtime=runtime, store=store, wake=wake),
            loops=loops,
            shards=shards,
            stop=stop,
        )
        # The main thread only waits from here on.
        connections.close_all()
        return parts

    def _once(self, parts: Assembled) -> None:
        problems = run_once(parts.works)
        parts.executor.stop(ONCE_SECONDS)
        for reconciler in parts.reconcilers:
            reconciler.close()
        if problems:
            raise CommandError("; ".join(problems))

    def _run(self, parts: Assembled, *, stop: threading.Event) -> None:
        parts.coordinator.start()
        log.info("coordinator started", pid=os.getpid(), loops=[work.name for work in parts.works])
        stop.wait()
        deadline = time.monotonic() + STOP_SECONDS
        log.info("coordinator stopping")
        finished = parts.coordinator.stop(seconds=STOP_SECONDS / 2)
        # Runs that cannot end in time give themselves up, so that another takes them over at once.
        parts.executor.stop(max(0.5, deadline - time.monotonic()))
        for reconciler in parts.reconcilers:
            reconciler.close()
        log.info("coordinator stopped", every_step_finished=finished)
        leave()
