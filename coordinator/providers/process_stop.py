"""Ends every IDE of the process runtime in a data directory, when CodeHub itself is stopped on that machine.

Knows the state files of that runtime and nothing else: no database, no engine. What it ends is marked, so that the next start
neither counts a death nor forgets that the workspace was running.
"""

import json
from pathlib import Path

import structlog

from coordinator.providers import process_group

log = structlog.get_logger(__name__)

_PATIENCE = 5.0


def end_processes(data_dir: Path) -> int:
    """How many IDEs were ended. Only for who knows that nobody starts any: the caller holds the directory's lock."""
    return sum(_end(path) for path in sorted((data_dir / "process" / "state").glob("ws-*.json")))


def _end(path: Path) -> bool:
    try:
        state = json.loads(path.read_text())
        pid, mark, instance = int(state["pid"]), str(state["mark"]), str(state["instance"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("state of a workspace's process cannot be read", file=path.name, error=str(error))
        return False
    if process_group.birth_mark(pid) != mark and not process_group.members(instance):
        return False
    whole = path.with_suffix(".new")
    whole.write_text(json.dumps({**state, "is_ended_in_order": True}))
    whole.rename(path)
    return process_group.end(pid, mark, instance, patience=_PATIENCE)
