"""How many calls one user or one address may make: a counter for each window, in Redis.

One round trip a call whatever the rate. When Redis does not answer, calls go through: throttling is comfort, not safety.
"""

import time
from typing import Final

import structlog
from django.conf import settings
from django_redis import get_redis_connection
from redis.exceptions import RedisError
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView

from workspaces.access import client_address

log = structlog.get_logger(__name__)

_WINDOWS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_PAUSE_AFTER_FAILURE = 5.0
_redis_back_at = 0.0


def parse_rate(rate: str) -> tuple[int, int]:
    """`6000/min` -> (6000, 60)."""
    calls, _, unit = rate.partition("/")
    return int(calls), _WINDOWS[unit[0]]


def count_call(scope: str, who: str, *, rate: str) -> float | None:
    """Count one call; None when it may go ahead, else the seconds to wait."""
    global _redis_back_at  # noqa: PLW0603 - one pause for the process, shared by its threads; a race costs one extra try
    calls, window = parse_rate(rate)
    now = time.time()
    if time.monotonic() < _redis_back_at:
        return None
    key = f"codehub:throttle:{scope}:{who}:{int(now // window)}"
    try:
        with get_redis_connection("default").pipeline(transaction=False) as pipeline:
            pipeline.incr(key)
            pipeline.expire(key, window + 1)
            used = pipeline.execute()[0]
    except RedisError as error:
        log.warning("call not counted", scope=scope, error=str(error))
        _redis_back_at = time.monotonic() + _PAUSE_AFTER_FAILURE
        return None
    return None if used <= calls else window - now % window


class CallThrottle(BaseThrottle):
    """Signed-in callers are counted by user, everyone else by address."""

    _wait: float | None = None

    def allow_request(self, request: Request, view: APIView) -> bool:
        if request.user and request.user.is_authenticated:
            self._wait = count_call("user", str(request.user.pk), rate=settings.CONFIG.api_throttle_user)
        else:
            self._wait = count_call("anon", client_address(request._request) or "unknown", rate=settings.CONFIG.api_throttle_anon)
        return self._wait is None

    def wait(self) -> float | None:
        return self._wait
