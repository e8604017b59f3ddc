"""`manage.py up`: everything CodeHub needs on this machine, in one terminal."""

import sys
from pathlib import Path
from typing import Any

from django.core.management import BaseCommand, CommandError

from codehub.config import Config
from codehub.embedded.console import Console
from codehub.embedded.service import EmbeddedError
from codehub.embedded.stack import Stack
from coordinator.providers.process_stop import end_processes


class Command(BaseCommand):
    help = "Run CodeHub on this machine: embedded PostgreSQL, Redis and S3, the web server and the coordinator."
    # The database is started by this very command.
    requires_system_checks = []

    def handle(self, *args: Any, **options: Any) -> None:
        given = Config()
        console = Console()
        stack = Stack(given, manage=Path(sys.argv[0]).absolute(), workers=_workers(given), console=console, end_rest=end_processes)
        try:
            stack.run()
        except EmbeddedError as error:
            raise CommandError(str(error)) from error


def _workers(given: Config) -> dict[str, list[str]]:
    """Our own long-running commands, by the name they get in the log."""
    workers = {"web": ["run_web"], "coordinator": ["run_coordinator"]}
    if given.codehub_executor == "celery":
        workers["celery"] = ["run_celery"]
        workers["transfers"] = ["run_celery", "--transfers"]
    return workers
