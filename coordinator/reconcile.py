"""The control path of one shard: load, observe, decide, record, dispatch.

Owns the order of these and the bounds on work. Rows are loaded before anything is looked at, so what is seen is never older than
what is known of a run. It decides nothing itself (that is pure code) and its only writer is the recorder.
"""

import itertools
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

import structlog

from codehub.config import Config
from coordinator import status
from coordinator.alerts import UNSENT_SECONDS, deliver_alerts, unsent_alerts
from coordinator.breaker import Breakers
from coordinator.conditions import is_settled
from coordinator.decide import decide
from coordinator.executor import Executor
from coordinator.observe import ENGINE, STORE, Listing, Observer
from coordinator.progress import LONG
from coordinator.providers.base import ArchiveStore, Runtime
from coordinator.state import Decision, Observation, Policy, Run
from coordinator.status import Row
from workspaces.models import Installation
from workspaces.phases import Action, AttemptState, ErrorReason, Operation, Phase

log = structlog.get_logger(__name__)

CHUNK = 200
LOOKS_PER_TICK = 400
TARGETED = 40
"""Up to so many workspaces are looked at one by one; more are cheaper to list."""
PASSES = 6
_LONGEST_REDISPATCH = 300.0
ROUNDS = 5
"""How often one decision may ask for another direct look."""


class EngineMismatchError(Exception):
    """The homes of this installation live on another engine than the one that was found here."""


@dataclass(frozen=True, slots=True)
class TickReport:
    looked: int
    written: int
    dispatched: int
    active: bool
    """An operation runs or a wish is open: look again soon."""
    observed: bool
    """Whether the engine could be asked."""


@dataclass(slots=True)
class _Case:
    """One workspace on its way through a pass."""

    row: Row
    now: datetime
    run: Run | None
    seen: Observation
    decision: Decision | None = None


@dataclass(slots=True)
class _Tally:
    looked: int = 0
    dispatched: int = 0
    active: bool = False
    written: set[UUID] = field(default_factory=set)
    queued: set[UUID] = field(default_factory=set)
    """Whose run has just begun: its end is the next thing to look at."""


class Reconciler:
    """Reconciles the workspaces of one shard. Not thread-safe: it belongs to its loop's thread and that thread's connection."""

    between: Callable[[], None] | None = None
    """Called between chunks of a long full tick; may call `reconcile` for workspaces that were woken meanwhile."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        store: ArchiveStore,
        executor: Executor,
        config: Config,
        breakers: Breakers,
        shards: int = 1,
        shard: int = 0,
        background: bool = True,
        tell: Callable[[Collection[int], Config], None] = deliver_alerts,
    ) -> None:
        self._runtime, self._executor, self._config, self._breakers = runtime, executor, config, breakers
        self._shards, self._shard, self._tell = shards, shard, tell
        self._observer = Observer(
            runtime, store, breakers, archive_interval=config.coordinator_archive_list_interval, background=background
        )
        self._limits = {str(op): config.operation_timeout(op) for op in Operation if op is not Operation.NONE}
        self._dispatched: dict[UUID, float] = {}
        self._counted: dict[UUID, None] = {}
        self._rows: dict[UUID, Row] = {}
        self._turn = 0
        self._was_observed = True
        self._told_again = -UNSENT_SECONDS

    def check_engine(self) -> None:
        """Raise EngineMismatchError unless this is the engine the installation remembers (the first one is remembered)."""
        found = (self._runtime.name, self._runtime.identity()[:200])
        remembered = Installation.objects.values_list("runtime", "engine_identity").get()
        if not remembered[1]:
            Installation.objects.filter(engine_identity="").update(runtime=found[0], engine_identity=found[1])
            remembered = Installation.objects.values_list("runtime", "engine_identity").get()
        if tuple(remembered) != found:
            raise EngineMismatchError(
                f"the homes of this installation live on {remembered[0]} engine {remembered[1]}, and this is {found[0]} engine {found[1]}: "
                "nothing is reconciled from here, or every home would be taken for lost"
            )

    def close(self) -> None:
        """End the threads of observation."""
        self._observer.close()

    # --- full
    def tick(self) -> TickReport:
        """Look at everything once: one listing of each kind, a constant number of statements, only changes written."""
        self._observer.try_store()
        loaded = self._load_all()
        rows = loaded.rows
        runs: dict[str, Run] = {}
        for part in status.batched([row for row in rows if row.op_id]):
            runs |= self._load_runs(part)
            self._breathe()
        listing = self._observer.list_everything()
        self._breathe()
        if listing.observed and not self._was_observed:
            # It was away: it may have come back as another one.
            self.check_engine()
        self._was_observed = listing.observed
        tally = _Tally(looked=len(rows))
        cases = self._unsettled(rows, runs, listing, tally, now=loaded.now) if loaded.now is not None else []
        budget = LOOKS_PER_TICK
        self._breathe()
        for number in range(0, len(cases), CHUNK):
            chunk = cases[number : number + CHUNK]
            budget -= self._pass(chunk, tally, budget=budget)
            self._breathe()
        self._redispatch(runs.values(), tally, now=loaded.now)
        self._report_breakers()
        self._tell_again()
        if 0 < len(tally.written) <= TARGETED:
            # A few moved on: take their next steps now instead of at the next tick.
            follow = self.reconcile(frozenset(tally.written))
            tally.dispatched += follow.dispatched
        active = tally.active or bool(tally.written)
        return TickReport(tally.looked, len(tally.written), tally.dispatched, active, listing.observed)

    def _load_all(self) -> status.Loaded:
        """Every row; one that was not written since the last full look is the same object as then."""
        loaded = (
            status.load_changed_rows(self._rows, shards=self._shards, shard=self._shard, between=self._breathe)
            if self._rows
            else status.load_rows(shards=self._shards, shard=self._shard)
        )
        self._rows = {row.snapshot.id: row for row in loaded.rows}
        return loaded

    def _breathe(self) -> None:
        if self.between is not None:
            self.between()

    def _unsettled(self, rows: Sequence[Row], runs: dict[str, Run], listing: Listing, tally: _Tally, *, now: datetime) -> list[_Case]:
        cases = []
        for row in rows:
            seen = self._observer.observation(row.snapshot, listing, now=now)
            if is_settled(row.snapshot, seen):
                continue
            tally.active = tally.active or _is_active(row)
            cases.append(_Case(row, now, runs.get(row.op_id or ""), seen))
        if len(cases) > CHUNK:
            # When there is more to do than one tick may, those who came last begin the next time.
            self._turn = (self._turn + CHUNK) % len(cases)
            cases = cases[self._turn :] + cases[: self._turn]
        return cases

    # --- targeted
    def reconcile(self, ids: Collection[UUID], *, probe: bool = False) -> TickReport:
        """Look at the named workspaces now, directly. `probe`: somebody found the IDE's port dead, ask it too."""
        tally, left = _Tally(), frozenset(ids)
        observed, known = True, dict[UUID, tuple[Observation, object]]()
        for number in range(PASSES):
            loaded = status.load_rows(shards=self._shards, shard=self._shard, ids=left)
            if loaded.now is None:
                break
            rows = loaded.rows
            runs = self._load_runs(rows)
            cases = self._targeted_cases(rows, runs, known, probe=probe and number == 0, now=loaded.now)
            observed = observed and not any(case.seen.is_blind for case in cases)
            tally.looked = max(tally.looked, len(rows))
            tally.active = any(_is_active(row) for row in rows)
            before = set(tally.written)
            tally.written.clear()
            self._pass(cases, tally, budget=None)
            left = frozenset(tally.written - tally.queued)
            known = {case.row.snapshot.id: (case.seen, _state_of(case)) for case in cases}
            tally.written |= before
            if not left:
                break
        self._report_breakers()
        return TickReport(tally.looked, len(tally.written), tally.dispatched, tally.active or bool(tally.written), observed)

    def _targeted_cases(
        self, rows: Sequence[Row], runs: dict[str, Run], known: dict[UUID, tuple[Observation, object]], *, probe: bool, now: datetime
    ) -> list[_Case]:
        """What was seen a moment ago is used again for the next step, unless a run ended or a home came in between."""
        cases = {row.snapshot.id: _Case(row, now, runs.get(row.op_id or ""), Observation()) for row in rows}
        fresh = {}
        for key, case in cases.items():
            seen, state = known.get(key, (None, None))
            if seen is not None and (case.run is None or state == _state_of(case)) and seen.generation == case.row.snapshot.generation:
                case.seen = seen
            else:
                fresh[key] = case.row.snapshot
        if len(fresh) > TARGETED:
            listing = self._observer.list_everything()
            for key, ws in fresh.items():
                cases[key].seen = self._observer.observation(ws, listing, now=now)
        elif fresh:
            for key, seen in self._observer.look_at_engine(fresh, probe=probe).items():
                cases[key].seen = seen
        return list(cases.values())

    # --- shared
    def _load_runs(self, rows: Iterable[Row]) -> dict[str, Run]:
        runs = status.load_runs([row.op_id for row in rows if row.op_id])
        for run in runs.values():
            self._count_for_breakers(run)
        return runs

    def _count_for_breakers(self, run: Run) -> None:
        if run.state is not AttemptState.FAILED or run.error is None or run.id in self._counted:
            return
        self._counted[run.id] = None
        if len(self._counted) > 10_000:
            self._counted = dict(itertools.islice(self._counted.items(), 5_000, None))
        if run.error.get("reason") == ErrorReason.UNREACHABLE:
            context = run.error.get("context") or {}
            self._breakers.record_failure(str(context.get("endpoint") or ENGINE), str(run.error.get("message", "")))

    def _pass(self, cases: Sequence[_Case], tally: _Tally, *, budget: int | None) -> int:
        """Decide, look where a decision asks for it, write, dispatch. Gives how many workspaces were looked at directly."""
        looked = self._decide_all(cases, budget=budget)
        changed = [
            (case.row, case.decision)
            for case in cases
            if case.decision is not None and not case.decision.looks and _says_something(case.row, case.decision)
        ]
        written = status.record_decisions(changed)
        tally.written |= written.ids
        for row, decision in changed:
            if row.snapshot.id in written.ids and decision.queue is not None:
                self._dispatch(decision.queue.id, decision.queue.action)
                tally.dispatched += 1
                tally.queued.add(row.snapshot.id)
        if len(written.ids) < len(changed):
            # Somebody changed these rows or holds them right now: look again soon.
            tally.active = True
        self._tell(written.alerts, self._config)
        return looked

    def _decide_all(self, cases: Sequence[_Case], *, budget: int | None) -> int:
        waiting, looked = list(cases), set[UUID]()
        for _ in range(ROUNDS):
            asking = {}
            for case in waiting:
                decision = self._decide(case)
                case.decision = decision
                if decision is not None and decision.looks:
                    key = case.row.snapshot.id
                    if budget is not None and key not in looked and len(looked) >= budget:
                        continue
                    looked.add(key)
                    asking[key] = (case.row.snapshot, case.seen, decision.looks)
            if not asking:
                break
            seen = self._observer.look(asking)
            waiting = [case for case in waiting if case.row.snapshot.id in seen]
            for case in waiting:
                case.seen = seen[case.row.snapshot.id]
        return len(looked)

    def _decide(self, case: _Case) -> Decision | None:
        try:
            return decide(case.row.snapshot, case.seen, case.run, policy=self._policy(case.now), now=case.now)
        except Exception:
            # One workspace's trouble skips that workspace, never its neighbours.
            log.exception("workspace skipped", workspace=str(case.row.snapshot.id))
            return None

    def _policy(self, now: datetime) -> Policy:
        stamp = now.timestamp()
        return Policy(
            max_retries=self._config.reconciler_max_retries,
            backoff=self._config.reconciler_retry_backoff,
            limits=self._limits,
            open_breakers=self._breakers.open_names(),
            closed_at={name: stamp - seconds for name, seconds in self._breakers.seconds_since_closed().items()},
        )

    def _dispatch(self, attempt_id: UUID, action: Action) -> None:
        self._dispatched[attempt_id] = time.monotonic()
        self._executor.dispatch(attempt_id, heavy=action in LONG)

    def _redispatch(self, runs: Iterable[Run], tally: _Tally, *, now: datetime | None) -> None:
        """Runs nobody took: their coordinator died before it could send them, or the broker forgot them.

        One that waits long is sent again less and less often: thousands of them would fill the broker with copies.
        """
        queued = {run.id: run for run in runs if run.state is AttemptState.QUEUED}
        self._dispatched = {key: at for key, at in self._dispatched.items() if key in queued}
        for attempt_id, run in queued.items():
            waited = (now - run.queued_at).total_seconds() if now is not None and run.queued_at is not None else 0.0
            pause = max(self._executor.redispatch_after, min(waited / 2, _LONGEST_REDISPATCH))
            if time.monotonic() - self._dispatched.get(attempt_id, -1e9) >= pause:
                self._dispatch(attempt_id, run.action)
                tally.dispatched += 1

    def _tell_again(self) -> None:
        if self._shard == 0 and time.monotonic() - self._told_again >= UNSENT_SECONDS:
            self._told_again = time.monotonic()
            self._tell(unsent_alerts(), self._config)

    def _report_breakers(self) -> None:
        for change in self._breakers.take_changes():
            log.warning("circuit breaker changed", system=change.name, state=str(change.state), error=change.last_error)
            status.record_breaker(change)


def _says_something(row: Row, decision: Decision) -> bool:
    return decision.after != row.snapshot or decision.queue is not None or decision.consumed or bool(decision.alert)


def _state_of(case: _Case) -> object:
    return (case.run.id, case.run.state) if case.run is not None else None


def _is_active(row: Row) -> bool:
    ws = row.snapshot
    if ws.operation is not Operation.NONE or ws.deleted_at is not None or ws.recovery_strategy is not None:
        return True
    return ws.phase is not Phase.ERROR and str(ws.phase) != str(ws.desired_state)


__all__ = ["ENGINE", "STORE", "EngineMismatchError", "Reconciler", "TickReport"]
