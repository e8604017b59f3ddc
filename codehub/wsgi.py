"""The synchronous Django handler: ordinary pages and API calls, without live streams or workspace traffic."""

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "codehub.settings")

application = get_wsgi_application()
