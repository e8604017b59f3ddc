"""The whole control path on real PostgreSQL with doubles outside: rows, wishes, steps, and an executor that runs when told.

Owns the wiring of a test world. `settle` drives it until nothing moves; single steps are there for crash points.
"""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection

from codehub.config import Config
from coordinator.actuators import Tools, run_attempt
from coordinator.breaker import Breakers
from coordinator.reconcile import Reconciler, TickReport
from coordinator.runs import RunKeeper
from tests.fakes.runtime import FakeHome, FakeRuntime
from tests.fakes.store import FakeStore
from workspaces import services
from workspaces.models import Attempt, Image, Workspace


class HeldExecutor:
    """Keeps what was dispatched until the test runs it, loses it, or delivers it again."""

    redispatch_after = 2.0

    def __init__(self) -> None:
        self.waiting: list[UUID] = []
        self.heavy: set[UUID] = set()

    def dispatch(self, attempt_id: UUID, *, heavy: bool) -> None:
        self.waiting.append(attempt_id)
        if heavy:
            self.heavy.add(attempt_id)

    def stop(self, timeout: float) -> None:
        self.waiting.clear()


class Clock:
    """The breakers' clock, moved by hand."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


class World:
    def __init__(self, **changes: Any) -> None:
        self.runtime, self.store = FakeRuntime(), FakeStore()
        self.executor, self.clock = HeldExecutor(), Clock()
        base: Config = settings.CONFIG
        self.config = base.model_copy(update={"coordinator_archive_list_interval": 1e-9, "limit_max_running_per_user": 1000, **changes})
        self.keeper = RunKeeper(name="test", beating=False)
        self.tools = Tools(self.runtime, self.store, self.config, self.keeper, pause=lambda _seconds: None, listen_seconds=0.02)
        self.breakers = Breakers(clock=self.clock)
        self.reconciler = self.new_reconciler()
        self.user = User.objects.filter(username="owner").first() or User.objects.create_user("owner", is_staff=True)

    def new_reconciler(self) -> Reconciler:
        """Another coordinator, as after a crash: it remembers nothing."""
        return Reconciler(
            runtime=self.runtime,
            store=self.store,
            executor=self.executor,
            config=self.config,
            breakers=self.breakers,
            background=False,
            tell=lambda _alerts, _config: None,
        )

    def create(self, desired_state: str = "RUNNING", **fields: Any) -> UUID:
        workspace = Workspace.objects.create(
            owner=self.user, image=Image.objects.order_by("position")[0], name="w", desired_state=desired_state, **fields
        )
        return UUID(str(workspace.pk))

    def at_rest(self, phase: str) -> UUID:
        """A workspace that reached the phase by itself, with a file in its home."""
        workspace = self.create("RUNNING")
        self.settle()
        self.runtime.put_file(workspace, 1, "notes.txt", b"precious")
        if phase != "RUNNING":
            self.ask(workspace, phase)
            self.settle()
        assert self.row(workspace).phase == phase
        return workspace

    def copies(self, sample: UUID, count: int) -> list[UUID]:
        """So many more in the same state, with the same things outside."""
        columns = ", ".join(str(field.column) for field in Workspace._meta.concrete_fields if field.column != "id")
        with connection.cursor() as cursor:
            cursor.execute(
                f"INSERT INTO workspaces_workspace (id, {columns}) "
                f"SELECT gen_random_uuid(), {columns} FROM workspaces_workspace, generate_series(1, %s) WHERE id = %s RETURNING id",
                [count, sample],
            )
            made = [row[0] for row in cursor.fetchall()]
        for key in made:
            for (owner, generation), _ in list(self.runtime.homes.items()):
                if owner == sample:
                    self.runtime.homes[key, generation] = FakeHome()
            if sample in self.runtime.containers:
                self.runtime.containers[key] = replace(self.runtime.containers[sample], workspace_id=key)
        return made

    def row(self, workspace_id: UUID) -> Workspace:
        return Workspace.objects.get(pk=workspace_id)

    def ask(self, workspace_id: UUID, desired_state: str) -> None:
        Workspace.objects.filter(pk=workspace_id).update(desired_state=desired_state)

    def delete(self, workspace_id: UUID) -> None:
        services.request_delete(workspace_id, user=self.user, queue=True)

    def recover(self, workspace_id: UUID, strategy: str = "reobserve") -> None:
        services.request_recover(workspace_id, user=self.user, strategy=strategy)

    def tick(self) -> TickReport:
        return self.reconciler.tick()

    def run(self, attempt_id: UUID) -> UUID | None:
        return run_attempt(attempt_id, self.tools)

    def run_waiting(self) -> int:
        """Run everything dispatched so far and wake the loop for each, as an executor does."""
        waiting, self.executor.waiting = self.executor.waiting, []
        for attempt_id in waiting:
            workspace_id = self.run(attempt_id)
            if workspace_id is not None:
                self.reconciler.reconcile([workspace_id])
        return len(waiting)

    def settle(self, rounds: int = 40) -> None:
        """Ticks and runs until a tick changes nothing and nothing waits."""
        for _ in range(rounds):
            report = self.tick()
            ran = self.run_waiting()
            if not report.written and not ran:
                return
        raise AssertionError("it does not settle")

    def later(self, seconds: float, workspace_id: UUID | None = None) -> None:
        """So much time passes: everything the controller compares with the database's clock moves into the past."""
        where = "" if workspace_id is None else f" WHERE workspace_id = '{workspace_id}'"
        with connection.cursor() as cursor:
            cursor.execute(
                f"""
                UPDATE workspaces_attempt SET queued_at = queued_at - make_interval(secs => %s),
                    started_at = started_at - make_interval(secs => %s), heartbeat_at = heartbeat_at - make_interval(secs => %s),
                    finished_at = finished_at - make_interval(secs => %s){where}
                """,
                [seconds] * 4,
            )
            cursor.execute(
                """
                UPDATE workspaces_workspace SET archived_at = archived_at - make_interval(secs => %(s)s),
                    phase_changed_at = phase_changed_at - make_interval(secs => %(s)s),
                    home_ctx = home_ctx
                        || CASE WHEN home_ctx ? 'retry_at' THEN jsonb_build_object('retry_at', (home_ctx->>'retry_at')::float - %(s)s) ELSE '{}' END
                        || CASE WHEN home_ctx ? 'first_started' THEN jsonb_build_object('first_started', (home_ctx->>'first_started')::float - %(s)s) ELSE '{}' END
                        || CASE WHEN home_ctx ? 'pause_since' THEN jsonb_build_object('pause_since', (home_ctx->>'pause_since')::float - %(s)s) ELSE '{}' END
                        || CASE WHEN home_ctx ? 'deaths' THEN jsonb_build_object('deaths',
                            (SELECT jsonb_agg(value::float - %(s)s) FROM jsonb_array_elements_text(home_ctx->'deaths'))) ELSE '{}' END
                """,
                {"s": seconds},
            )
        self.clock.time += seconds

    def open_attempt(self, workspace_id: UUID) -> Attempt | None:
        return Attempt.objects.filter(workspace_id=workspace_id, finished_at__isnull=True).first()

    def interrupt(self, method: str, action: Callable[[], None]) -> None:
        """Do something just before the next call of a runtime method, once."""

        def once(*_args: Any) -> None:
            self.runtime.hook(method, lambda *_ignored: None)
            action()
            if threading.current_thread() is not threading.main_thread():
                # Called by an observer's thread, whose session would outlive the test.
                connection.close()

        self.runtime.hook(method, once)
