"""`manage.py run_web`: the web process, served by uvicorn on HOST and PORT."""

from typing import Any

import uvicorn
from django.conf import settings
from django.core.management import BaseCommand
from django.db import connections

from codehub.serve import UVICORN_OPTIONS, raise_descriptor_limit


class Command(BaseCommand):
    help = "Run the web server: dashboard, API, live events and workspace traffic."

    def handle(self, *args: Any, **options: Any) -> None:
        # What the start-up checks opened is not pooled: the application begins with connections of its own kind.
        connections.close_all()
        raise_descriptor_limit()
        uvicorn.run(**UVICORN_OPTIONS, host=settings.CONFIG.host, port=settings.CONFIG.port)
