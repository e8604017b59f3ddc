"""Every sentence people see exists in Korean, and the compiled catalogue is the one of the source."""

import gettext
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from django.contrib import admin
from django.db.models import Model

from workspaces.column_names import NAMES, unnamed_columns

ROOT = Path(__file__).resolve().parents[2]
CATALOGUE = Path("locale/ko/LC_MESSAGES/django.po")
SOURCES = ("codehub", "workspaces", "coordinator", "templates", "codehub_cli")


@pytest.fixture(scope="module")
def extracted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The catalogue as it would be after collecting all messages anew."""
    copy = tmp_path_factory.mktemp("sources")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / CATALOGUE).parent.mkdir(parents=True)
    shutil.copy(ROOT / CATALOGUE, copy / CATALOGUE)
    command = [sys.executable, "-m", "django", "makemessages", "-l", "ko", "--no-location", "--no-obsolete", "--no-wrap"]
    environment = {key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"}
    subprocess.run(command, cwd=copy, env=environment, check=True, capture_output=True)
    return copy / CATALOGUE


@pytest.mark.parametrize("fault", ["--untranslated", "--only-fuzzy"])
def test_no_message_lacks_its_korean(extracted: Path, fault: str) -> None:
    found = subprocess.run(["msgattrib", fault, "--no-obsolete", "--no-wrap", str(extracted)], check=True, capture_output=True, text=True)
    assert [line for line in found.stdout.splitlines() if line.startswith("msgid") and line != 'msgid ""'] == []


def test_placeholders_of_the_korean_are_those_of_the_english() -> None:
    subprocess.run(["msgfmt", "--check", "-o", os.devnull, str(ROOT / CATALOGUE)], check=True)


def test_compiled_catalogue_is_the_one_of_the_source(tmp_path: Path) -> None:
    fresh = tmp_path / "django.mo"
    subprocess.run(["msgfmt", "-o", str(fresh), str(ROOT / CATALOGUE)], check=True)
    with fresh.open("rb") as new, (ROOT / CATALOGUE).with_suffix(".mo").open("rb") as old:
        assert gettext.GNUTranslations(new)._catalog == gettext.GNUTranslations(old)._catalog  # type: ignore[attr-defined]


def test_every_column_operators_may_see_has_a_name_that_is_collected() -> None:
    found = {str(field.verbose_name) for model in admin.site._registry for field in unnamed_columns(model) if _is_ours(model)}
    assert found - set(NAMES) == set()


def _is_ours(model: type[Model]) -> bool:
    return model._meta.app_label == "workspaces"
