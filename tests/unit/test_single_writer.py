"""Two writers, and no third: what is asked for belongs to the services, what is observed to the recorder."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("codehub", "workspaces", "coordinator", "codehub_cli")
SERVICES, RECORDER = Path("workspaces/services.py"), Path("coordinator/status.py")
WRITES = {
    "save",
    "update",
    "create",
    "delete",
    "bulk_create",
    "bulk_update",
    "get_or_create",
    "update_or_create",
    "aupdate",
    "asave",
    "acreate",
}
OBSERVED = re.compile(r"(UPDATE|INSERT INTO|DELETE FROM)\s+workspaces_workspace\b", re.IGNORECASE)


def sources() -> list[tuple[Path, str]]:
    found = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return [(path.relative_to(ROOT), path.read_text()) for path in found if "migrations" not in path.parts]


def _touches_workspace(call: ast.Call) -> bool:
    """`Workspace.objects…write(…)` in any chain, or a write on something called a workspace."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in WRITES:
        return False
    names = {node.id for node in ast.walk(call.func.value) if isinstance(node, ast.Name)}
    return "Workspace" in names or (isinstance(call.func.value, ast.Name) and call.func.value.id in {"workspace", "ws"})


def test_nobody_but_the_two_writers_saves_updates_creates_or_deletes_a_workspace() -> None:
    guilty = [
        f"{path}:{node.lineno}"
        for path, text in sources()
        if path not in (SERVICES, RECORDER)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and _touches_workspace(node)
    ]
    assert not guilty


def test_only_the_two_writers_hold_sql_that_changes_workspaces() -> None:
    guilty = [str(path) for path, text in sources() if path not in (SERVICES, RECORDER) and OBSERVED.search(text)]
    assert not guilty


def test_the_services_never_set_an_observed_column() -> None:
    observed = {
        "conditions", "observed_at", "phase", "phase_changed_at", "operation", "op_started_at", "archive_op_id", "archive_key",
        "archive_sha256", "archive_size", "archived_at", "error_reason", "error_info", "error_count", "previous_phase", "home_ctx", "endpoint",
    }  # fmt: skip
    tree = ast.parse((ROOT / SERVICES).read_text())
    set_by_name = {
        keyword.arg
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in {"_write", "update", "create"}
        for keyword in node.keywords
    }
    assert not set_by_name & observed


def test_the_recorder_touches_no_asked_for_column_but_the_recovery_it_consumes() -> None:
    text = (ROOT / RECORDER).read_text()
    statement = text[text.index("UPDATE workspaces_workspace w SET") : text.index("FROM s JOIN locked")]
    columns = set(re.findall(r"(?:^|,|SET)\s*(\w+) = ", statement))
    assert columns & {"desired_state", "deleted_at", "last_access_at", "name", "memo", "updated_at"} == set()
    assert "recovery_strategy" in columns
