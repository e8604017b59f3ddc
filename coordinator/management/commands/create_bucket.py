"""`manage.py create_bucket`: make the bucket of the archives on a new object store.

An act of its own on purpose. A bucket that was made by itself where the right one was missing would turn a wrong setting into
archives that seem lost.
"""

import time
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from coordinator.providers.base import ProviderError, UnreachableError
from coordinator.wiring import build_store
from workspaces.models import Installation


class Command(BaseCommand):
    help = "Create the bucket of the archives if it is not there."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--wait", type=float, default=60, help="Seconds to wait for an object store that does not answer yet.")

    def handle(self, *args: Any, **options: Any) -> None:
        config = settings.CONFIG
        store = build_store(config, Installation.objects.get())
        deadline = time.monotonic() + options["wait"]
        while True:
            try:
                store.ensure_bucket()
                break
            except UnreachableError as error:
                if time.monotonic() > deadline:
                    raise CommandError(str(error)) from error
                time.sleep(1)
            except ProviderError as error:
                raise CommandError(str(error)) from error
        self.stdout.write(f"the bucket {config.s3_bucket} is there")
