"""`manage.py gc`: one cycle of garbage collection now, or with `--dry-run` what it would remove."""

from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.template.defaultfilters import filesizeformat

from coordinator.gc import Collector, Entry
from coordinator.leader import AsideTimeoutError
from coordinator.providers.base import ProviderError
from coordinator.wiring import build_runtime, build_store
from workspaces.models import Installation


def describe(entry: Entry) -> str:
    """One line for people: what it is, how large, and what happens to it."""
    thing = entry.thing
    size = "size unknown" if thing.size is None else filesizeformat(thing.size).replace("\xa0", " ")
    if entry.due:
        fate = "to be removed"
    elif not thing.known and not entry.confirmed:
        fate = "belongs to no workspace, waits for an operator's confirmation"
    elif entry.free_at is None:
        fate = "not seen before, its grace begins with the next cycle"
    else:
        fate = f"waits until {entry.free_at:%Y-%m-%d %H:%M:%S} UTC"
    return f"{thing.kind:<9} {thing.name}  {size}  {fate}"


class Command(BaseCommand):
    help = "Remove what no workspace accounts for any more and whose grace is over."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--dry-run", action="store_true", help="Only print what would go and how many bytes that frees.")

    def handle(self, *args: Any, **options: Any) -> None:
        config = settings.CONFIG
        installation = Installation.objects.get()
        try:
            runtime, store = build_runtime(config, installation), build_store(config, installation)
            self._check_engine(installation, name=runtime.name, identity=runtime.identity())
            collector = Collector(runtime=runtime, store=store, grace_seconds=config.gc_grace_seconds)
            report = collector.plan() if options["dry_run"] else collector.collect()
        except (ProviderError, AsideTimeoutError) as error:
            raise CommandError(f"Nothing was removed, the view would have been partial: {error}") from error
        for entry in report.entries:
            self.stdout.write(describe(entry))
        if options["dry_run"]:
            due = [entry.thing for entry in report.entries if entry.due]
            size = sum(thing.size or 0 for thing in due)
            self.stdout.write(f"{len(report.entries)} orphans, {len(due)} would be removed, {size} bytes freed")
        else:
            self.stdout.write(
                f"{len(report.entries)} orphans, {report.removed} removed, {report.bytes_freed} bytes freed, {report.failed} failed"
            )

    def _check_engine(self, installation: Installation, *, name: str, identity: str) -> None:
        if installation.engine_identity and (installation.runtime, installation.engine_identity) != (name, identity):
            raise CommandError("This is not the engine this installation's homes live on: nothing is judged from here.")
