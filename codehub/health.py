"""Whether this process is alive (`/healthz`) and whether it can do its work (`/readyz`).

Owns the three things a web process needs: the database, its schema, Redis. Names the part that fails and no more:
these pages are open to everybody. Never looks at Docker or object storage, which pages do not need.
"""

from collections.abc import Callable
from functools import lru_cache

import redis
import structlog
from django.conf import settings
from django.db import DatabaseError, connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

log = structlog.get_logger(__name__)


class NotReadyError(Exception):
    """A part this process needs is not there; the text is for people."""


@never_cache
@require_safe
def healthz(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"status": "ok"})


@never_cache
@require_safe
def readyz(request: HttpRequest) -> JsonResponse:
    parts = {name: _state_of(name, check) for name, check in CHECKS.items()}
    ready = all(state == "ok" for state in parts.values())
    return JsonResponse({"status": "ok" if ready else "unavailable", "checks": parts}, status=200 if ready else 503)


def _state_of(name: str, check: Callable[[], None]) -> str:
    try:
        check()
    except NotReadyError as error:
        return str(error)
    except (DatabaseError, redis.RedisError, OSError) as error:
        log.warning("readiness check failed", part=name, error=type(error).__name__)
        return "does not answer"
    return "ok"


def _check_database() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


def _check_migrations() -> None:
    missing = len(_known_migrations() - set(MigrationRecorder(connection).applied_migrations()))
    if missing:
        raise NotReadyError(f"{missing} not applied")


def _check_redis() -> None:
    with redis.Redis.from_url(settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=2) as client:
        client.ping()


@lru_cache(maxsize=1)
def _known_migrations() -> frozenset[tuple[str, str]]:
    """The migrations of the installed code, which cannot change while the process runs; a squashed one stands for others."""
    found = MigrationLoader(None).disk_migrations or {}
    return frozenset(key for key, migration in found.items() if not migration.replaces)


CHECKS: dict[str, Callable[[], None]] = {"database": _check_database, "migrations": _check_migrations, "redis": _check_redis}
