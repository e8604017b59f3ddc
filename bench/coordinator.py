"""The coordinator in figures: wish to claim, full ticks over many rows, idle cost, hand-over after each kind of death, and crowds.

    python -m bench.coordinator [--only claims,ticks,...] [--rows 1000,10000,100000] [--wishes 60] [--crowd 10000]

Runs on PostgreSQL and Redis of its own; the engine is a double in memory, so no time of an engine is in any figure.
"""

import argparse
import importlib
import os
import tempfile
from pathlib import Path

import django
from django.core.management import call_command

from codehub.config import load
from codehub.embedded.postgres import Postgres
from codehub.embedded.process import Child
from codehub.embedded.redis import Redis

SERVE = "--serve"
PARTS = ("claims", "ticks", "idle", "failover", "stop", "burst", "vanished", "woken")


class Site:
    """PostgreSQL and Redis under a temporary directory, and Django pointed at them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.postgres, self.redis = Postgres(directory / "postgres"), Redis(directory / "redis")
        self.children: dict[str, Child] = {}
        for service in (self.postgres, self.redis):
            service.prepare()
            self.begin(service)
            os.environ |= service.env()
        os.environ |= {
            "CODEHUB_DATA_DIR": str(directory),
            "DJANGO_SETTINGS_MODULE": "codehub.settings",
            "LOG_LEVEL": "ERROR",
            "LIMIT_MAX_RUNNING_PER_USER": "1000000",
            "LIMIT_MAX_RUNNING_GLOBAL": "1000000",
            "LIMIT_MAX_WORKSPACES_PER_USER": "1000000",
        }
        load.cache_clear()
        django.setup()

    def begin(self, service: Postgres | Redis) -> None:
        self.children[service.name] = Child(service.name, service.command(), on_line=lambda _line: None)
        service.wait_ready()

    def end(self) -> None:
        for child in self.children.values():
            child.stop()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default=",".join(PARTS), help=f"any of {', '.join(PARTS)}")
    parser.add_argument("--rows", default="1000,10000,100000")
    parser.add_argument("--crowd", type=int, default=10_000, help="workspaces whose containers vanish, or that are woken at once")
    parser.add_argument("--wishes", type=int, default=60)
    parser.add_argument(SERVE, action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        django.setup()
        importlib.import_module("bench._coordinator").serve()
        return
    print("coordinator")
    with tempfile.TemporaryDirectory(prefix="codehub-bench-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        site = Site(directory)
        try:
            call_command("migrate", verbosity=0)
            work, crowds = importlib.import_module("bench._coordinator"), importlib.import_module("bench._crowds")
            parts = {
                "claims": lambda: work.bench_claims(options.wishes),
                "ticks": lambda: work.bench_ticks([int(word) for word in options.rows.split(",")]),
                "idle": work.bench_idle,
                "failover": lambda: work.bench_failover(site),
                "stop": work.bench_stop,
                "burst": crowds.bench_burst,
                "vanished": lambda: crowds.bench_vanished(options.crowd),
                "woken": lambda: crowds.bench_woken(options.crowd),
            }
            for name in options.only.split(","):
                parts[name]()
        finally:
            site.end()


if __name__ == "__main__":
    main()
