"""`manage.py recover_workspace`: an operator's answer to a workspace in ERROR, in the audit trail under the operator's name."""

from argparse import ArgumentParser
from typing import Any
from uuid import UUID

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError

from workspaces import services
from workspaces.errors import RequestError
from workspaces.phases import RecoveryStrategy


class Command(BaseCommand):
    help = "Ask for the recovery of a workspace that is in ERROR."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("workspace", type=UUID, help="Id of the workspace.")
        parser.add_argument(
            "--strategy", choices=[strategy.value for strategy in RecoveryStrategy], default=RecoveryStrategy.REOBSERVE.value
        )
        parser.add_argument("--user", required=True, help="Name of the operator who asks (staff).")

    def handle(self, *args: Any, **options: Any) -> None:
        users = get_user_model()
        try:
            user = users.objects.get_by_natural_key(options["user"])
        except users.DoesNotExist as error:
            raise CommandError(f"There is no user {options['user']}.") from error
        try:
            workspace = services.request_recover(options["workspace"], user=user, strategy=options["strategy"])
        except RequestError as error:
            raise CommandError(f"{error.code}: {error.message}") from error
        self.stdout.write(f"{workspace.pk} {workspace.name}: {options['strategy']} asked for, desired state {workspace.desired_state}")
