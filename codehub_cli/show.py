"""How things look on a terminal: tables, one workspace, the sentence that says why it is as it is. Prints nothing itself."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_DOING: Final = {
    "PROVISIONING": "a new home is being made",
    "CREATE_EMPTY_ARCHIVE": "an empty archive is being made",
    "RESTORING": "its home is being brought back from the archive",
    "STARTING": "it is starting",
    "STOPPING": "it is stopping",
    "ARCHIVING": "its home is being packed away",
    "DELETING": "it is being deleted",
}
_RESTING: Final = {
    "PENDING": "it is new and has no home yet",
    "ARCHIVED": "its home is packed away in object storage",
    "STANDBY": "its home is on disk and nothing runs",
    "RUNNING": "it runs",
    "ERROR": "it needs an operator",
    "DELETING": "it is being deleted",
    "DELETED": "it is gone",
}


def plain(text: Any) -> str:
    """Text from a server as it may go to a terminal: without anything the terminal would obey."""
    return _CONTROL.sub("\ufffd", str(text))


def table(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    cells = [list(headings), *([plain("-" if cell is None or cell == "" else cell).replace("\n", " ") for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headings))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells)


def workspaces(rows: Sequence[dict[str, Any]], *, now: datetime, owners: bool = False) -> str:
    headings = ["NAME", "PHASE", "DOING", "NEXT", "LAST USED", "ID"]
    lines = [[row["name"], row["phase"], doing(row), coming(row, now), ago(row["last_access_at"], now), row["id"]] for row in rows]
    if owners:
        headings.insert(1, "OWNER")
        for line, row in zip(lines, rows, strict=True):
            line.insert(1, row["owner"])
    return table(headings, lines)


def doing(row: dict[str, Any]) -> str:
    if row["operation"] == "NONE":
        return "" if row["desired_state"] == row["phase"] else f"-> {row['desired_state']}"
    return f"{row['operation']}{progress(row)}"


def progress(row: dict[str, Any]) -> str:
    """` 40 %, 12.0 MB` while bytes move."""
    run = row.get("progress")
    if not run or not run["bytes_done"]:
        return ""
    total = run["bytes_total"]
    share = f" {min(100, run['bytes_done'] * 100 // total)} %," if total else ""
    return f"{share} {size(run['bytes_done'])}"


def coming(row: dict[str, Any], now: datetime) -> str:
    if row["stops_at"]:
        return f"stops {ahead(row['stops_at'], now)}"
    if row["archives_at"]:
        return f"archived {ahead(row['archives_at'], now)}"
    return row["error_reason"] or ""


def one(row: dict[str, Any], *, now: datetime) -> str:
    facts: list[tuple[str, Any]] = [
        ("name", row["name"]),
        ("id", row["id"]),
        ("description", row["description"]),
        ("owner", row["owner"]),
        ("image", row["image"]),
        ("phase", f"{row['phase']}, {ago(row['phase_changed_at'], now)}"),
        ("wanted", row["desired_state"]),
        ("doing", doing(row)),
        ("next", coming(row, now)),
        ("last used", ago(row["last_access_at"], now)),
        ("archive", f"{size(row['archive_size'])}, {ago(row['archived_at'], now)}" if row["archive_size"] is not None else ""),
        ("created", ago(row["created_at"], now)),
        ("address", row["url"]),
        ("memo", row["memo"]),
    ]
    width = max(len(name) for name, _ in facts)
    return "\n".join(f"{name.ljust(width)}  {plain(value).replace(chr(10), ' ')}" for name, value in facts if value not in {"", None})


def why(row: dict[str, Any], *, now: datetime) -> str:
    """In sentences: what it is, what it is doing, why, and what happens next."""
    state = _DOING.get(row["operation"]) or _RESTING[row["phase"]]
    lines = [
        f"{row['name']} is {row['phase']}: {state}{progress(row)}, for {lasting(row['op_started_at'] or row['phase_changed_at'], now)}."
    ]
    if row["desired_state"] != row["phase"]:
        lines.append(f"It was asked to be {row['desired_state']}.")
    info = row["error_info"]
    if info:
        lines.append(f"{info.get('reason')}: {info.get('message')}")
        if row["phase"] == "ERROR":
            lines.append("An operator can recover it; nothing is deleted while it is in ERROR.")
    if row["last_activity"]:
        lines.append(f"Last used {ago(row['last_activity']['at'], now)} ({row['last_activity']['kind']}).")
    if row["stops_at"]:
        lines.append(f"It stops {ahead(row['stops_at'], now)} unless it is used.")
    if row["archives_at"]:
        lines.append(f"Its home is packed away {ahead(row['archives_at'], now)} unless it is started.")
    for key, condition in row["conditions"].items():
        mark = "yes" if condition["status"] else "no"
        lines.append(f"  {key.ljust(24)} {mark.ljust(4)} {condition['reason']} {condition['message']}".rstrip())
    return plain_lines("\n".join(lines))


def plain_lines(text: str) -> str:
    return "\n".join(plain(line) for line in text.splitlines())


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def lasting(text: str, now: datetime) -> str:
    return span((now - moment(text)).total_seconds())


def ago(text: str | None, now: datetime) -> str:
    return "" if text is None else f"{lasting(text, now)} ago"


def ahead(text: str, now: datetime) -> str:
    left = (moment(text) - now).total_seconds()
    return f"in {span(left)}" if left > 0 else "any moment"


def span(seconds: float) -> str:
    whole = max(0, int(seconds))
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if whole >= length:
            return f"{whole // length} {unit}"
    return f"{whole} s"


def size(count: int | None) -> str:
    value = float(count or 0)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"
