"""What sleeping saves: hours by phase and day, and the memory and disk that were not held meanwhile.

Pure: changes of phase in, hours and bars out. A workspace's phase between two changes is what the later one left, so only
the changes inside the window are needed. Days are UTC days.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from uuid import UUID

from workspaces.phases import Phase

SHOWN = (Phase.RUNNING, Phase.STANDBY, Phase.ARCHIVED, Phase.ERROR, Phase.PENDING)
_GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Change:
    workspace: UUID
    at: datetime
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Life:
    """What must be known of a workspace: since when it exists, how it is now, and how much it holds when it runs or rests."""

    workspace: UUID
    created_at: datetime
    phase: str
    memory_mb: int
    home_bytes: int
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Stretch:
    workspace: UUID
    phase: str
    start: datetime
    end: datetime


@dataclass(slots=True)
class Day:
    day: date
    hours: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SHOWN, 0.0))

    @property
    def total(self) -> float:
        return sum(self.hours.values())


@dataclass(frozen=True, slots=True)
class Saved:
    """`memory_hours` in GiB-hours not held because nothing ran; `volume_hours` in GiB-hours of disk given back by archives."""

    memory_hours: float
    memory_hours_used: float
    volume_hours: float
    asleep_share: float

    @property
    def asleep_percent(self) -> int:
        return round(self.asleep_share * 100)


@dataclass(frozen=True, slots=True)
class Bar:
    phase: str
    x: float
    y: float
    width: float
    height: float
    title: str


def stretches(lives: Iterable[Life], changes: Iterable[Change], *, start: datetime, end: datetime) -> list[Stretch]:
    """Who was in which phase from when to when, inside the window."""
    by_workspace: dict[UUID, list[Change]] = defaultdict(list)
    for change in sorted(changes, key=lambda one: one.at):
        if start <= change.at < end and change.before != change.after:
            by_workspace[change.workspace].append(change)
    found: list[Stretch] = []
    for life in lives:
        own = by_workspace.get(life.workspace, [])
        since = max(start, life.created_at)
        phase = own[0].before if own else life.phase
        for change in own:
            if change.at > since:
                found.append(Stretch(life.workspace, phase, since, change.at))
                since = change.at
            phase = change.after
        if end > since:
            found.append(Stretch(life.workspace, phase, since, end))
    return found


def split_into_days(start: datetime, end: datetime) -> list[tuple[date, float]]:
    """Seconds of each UTC day between two moments."""
    parts: list[tuple[date, float]] = []
    at = start.astimezone(UTC)
    end = end.astimezone(UTC)
    while at < end:
        midnight = datetime.combine(at.date() + timedelta(days=1), time(), tzinfo=UTC)
        parts.append((at.date(), (min(midnight, end) - at).total_seconds()))
        at = midnight
    return parts


def hours_by_day(found: Iterable[Stretch], *, start: datetime, end: datetime) -> list[Day]:
    """One entry for each day of the window, also for days on which nothing happened."""
    days = {day: Day(day) for day, _seconds in split_into_days(start, end)}
    for stretch in found:
        if stretch.phase not in SHOWN:
            continue
        for day, seconds in split_into_days(stretch.start, stretch.end):
            days[day].hours[stretch.phase] += seconds / 3600
    return [days[day] for day in sorted(days)]


def saved(found: Iterable[Stretch], lives: Iterable[Life]) -> Saved:
    """What was not held, compared with workspaces that run all the time."""
    by_id = {life.workspace: life for life in lives}
    memory = used = volume = asleep = awake = 0.0
    for stretch in found:
        life = by_id[stretch.workspace]
        hours = (stretch.end - stretch.start).total_seconds() / 3600
        if stretch.phase in (Phase.STANDBY, Phase.ARCHIVED):
            asleep += hours
            memory += hours * life.memory_mb / 1024
        elif stretch.phase == Phase.RUNNING:
            awake += hours
            used += hours * life.memory_mb / 1024
        if stretch.phase == Phase.ARCHIVED:
            volume += hours * life.home_bytes / _GIB
    return Saved(memory, used, volume, asleep / (asleep + awake) if asleep + awake else 0.0)


def saved_by_owner(found: Iterable[Stretch], lives: Iterable[Life]) -> list[tuple[str, Saved]]:
    """The same for each person, who saved most first."""
    lives = list(lives)
    owners = {life.workspace: life.owner for life in lives}
    grouped: dict[str, list[Stretch]] = defaultdict(list)
    for stretch in found:
        grouped[owners[stretch.workspace]].append(stretch)
    held: dict[str, list[Life]] = defaultdict(list)
    for life in lives:
        held[life.owner].append(life)
    people = [(owner, saved(own, held[owner])) for owner, own in grouped.items()]
    return sorted(people, key=lambda entry: (-entry[1].memory_hours, entry[0]))


def bars(days: Sequence[Day], *, width: float, height: float, gap: float = 4) -> tuple[list[Bar], list[tuple[float, float]]]:
    """Stacked bars, awake at the bottom, and the lines of the grid as (y, hours)."""
    top = nice_top(max((day.total for day in days), default=0.0))
    step = width / max(1, len(days))
    found: list[Bar] = []
    for index, day in enumerate(days):
        y = height
        for phase in SHOWN:
            hours = day.hours[phase]
            tall = height * hours / top
            if tall <= 0:
                continue
            y -= tall
            bar = Bar(phase, round(index * step + gap / 2, 2), round(y, 2), round(max(1.0, step - gap), 2), round(tall, 2), "")
            found.append(bar)
    return found, [(round(height - height * part / 4, 2), round(top * part / 4, 1)) for part in range(5)]


def nice_top(highest: float) -> float:
    """The end of the axis: a round number of hours at or above the highest bar, divisible by four."""
    if highest <= 4:
        return 4.0
    unit = 4.0
    while unit * 10 < highest:
        unit *= 10
    for factor in (1, 2, 3, 4, 5, 6, 8, 10):
        if unit * factor >= highest:
            return unit * factor
    return unit * 10
