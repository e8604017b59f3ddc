"""The coordinator's loops: cadence, wake-ups, active mode, graceful stop; one thread and one session for each.

Owns when something runs, never what it does. One loop's trouble never stops another: a tick's exception skips that tick, a
lost session ends that term, and the thread becomes a candidate again. Everything that leads is verified before each tick.
"""

import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import NoReturn, Protocol
from uuid import UUID

import structlog
from django.db import Error

from coordinator.leader import Leadership, LeadershipLostError, SessionsNotKeptError, Term, Timing, check_sessions_are_kept
from coordinator.providers.base import ProviderError
from coordinator.reconcile import EngineMismatchError, TickReport
from coordinator.wakeups import Inbox, Pause, Wake

log = structlog.get_logger(__name__)

# A told process gives its loops and runs this long to finish their steps, and is gone after that, come what may.
STOP_SECONDS = 6.0
EXIT_SECONDS = 8.5
# More named workspaces than this are looked at with the listings of a full tick, which cost the same for any number.
TARGETED_LIMIT = 200
# So many are looked at before whoever came meanwhile gets a turn.
AT_ONCE = 40
_JITTER = 0.1
_REFUSED_PAUSE = 5.0
_VERIFY_EVERY = 1.0
_SHARE_EVERY = 15.0
# Long enough for the lock to go to whoever waits for it.
_YIELD_PAUSE = 1.0


class RefusedError(Exception):
    """This process cannot lead that loop now (nothing to ask): somebody else may."""


class Work(Protocol):
    """What a loop does while it leads. Every method is called in the loop's own thread but `poke`."""

    name: str
    shard: int

    def begin(self, term: Term) -> None:
        """A term begins. Raises RefusedError or EngineMismatchError when this process must not lead."""

    def wait(self, timeout: float) -> bool:
        """Sleep until something asks for a tick (True) or the time is over (False)."""

    def tick(self, term: Term, *, full: bool) -> None:
        """`full`: the interval is over; else only what `wait` was woken for. EngineMismatchError ends the term."""

    def interval(self) -> float:
        """Seconds until the next full tick, asked after each."""

    def first_delay(self) -> float:
        """Seconds from the beginning of a term to the first full tick."""

    def end(self) -> None:
        """The term is over, however it ended. Called also when none began."""

    def poke(self) -> None:
        """End a `wait`, from any thread."""


class Controller(Protocol):
    """The part of the reconciler the loop drives."""

    between: Callable[[], None] | None

    def check_engine(self) -> None: ...

    def tick(self) -> TickReport: ...

    def reconcile(self, ids: Collection[UUID], *, probe: bool = False) -> TickReport: ...


class ReconcileWork:
    """Full looks on a cadence, targeted ones at once. Active for a while after a wake-up and while operations run."""

    name = "reconcile"

    def __init__(
        self,
        controller: Controller,
        *,
        shard: int = 0,
        idle_interval: float,
        active_interval: float,
        active_duration: float,
        leading: Callable[[int, bool], None] = lambda _shard, _leads: None,
    ) -> None:
        self.shard = shard
        self.inbox = Inbox()
        self._controller = controller
        self._idle = idle_interval
        self._active = active_interval
        self._active_duration = active_duration
        self._leading = leading
        self._active_until = 0.0
        self._engine_in_doubt = False
        self._verified = 0.0
        self._took = 0.0

    def doubt_engine(self) -> None:
        """Its stream broke: it may have come back as another one. Any thread."""
        self._engine_in_doubt = True
        self.inbox.wake_all()

    def begin(self, term: Term) -> None:
        try:
            self._controller.check_engine()
        except ProviderError as error:
            raise RefusedError(str(error)) from error
        self._engine_in_doubt = False
        # Whatever was asked for before is part of the full tick a term begins with.
        self.inbox.take()
        self._stay_active()
        self._controller.between = lambda: self._between(term)
        self._leading(self.shard, True)

    def wait(self, timeout: float) -> bool:
        return self.inbox.wait(timeout)

    def tick(self, term: Term, *, full: bool) -> None:
        if self._engine_in_doubt:
            self._check_engine_again()
        full = full or len(self.inbox) > TARGETED_LIMIT or self.inbox.everything
        self._verified = time.monotonic()
        if not full:
            self._stay_active_for(wake := self.inbox.take_some(AT_ONCE))
            self._look_at(wake)
            return
        # Whoever asked last does not wait for a place among thousands.
        newest, rest = self.inbox.take_with_newest(AT_ONCE)
        self._stay_active_for(newest, rest)
        self._look_at(newest)
        self._look_at_everything(rest)

    def interval(self) -> float:
        # Thousands of open operations make a full look long: it never takes more than a third of the loop's time.
        return max(self._active, 2 * self._took) if time.monotonic() < self._active_until else self._idle

    def first_delay(self) -> float:
        return 0.0

    def end(self) -> None:
        self._controller.between = None
        self._leading(self.shard, False)

    def poke(self) -> None:
        self.inbox.poke()

    def _between(self, term: Term) -> None:
        """Inside a long full tick: give a sign of life, and serve who was woken meanwhile."""
        if time.monotonic() - self._verified > _VERIFY_EVERY:
            term.verify()
            self._verified = time.monotonic()
        self._look_at(self.inbox.take_some(AT_ONCE))

    def _look_at_everything(self, wake: Wake) -> None:
        if wake.probe:
            # A full look trusts the listing; whoever was found dead is asked first.
            self._look_at(Wake(wake.probe, wake.probe, everything=False))
        began = time.monotonic()
        if self._controller.tick().active:
            self._stay_active()
        self._took = time.monotonic() - began

    def _look_at(self, wake: Wake) -> None:
        for ids, probe in ((wake.ids - wake.probe, False), (wake.probe, True)):
            if ids and self._controller.reconcile(ids, probe=probe).active:
                self._stay_active()

    def _stay_active_for(self, *wakes: Wake) -> None:
        if any(wakes):
            self._stay_active()

    def _stay_active(self) -> None:
        self._active_until = time.monotonic() + self._active_duration

    def _check_engine_again(self) -> None:
        try:
            self._controller.check_engine()
        except ProviderError as error:
            log.warning("engine does not answer", error=str(error))
        else:
            self._engine_in_doubt = False


class LoopThread(threading.Thread):
    """Candidate, leader, candidate again, until told to stop."""

    def __init__(self, work: Work, *, stop: threading.Event, timing: Timing | None = None, shares: bool = False, holder: str = "") -> None:
        super().__init__(name=f"loop-{work.name}-{work.shard}", daemon=True)
        self.work = work
        self.leadership = Leadership(work.name, shard=work.shard, timing=timing, holder=holder)
        self._shares = shares
        self._stop_asked = stop
        self._pause = Pause(longest=2.0)
        self._wrong_engine = Pause(first=_REFUSED_PAUSE, longest=60.0)

    def run(self) -> None:
        while not self._stop_asked.is_set():
            try:
                seconds = self._one_term()
            except Exception:
                # Whatever it is, a loop whose thread ended would be missed by nobody until a person looked.
                log.exception("loop not ended cleanly", loop=self.work.name, shard=self.work.shard)
                seconds = self._pause.next()
            if seconds:
                self._stop_asked.wait(seconds)

    def _one_term(self) -> float:
        """Seconds to wait before the next candidacy."""
        facts = {"loop": self.work.name, "shard": self.work.shard}
        try:
            term = self.leadership.campaign(self._stop_asked)
            if term is None:
                return 0.0
            log.info("leading", term=term.number, **facts)
            self.work.begin(term)
            self._pause.reset()
            if self._lead(term):
                log.info("yielding to a coordinator with less to do", **facts)
                return _YIELD_PAUSE
        except RefusedError as error:
            log.error("refusing to lead", reason=str(error), **facts)
            return _REFUSED_PAUSE
        except EngineMismatchError as error:
            # It heals when a person acts. Until then who has the right engine must not hand over to this one again and again.
            log.error("refusing to lead", reason=str(error), **facts)
            return self._wrong_engine.next()
        except LeadershipLostError as error:
            log.warning("leadership lost", reason=str(error), **facts)
        except Error as error:
            log.warning("database not reached", error=str(error).strip(), **facts)
        except Exception:
            log.exception("loop failed", **facts)
        else:
            return 0.0
        finally:
            try:
                self.work.end()
            finally:
                self.leadership.resign()
        return self._pause.next()

    def _lead(self, term: Term) -> bool:
        """True: somebody else should lead this now. False: told to stop."""
        heartbeat = self.leadership.timing.heartbeat
        look_around = time.monotonic() + _SHARE_EVERY
        due = time.monotonic() + self.work.first_delay()
        while not self._stop_asked.is_set():
            woken = self.work.wait(max(0.0, min(due - time.monotonic(), heartbeat)))
            if self._stop_asked.is_set():
                return False
            term.verify()
            if self._shares and time.monotonic() >= look_around:
                if self.leadership.should_yield():
                    return True
                look_around = time.monotonic() + _SHARE_EVERY
            full = time.monotonic() >= due
            if not full and not woken:
                continue
            run_tick(self.work, term, full=full)
            # Two coordinators, or two shards, started together do not stay in step.
            after = time.monotonic() + self.work.interval() * random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311
            due = after if full else min(due, after)
        return False


def run_tick(work: Work, term: Term, *, full: bool) -> bool:
    """One tick, recorded in the lease. An exception skips the tick (False); a lost session comes out."""
    began = time.perf_counter()
    error = ""
    try:
        work.tick(term, full=full)
    except (LeadershipLostError, EngineMismatchError):
        raise
    except Exception as problem:
        if not term.alive():
            raise LeadershipLostError("the session was lost during a tick") from problem
        log.exception("tick failed", loop=work.name, shard=work.shard)
        error = f"{type(problem).__name__}: {problem}"
    term.record_tick(ms=(time.perf_counter() - began) * 1000, error=error)
    return not error


def run_once(works: Sequence[Work], *, timing: Timing | None = None) -> list[str]:
    """One full tick of each loop, one after the other. What went wrong, in words; empty when nothing did."""
    problems = []
    never = threading.Event()
    for work in works:
        leadership = Leadership(work.name, shard=work.shard, timing=timing)
        label = f"{work.name}/{work.shard}"
        try:
            term = leadership.campaign(never, tries=1)
            if term is None:
                problems.append(f"{label}: another coordinator leads")
                continue
            work.begin(term)
            if not run_tick(work, term, full=True):
                problems.append(f"{label}: the tick failed, see the log")
        except (RefusedError, EngineMismatchError, LeadershipLostError, Error) as error:
            problems.append(f"{label}: {str(error).strip()}")
        finally:
            work.end()
            leadership.resign()
    return problems


class Coordinator:
    """All loops and sources of one process."""

    def __init__(
        self,
        works: Sequence[Work],
        *,
        sources: Sequence[threading.Thread],
        stop: threading.Event,
        timing: Timing | None = None,
        holder: str = "",
    ) -> None:
        self._stop_asked = stop
        self._sources = sources
        # Loops of one name are shards of one: those are shared out among the processes that take part.
        names = Counter(work.name for work in works)
        self.loops = [LoopThread(work, stop=stop, timing=timing, shares=names[work.name] > 1, holder=holder) for work in works]

    def start(self) -> None:
        for thread in [*self._sources, *self.loops]:
            thread.start()

    def stop(self, *, seconds: float = STOP_SECONDS) -> bool:
        """Let every loop finish its step. False: some did not within the time, and end with the process."""
        self._stop_asked.set()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            living = [loop for loop in self.loops if loop.is_alive()]
            if not living:
                return True
            for loop in living:
                loop.work.poke()
                loop.leadership.interrupt()
            living[0].join(0.1)
        return False


def stop_on_signals(stop: threading.Event) -> None:
    """SIGTERM and SIGINT set `stop`, from a thread: a handler that did would deadlock when it interrupts a wait for that event.

    Whatever still hangs when the time is over (a call to an engine, a listing, a session) does not keep the process: the rows
    tell the others where it was.
    """
    reader, writer = os.pipe()

    def pass_on() -> None:
        os.read(reader, 1)
        stop.set()
        time.sleep(EXIT_SECONDS)
        log.warning("ended before every step was finished")
        leave()

    threading.Thread(target=pass_on, name="signals", daemon=True).start()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_args: os.write(writer, b"."))


def leave() -> NoReturn:
    """End the process now. A call that hangs in some thread does not keep it: its run is found lost and taken up by another."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def wait_for_database(stop: threading.Event) -> None:
    """Return once PostgreSQL answers, directly or through something that keeps sessions. Raises SessionsNotKeptError."""
    pause = Pause(longest=2.0)
    while not stop.is_set():
        try:
            check_sessions_are_kept()
            return
        except SessionsNotKeptError:
            raise
        except Exception as error:
            log.warning("database not reached", error=str(error).strip())
            stop.wait(pause.next())
