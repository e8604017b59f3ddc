"""What the documents name is really there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
# What an installation makes is not part of the tree.
TOP = {path.name for path in ROOT.iterdir()} - {".venv", ".codehub"}
NAMED_PATH = re.compile(r"`([A-Za-z_.][\w./-]*/[\w./-]*|\.importlinter)`")
LINK = re.compile(r"\]\(([^)#:]+)\)")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_path_a_document_names_exists(document: Path) -> None:
    named = {path for path in NAMED_PATH.findall(document.read_text()) if path.split("/")[0] in TOP}
    assert sorted(path for path in named if not (ROOT / path).exists() and path != "deploy/.env") == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_of_a_document_leads_somewhere(document: Path) -> None:
    assert [link for link in LINK.findall(document.read_text()) if not (document.parent / link).exists()] == []


def test_the_architecture_page_names_the_parts_in_the_order_a_click_passes_them() -> None:
    named = NAMED_PATH.findall((ROOT / "docs/architecture.md").read_text())
    way = ["workspaces/views.py", "workspaces/services.py", "coordinator/events.py", "coordinator/reconcile.py", "coordinator/decide.py"]
    assert [named.index(path) for path in way] == sorted(named.index(path) for path in way)
