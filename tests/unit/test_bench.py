"""Benches are run by hand and by `make bench`: what is only noticed then is noticed here, that they can be begun at all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(path.stem for path in (ROOT / "bench").glob("[a-z]*.py") if path.stem != "soak")


@pytest.mark.parametrize("name", MODULES)
def test_it_can_be_begun_by_whoever_has_set_nothing_up(name: str) -> None:
    env = {key: value for key, value in os.environ.items() if not key.startswith(("DJANGO_", "DATABASE_", "REDIS_", "S3_"))}
    done = subprocess.run([sys.executable, "-c", f"import bench.{name}"], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
