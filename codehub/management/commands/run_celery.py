"""`manage.py run_celery`: a worker that runs actuators for `CODEHUB_EXECUTOR=celery`. Any number, on any machine."""

import sys
import warnings
from typing import Any

from celery.exceptions import SecurityWarning
from celery.utils.nodenames import default_nodename, host_format
from django.conf import settings
from django.core.management import BaseCommand, CommandParser

from codehub.celery import HEAVY_QUEUE, LIGHT_QUEUE, app


class Command(BaseCommand):
    help = "Run a Celery worker for actuators: start, stop, provision and delete, or with --transfers archives and restores."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--transfers", action="store_true", help="Serve archives and restores instead of the quick actuators.")

    def handle(self, *args: Any, transfers: bool, **options: Any) -> None:
        config = settings.CONFIG
        queue, concurrency = (HEAVY_QUEUE, config.coordinator_transfer_workers) if transfers else (LIGHT_QUEUE, config.coordinator_workers)
        # It warns root because of pickled messages; ours are JSON and carry an id.
        warnings.filterwarnings("ignore", category=SecurityWarning)
        worker = app.Worker(
            hostname=host_format(default_nodename(f"{queue}@%h")),
            # Actuators wait for engines and networks: threads serve them, and each keeps its own database connection.
            pool="threads",
            concurrency=concurrency,
            queues=[queue],
            loglevel=config.log_level,
            without_gossip=True,
            without_mingle=True,
            quiet=True,
        )
        worker.start()
        sys.exit(worker.exitcode)
