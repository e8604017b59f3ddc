"""`manage.py prepare_database`: the schema up to date and user `admin` there. Safe to run at every start, by several at once."""

from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.core.management import BaseCommand, CommandError, call_command
from django.db import OperationalError, connection

from codehub.config import generated_secret

ADMIN = "admin"
LOCK_NAME = "codehub:prepare-database"


class Command(BaseCommand):
    help = "Apply migrations and create user `admin` if it is missing."

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            connection.ensure_connection()
        except OperationalError as error:
            raise CommandError(f"DATABASE_URL leads to no database: {error}") from error
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", [LOCK_NAME])
            try:
                call_command("migrate", interactive=False, verbosity=0)
                self._ensure_admin(settings.CONFIG.codehub_data_dir / "admin-password")
            finally:
                cursor.execute("SELECT pg_advisory_unlock(hashtextextended(%s, 0))", [LOCK_NAME])

    def _ensure_admin(self, password_file: Path) -> None:
        admin = User.objects.filter(username=ADMIN).first()
        if admin is None:
            password = settings.CONFIG.codehub_admin_password or generated_secret(password_file, length=12)
            User.objects.create_superuser(ADMIN, password=password)
            self.stdout.write(f"user {ADMIN} created")
        elif password_file.exists() and not admin.check_password(password_file.read_text().strip()):
            # The password was changed since: a file that holds the old one only misleads.
            password_file.unlink()
