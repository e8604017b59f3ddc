"""The measurements of the coordinator, to be imported once Django is set up on services of the bench's own."""

import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID

import psutil
import psycopg
from django.conf import settings
from django.contrib.auth.models import User
from django.db import Error, connection, connections

from bench.coordinator import SERVE, Site
from coordinator.actuators import Tools
from coordinator.assembly import assemble
from coordinator.breaker import Breakers
from coordinator.executor import ThreadExecutor
from coordinator.loops import stop_on_signals
from coordinator.providers.base import Container, ContainerState
from coordinator.reconcile import Reconciler
from coordinator.runs import RunKeeper
from coordinator.wiring import build_executor
from tests.fakes.runtime import FakeHome, FakeRuntime
from tests.fakes.store import FakeStore
from workspaces import services
from workspaces.models import Attempt, Installation, LoopLease, Workspace


def show(what: str, figure: str, target: str = "") -> None:
    print(f"  {what:<58} {figure:>24}   {target}", flush=True)


def an_engine() -> FakeRuntime:
    runtime = FakeRuntime()
    # The catalogue offers images for this kind.
    runtime.name = "docker"
    return runtime


@contextmanager
def coordinators(count: int) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """So many coordinator processes with engines in memory that hold what the rows say."""
    running = [subprocess.Popen([sys.executable, "-m", "bench.coordinator", SERVE], stdout=subprocess.PIPE) for _ in range(count)]
    try:
        for process in running:
            assert process.stdout is not None
            process.stdout.readline()
        yield running
    finally:
        for process in running:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGCONT)
                process.kill()
                process.wait()


def serve() -> None:
    """The body of such a process."""
    stop = threading.Event()
    stop_on_signals(stop)
    runtime, store = engine_of_the_rows()
    # A true cycle: the crowds are made of what stands here.
    from bench._crowds import behave  # noqa: PLC0415

    behave(runtime)
    parts = assemble(
        settings.CONFIG,
        runtime=runtime,
        store=store,
        executor=lambda wake: build_executor(settings.CONFIG, runtime=runtime, store=store, wake=wake),
        stop=stop,
    )
    connections.close_all()
    parts.coordinator.start()
    print("started", flush=True)
    stop.wait()
    parts.coordinator.stop()
    parts.executor.stop(1)


def engine_of_the_rows() -> tuple[Any, Any]:
    """An engine and a store that hold a volume and a container for each row that should have them."""
    runtime = an_engine()
    for key, phase, context, endpoint in Workspace.objects.values_list("id", "phase", "home_ctx", "endpoint"):
        if phase not in ("STANDBY", "RUNNING"):
            continue
        generation = context["generation"]
        runtime.homes[key, generation] = FakeHome()
        if phase == "RUNNING":
            container = Container(workspace_id=key, generation=generation, state=ContainerState.RUNNING, endpoint=endpoint)
            runtime.containers[key] = replace(container, instance_id=str(context.get("instance", "")))
    return runtime, FakeStore()


def settled_sample(desired: str) -> UUID:
    """One workspace brought to rest by the reconciler itself: the pattern all others are copied from."""
    user, _ = User.objects.get_or_create(username="bench")
    runtime, store = an_engine(), FakeStore()
    executor = ThreadExecutor(Tools(runtime, store, settings.CONFIG, RunKeeper()), workers=2, transfer_workers=1, wake=lambda _id: None)
    controller = Reconciler(runtime=runtime, store=store, executor=executor, config=settings.CONFIG, breakers=Breakers(), background=False)
    controller.check_engine()
    workspace, _ = services.request_create(user=user, name="sample", desired_state=desired)
    deadline = time.monotonic() + 30
    while True:
        controller.reconcile({workspace.pk})
        row = Workspace.objects.get(pk=workspace.pk)
        if row.phase == desired and row.operation == "NONE":
            break
        assert time.monotonic() < deadline, (row.phase, row.operation, row.error_info)
        time.sleep(0.01)
    executor.stop(5)
    controller.close()
    return workspace.pk


def copy_rows(sample: UUID, count: int) -> None:
    columns = [str(field.column) for field in Workspace._meta.concrete_fields if field.column != "id"]
    names = ", ".join(columns)
    with connection.cursor() as cursor:
        # A notification for each of a hundred thousand would take longer than everything that is measured.
        cursor.execute("ALTER TABLE workspaces_workspace DISABLE TRIGGER USER")
        cursor.execute(
            f"INSERT INTO workspaces_workspace (id, {names}) "
            f"SELECT gen_random_uuid(), {names} FROM workspaces_workspace, generate_series(1, %s) WHERE id = %s",
            [count, sample],
        )
        cursor.execute("ALTER TABLE workspaces_workspace ENABLE TRIGGER USER")
        cursor.execute("ANALYZE workspaces_workspace")


def clear() -> None:
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE workspaces_workspace, workspaces_looplease CASCADE")


def bench_ticks(sizes: list[int]) -> None:
    for size in sizes:
        clear()
        copy_rows(settled_sample("RUNNING"), size - 1)
        runtime, store = engine_of_the_rows()
        idle: Any = type("Nobody", (), {"redispatch_after": 30.0, "dispatch": lambda *_a, **_k: None, "stop": lambda *_a: None})()
        controller = Reconciler(runtime=runtime, store=store, executor=idle, config=settings.CONFIG, breakers=Breakers(), background=False)
        controller.tick()
        statements = 0

        def count(execute: Callable[..., Any], *arguments: Any) -> Any:
            nonlocal statements
            statements += 1
            return execute(*arguments)

        times = []
        for _ in range(3):
            statements = 0
            began, used = time.perf_counter(), time.process_time()
            with connection.execute_wrapper(count):
                report = controller.tick()
            times.append((time.perf_counter() - began, time.process_time() - used))
        controller.close()
        target = {10_000: "target 1 s, 10 statements, 0 rows", 100_000: "target 12 s"}.get(size, "")
        wall, used = min(times)
        show(f"full tick, {size} settled ({used:.2f} s of processor)", f"{wall:.2f} s, {statements} st, {report.written} rows", target)


def bench_claims(wishes: int) -> None:
    clear()
    copy_rows(settled_sample("RUNNING"), 99)
    copy_rows(settled_sample("STANDBY"), wishes)
    user = User.objects.get(username="bench")
    parameters = {**connection.get_connection_params(), "autocommit": True}
    parameters.pop("cursor_factory", None)
    waits = []
    with coordinators(1), psycopg.connect(**parameters) as watcher:
        lead(0)
        time.sleep(3)
        for key in Workspace.objects.filter(phase="STANDBY").values_list("pk", flat=True)[:wishes]:
            services.request_state(key, user=user, desired_state="RUNNING")
            began = time.perf_counter()
            while watcher.execute(
                "SELECT operation = 'NONE' AND phase = 'STANDBY' FROM workspaces_workspace WHERE id = %s", [key]
            ).fetchone() == (True,):
                time.sleep(0.0005)
            waits.append((time.perf_counter() - began) * 1000)
            time.sleep(0.15)
    waits.sort()
    show("commit of a wish to its claim, median", f"{statistics.median(waits):.1f} ms", "target 50 ms")
    show("commit of a wish to its claim, 95th percentile", f"{waits[int(len(waits) * 0.95)]:.1f} ms", "target 150 ms")


def bench_idle(seconds: float = 30.0) -> None:
    clear()
    copy_rows(settled_sample("RUNNING"), 99)
    with coordinators(1) as (process,):
        lead(0)
        # The active interval holds for half a minute after a term began.
        time.sleep(35)
        seen = psutil.Process(process.pid)
        before = sum(seen.cpu_times()[:2])
        time.sleep(seconds)
        used = (sum(seen.cpu_times()[:2]) - before) / seconds
    show("idle coordinator, 100 RUNNING", f"{used * 100:.2f} % of a core", "target 1 %")


def lead(after: int) -> int:
    """The term of the first finished tick of a later term than that."""
    while True:
        try:
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT term FROM workspaces_looplease WHERE loop = 'reconcile' AND holder <> '' AND last_tick_at > acquired_at"
                )
                row = cursor.fetchone()
            if row and row[0] > after:
                return int(row[0])
        except Error:
            connection.close()
        time.sleep(0.002)


def bench_failover(site: Site) -> None:
    def leader() -> int:
        return int(LoopLease.objects.get(loop="reconcile").holder.rpartition(":")[2])

    clear()
    copy_rows(settled_sample("RUNNING"), 99)
    for what, number, target in (("kill -9", signal.SIGKILL, "target 1 s"), ("SIGSTOP", signal.SIGSTOP, "target 30 s")):
        before = LoopLease.objects.filter(loop="reconcile").values_list("term", flat=True).first() or 0
        with coordinators(2):
            term = lead(before)
            time.sleep(2)
            os.kill(leader(), number)
            began = time.perf_counter()
            lead(term)
            show(f"{what} of the leader: the other's first tick after", f"{time.perf_counter() - began:.2f} s", target)
    before = LoopLease.objects.get(loop="reconcile").term
    with coordinators(1):
        term = lead(before)
        os.kill(int((site.directory / "postgres/data/postmaster.pid").read_text().split()[0]), signal.SIGQUIT)
        site.children["postgres"].wait(20)
        connection.close()
        site.begin(site.postgres)
        began = time.perf_counter()
        lead(term)
        show("PostgreSQL restarted (immediate): leads again after", f"{time.perf_counter() - began:.2f} s", "target 5 s")


def bench_stop() -> None:
    """`manage.py run_coordinator` told to stop while a run, a listing and a collection wait for object storage that never answers."""
    clear()
    user, _ = User.objects.get_or_create(username="bench")
    workspace, _ = services.request_create(user=user, name="one", desired_state="ARCHIVED")
    with socket.create_server(("127.0.0.1", 0), backlog=100) as hung:
        address = f"http://127.0.0.1:{hung.getsockname()[1]}"
        extra = {"S3_ENDPOINT_URL": address, "CODEHUB_RUNTIME": "process", "COORDINATOR_GC_INTERVAL": "0.1"}
        extra |= {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"}
        Installation.objects.update(runtime="", engine_identity="")
        process = subprocess.Popen([sys.executable, "manage.py", "run_coordinator"], env={**os.environ, **extra})
        try:
            while not Attempt.objects.filter(workspace=workspace, state="RUNNING").exists():
                time.sleep(0.05)
            time.sleep(1)
            began = time.perf_counter()
            process.terminate()
            process.wait(60)
            show("SIGTERM while object storage hangs: ended after", f"{time.perf_counter() - began:.2f} s", "target 10 s")
        finally:
            process.kill()
            process.wait()
    Installation.objects.update(runtime="", engine_identity="")
