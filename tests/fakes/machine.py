"""The hypothesis state machine of the control path: what may happen, and what must hold after each step.

Remembers every file a person wrote into a home and checks, after each step, that it is in the volume or in an archive that reads
back. Runs on real PostgreSQL with the doubles; frozen processes are real threads.
"""

import hashlib
import io
import itertools
import json
import tarfile
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import zstandard
from django.db import connection
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from coordinator.actuators import Tools, run_attempt
from coordinator.providers.base import ActionFailedError, UnreachableError
from coordinator.runs import RunKeeper
from tests.fakes.puppets import Fate, KilledError, Puppet, run_until_frozen
from tests.fakes.world import World
from workspaces import services
from workspaces.errors import RequestError
from workspaces.models import Attempt, Transition
from workspaces.phases import ErrorReason, Operation, Phase

RUNTIME_CALLS = [
    "start",
    "delete",
    "provision",
    "delete_volume",
    "list_containers",
    "list_volumes",
    "get_container",
    "get_volume",
    "write_volume",
    "read_volume",
    "probe",
    "ensure_image",
]
STORE_CALLS = ["put", "get", "head", "list"]
STEPS_UP = {("PENDING", "STANDBY"), ("ARCHIVED", "STANDBY"), ("STANDBY", "RUNNING"), ("PENDING", "ARCHIVED")}
STEPS_DOWN = {("RUNNING", "STANDBY"), ("STANDBY", "ARCHIVED")}
number = st.integers(0, 2)


@dataclass(frozen=True, slots=True)
class _Row:
    """The columns the invariants read, without the cost of a model."""

    id: UUID
    phase: str
    operation: str
    desired_state: str
    deleted: bool
    recovery: str | None
    error_reason: str | None
    error_info: dict[str, Any] | None
    home_ctx: dict[str, Any]
    archive_key: str | None
    archive_sha256: str | None


class _Frozen:
    def __init__(self, fate: Fate, thread: threading.Thread) -> None:
        self.fate, self.thread = fate, thread


class ControlMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        with connection.cursor() as cursor:
            for table in ("alert", "transition", "logtail", "attempt", "auditevent", "workspace", "breaker"):
                cursor.execute(f"DELETE FROM workspaces_{table}")
        self.world = World(limit_max_running_global=1000)
        self.ids: list[UUID] = []
        self.truth: dict[UUID, dict[str, bytes] | None] = {}
        self.destroyed: set[UUID] = set()
        self.delivered: list[UUID] = []
        self.frozen: list[_Frozen] = []
        self.thawed_any = False
        self.contents = itertools.count()
        self.unpacked: dict[tuple[str, int], dict[str, bytes]] = {}
        self.checked_transitions = 0
        self.checks = 0

    # --- wishes
    @precondition(lambda self: len(self.ids) < 3)
    @rule(state=st.sampled_from(["RUNNING", "RUNNING", "STANDBY", "ARCHIVED"]))
    def create(self, state: str) -> None:
        workspace = self.world.create(state)
        self.ids.append(workspace)
        self.truth[workspace] = {}

    @precondition(lambda self: self.ids)
    @rule(which=number, state=st.sampled_from(["RUNNING", "STANDBY", "ARCHIVED"]), queue=st.booleans())
    def ask(self, which: int, state: str, queue: bool) -> None:
        with suppress(RequestError):
            services.request_state(self._id(which), user=self.world.user, desired_state=state, queue=queue)

    @precondition(lambda self: self.ids)
    @rule(which=number, queue=st.booleans(), really=st.integers(0, 3))
    def delete(self, which: int, queue: bool, really: int) -> None:
        if really:
            return
        with suppress(RequestError):
            services.request_delete(self._id(which), user=self.world.user, queue=queue)

    @precondition(lambda self: self.ids)
    @rule(which=number, strategy=st.sampled_from(["reobserve", "reobserve", "restore_archive", "start_empty"]))
    def recover(self, which: int, strategy: str) -> None:
        workspace = self._id(which)
        try:
            services.request_recover(workspace, user=self.world.user, strategy=strategy)
        except RequestError:
            return
        if strategy != "reobserve":
            # The operator chose to go on without what was lost.
            self.truth[workspace] = None

    @precondition(lambda self: self.ids)
    @rule(which=number)
    def write_a_file(self, which: int) -> None:
        """A person works: only in a container that runs."""
        workspace = self._id(which)
        container = self.world.runtime.containers.get(workspace)
        row = self.world.row(workspace)
        truth = self.truth[workspace]
        if container is None or container.state != "running" or row.phase != Phase.RUNNING or truth is None:
            return
        if row.operation != Operation.NONE or container.generation != row.home_ctx["generation"]:
            return
        name, data = f"file-{next(self.contents) % 4}", b"%d" % next(self.contents)
        self.world.runtime.put_file(workspace, container.generation, name, data)
        truth[name] = data

    # --- the controller and its runs
    @rule()
    def tick(self) -> None:
        self.world.tick()

    @precondition(lambda self: self.ids)
    @rule(which=number, probe=st.booleans())
    def wake(self, which: int, probe: bool) -> None:
        self.world.reconciler.reconcile([self._id(which)], probe=probe)

    @precondition(lambda self: self.world.executor.waiting)
    @rule(which=st.integers(0, 20), woken=st.booleans())
    def run_one(self, which: int, woken: bool) -> None:
        attempt = self._take(which)
        workspace = self.world.run(attempt)
        if woken and workspace is not None:
            self.world.reconciler.reconcile([workspace])

    @rule()
    def run_all(self) -> None:
        for _ in range(4):
            if not self.world.run_waiting():
                break

    @rule()
    def some_time_without_trouble(self) -> None:
        """Longer lives: without it most examples never get as far as an archive."""
        for _ in range(3):
            self.world.tick()
            self.world.run_waiting()

    @precondition(lambda self: self.world.executor.waiting)
    @rule(which=st.integers(0, 20), at=st.integers(1, 6), moment=st.sampled_from(["before", "after"]))
    def run_one_killed(self, which: int, at: int, moment: Any) -> None:
        fate = Fate(kill_at=at, moment=moment)
        with suppress(KilledError):
            run_attempt(self._take(which), self._tools(fate))

    @precondition(lambda self: self.world.executor.waiting and len(self.frozen) < 2)
    @rule(which=st.integers(0, 20), at=st.integers(1, 4))
    def run_one_frozen(self, which: int, at: int) -> None:
        fate = Fate(freeze_at=at)
        self.frozen.append(_Frozen(fate, run_until_frozen(self._take(which), self._tools(fate), fate)))

    @precondition(lambda self: self.frozen)
    @rule()
    def thaw(self) -> None:
        self._thaw(self.frozen.pop(0))

    @precondition(lambda self: self.delivered)
    @rule(which=st.integers(0, 50))
    def deliver_again(self, which: int) -> None:
        self.world.executor.waiting.append(self.delivered[which % len(self.delivered)])

    @rule()
    def coordinator_dies(self) -> None:
        """What was dispatched and not taken is forgotten; the next coordinator knows only the database."""
        self.world.executor.waiting.clear()
        self.world.reconciler.close()
        self.world.reconciler = self.world.new_reconciler()

    @rule(seconds=st.sampled_from([3, 8, 20, 45, 130, 700]))
    def time_passes(self, seconds: int) -> None:
        self.world.later(seconds)

    # --- the world outside
    @rule(call=st.sampled_from(RUNTIME_CALLS), times=st.integers(1, 3), when=st.sampled_from(["before", "after"]), hard=st.booleans())
    def engine_fails(self, call: str, times: int, when: Any, hard: bool) -> None:
        looking = call.startswith(("list", "get", "probe"))
        error = ActionFailedError("it did not work") if hard and not looking else UnreachableError("no answer", endpoint="docker")
        self.world.runtime.fail(call, error, times=times, when=when)

    @rule(call=st.sampled_from(STORE_CALLS), times=st.integers(1, 4), when=st.sampled_from(["before", "after"]))
    def storage_fails(self, call: str, times: int, when: Any) -> None:
        self.world.store.fail(call, UnreachableError("no answer", endpoint="s3"), times=times, when=when)

    @rule()
    def storage_truncates(self) -> None:
        self.world.store.truncate_next = True

    @rule()
    def storage_lists_the_past(self) -> None:
        self.world.store.stale = set(self.world.store.objects)

    @rule()
    def faults_are_lifted(self) -> None:
        self._heal()

    @precondition(lambda self: self.ids)
    @rule(which=number, how=st.sampled_from(["kill", "remove", "deafen"]))
    def container_suffers(self, which: int, how: str) -> None:
        workspace, runtime = self._id(which), self.world.runtime
        if how == "deafen":
            runtime.deaf ^= {workspace}
        elif workspace in runtime.containers:
            runtime.kill(workspace) if how == "kill" else runtime.lose_container(workspace)

    @precondition(lambda self: self.ids)
    @rule(which=number, really=st.integers(0, 4))
    def meta_is_lost(self, which: int, really: int) -> None:
        key = self.world.row(self._id(which)).archive_key
        if not really and key:
            self.world.store.objects.pop(f"{key}.meta", None)

    @precondition(lambda self: self.ids)
    @rule(which=number, really=st.integers(0, 9))
    def home_is_destroyed(self, which: int, really: int) -> None:
        """Somebody removes the volume by hand. From here on the home must not be replaced by anything unless an operator says so."""
        workspace = self._id(which)
        row = self.world.row(workspace)
        if really or workspace in self.world.runtime.containers or row.deleted_at or not row.home_ctx.get("expected"):
            return
        if row.operation != Operation.NONE or row.phase != Phase.STANDBY:
            return
        self.world.runtime.lose_volume(workspace, row.home_ctx["generation"])
        self.destroyed.add(workspace)

    # --- what must hold
    @invariant()
    def the_world_is_in_order(self) -> None:
        rows = self._rows()
        self._check_homes(rows)
        self._check_errors(rows)
        self.checks += 1
        if self.checks % 8 == 0:
            self._check_history()

    def _check_homes(self, rows: list[_Row]) -> None:
        """Every file a person wrote is in the volume, or in an archive that reads back; and what runs shows it."""
        for row in rows:
            truth = self.truth[row.id]
            if row.deleted:
                continue
            if truth is None:
                if row.phase == Phase.RUNNING and row.operation == Operation.NONE and row.recovery is None:
                    self.truth[row.id] = dict(self.world.runtime.files(row.id, row.home_ctx["generation"]))
                    self.destroyed.discard(row.id)
                continue
            container = self.world.runtime.containers.get(row.id)
            runs = row.phase == Phase.RUNNING and row.operation == Operation.NONE
            if runs and container is not None and container.generation == row.home_ctx["generation"]:
                assert self._volume(row) == truth, f"what runs is not the home: {row}"
            if row.id in self.destroyed or not truth:
                continue
            assert self._volume(row) == truth or self._archive(row) == truth, f"the home is gone: {row}"

    def _check_errors(self, rows: list[_Row]) -> None:
        for row in rows:
            if row.phase != Phase.ERROR:
                continue
            assert row.operation == Operation.NONE
            assert (row.error_info or {})["is_terminal"]
            if row.error_reason == ErrorReason.DATA_LOST:
                assert row.id in self.destroyed or self.truth[row.id] is None, row
            if row.error_reason == ErrorReason.CONTAINER_WITHOUT_VOLUME:
                assert row.id in self.destroyed or self.thawed_any, row
            assert row.error_reason != ErrorReason.ARCHIVE_CORRUPTED, row

    def _check_history(self) -> None:
        """Only the steps of the table, one operation at a time, one run at a time."""
        moves = Transition.objects.filter(id__gt=self.checked_transitions).order_by("id")
        for key, before, after, was, becomes, reason in moves.values_list(
            "id", "from_phase", "to_phase", "from_operation", "to_operation", "reason"
        ):
            self.checked_transitions = key
            assert was == becomes or "NONE" in (was, becomes), (was, becomes)
            if before == after or "ERROR" in (before, after) or "DELETING" in (before, after) or reason.startswith("Recovered"):
                continue
            assert (before, after) in STEPS_UP | STEPS_DOWN, (before, after, was, becomes)
        open_runs = Attempt.objects.filter(finished_at__isnull=True).values_list("workspace_id", flat=True)
        assert len(open_runs) == len(set(open_runs))

    def _rows(self) -> list[_Row]:
        with connection.cursor() as cursor:
            cursor.execute(
                """
                SELECT id, phase, operation, desired_state, deleted_at IS NOT NULL, recovery_strategy, error_reason, error_info::text,
                    home_ctx::text, archive_key, archive_sha256 FROM workspaces_workspace
                """
            )
            found: list[_Row] = []
            for row in cursor.fetchall():
                info, context = json.loads(row[7]) if row[7] else None, json.loads(row[8])
                found.append(_Row(row[0], row[1], row[2], row[3], row[4], row[5], row[6], info, context, row[9], row[10]))
            return found

    def teardown(self) -> None:
        try:
            self._converge()
        finally:
            for frozen in self.frozen:
                frozen.fate.thawed.set()
            self.world.reconciler.close()

    # --- helpers
    def _converge(self) -> None:
        self._heal()
        while self.frozen:
            self._thaw(self.frozen.pop(0))
        for _ in range(40):
            self.world.later(100)
            self.world.tick()
            self.world.run_waiting()
            rows = self._rows()
            self._check_homes(rows)
            self._check_errors(rows)
            if all(self._has_arrived(row) for row in rows):
                break
        for row in self._rows():
            assert self._has_arrived(row), f"stuck: {row}"
        self._check_history()

    def _has_arrived(self, row: _Row) -> bool:
        return row.phase in (row.desired_state, Phase.ERROR) and row.operation == Operation.NONE

    def _heal(self) -> None:
        self.world.runtime.heal()
        self.world.store.heal()
        self.world.store.truncate_next = False
        self.world.store.stale = set()
        self.world.runtime.deaf.clear()

    def _thaw(self, frozen: _Frozen) -> None:
        self.thawed_any = True
        frozen.fate.thawed.set()
        frozen.thread.join(30)
        assert not frozen.thread.is_alive()

    def _tools(self, fate: Fate) -> Tools:
        runtime: Any = Puppet(self.world.runtime, fate)
        store: Any = Puppet(self.world.store, fate)
        keeper = RunKeeper(name="puppet", beating=False)
        return replace(self.world.tools, runtime=runtime, store=store, keeper=keeper)

    def _take(self, which: int) -> UUID:
        waiting = self.world.executor.waiting
        attempt = waiting.pop(which % len(waiting))
        self.delivered.append(attempt)
        return attempt

    def _id(self, which: int) -> UUID:
        return self.ids[which % len(self.ids)]

    def _volume(self, row: _Row) -> dict[str, bytes] | None:
        home = self.world.runtime.homes.get((row.id, row.home_ctx["generation"]))
        return home.files() if home and row.home_ctx["whole"] else None

    def _archive(self, row: _Row) -> dict[str, bytes] | None:
        stored = self.world.store.objects.get(row.archive_key or "")
        if stored is None:
            return None
        cached = (row.archive_key or "", hash(stored.data))
        if cached not in self.unpacked:
            assert hashlib.sha256(stored.data).hexdigest() == row.archive_sha256
            content = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(stored.data)).read()
            with tarfile.open(fileobj=io.BytesIO(content)) as tar:
                files = {}
                for member in tar:
                    reader = tar.extractfile(member) if member.isreg() else None
                    if reader:
                        files[member.name.removeprefix("./")] = reader.read()
            self.unpacked[cached] = files
        return self.unpacked[cached]
