"""Recorded use from Redis to the rows, then expiry: what was idle too long stops, what stood by too long is archived.

Owns the copy and its order. Removes from Redis only what has not moved meanwhile, so nothing recorded is lost. When use cannot
be read, nobody is stopped for not having used anything. Times are judged by the database; it writes through the service layer.
"""

from datetime import UTC, datetime
from uuid import UUID

import redis
import structlog

from coordinator.leader import Term
from coordinator.wakeups import REDIS_ERRORS, Inbox, redis_client
from workspaces import services

log = structlog.get_logger(__name__)

ACTIVITY_KEY = "codehub:activity"
"""Sorted set: workspace id, seconds since 1970 of its last use."""
KIND_KEY = "codehub:activity:kind"
"""Hash: workspace id, what that use was."""
BATCH = 5_000
_KIND_LENGTH = 40
_LATEST = datetime(9999, 1, 1, tzinfo=UTC).timestamp()

# Member and score in turn. A newer score has arrived since it was read: it stays for the next copy.
_FORGET_COPIED = """
    local removed = 0
    for i = 1, #ARGV, 2 do
        local score = redis.call('ZSCORE', KEYS[1], ARGV[i])
        if score and tonumber(score) <= tonumber(ARGV[i + 1]) then
            removed = removed + redis.call('ZREM', KEYS[1], ARGV[i])
            redis.call('HDEL', KEYS[2], ARGV[i])
        end
    end
    return removed
"""


def copy_activity(client: redis.Redis) -> int:
    """All recorded use to the rows; how many workspaces. Raises a Redis error when it cannot be read."""
    copied = 0
    while True:
        found: list[tuple[str, float]] = client.zrange(ACTIVITY_KEY, 0, BATCH - 1, withscores=True)  # type: ignore[assignment]
        if not found:
            return copied
        kinds: list[str | None] = client.hmget(KIND_KEY, [member for member, _ in found])  # type: ignore[assignment]
        signals: dict[UUID, tuple[datetime, str]] = {}
        for (member, score), kind in zip(found, kinds, strict=True):
            try:
                workspace_id = UUID(member)
            except ValueError:
                log.warning("activity of something that is no workspace", member=member[:80])
                continue
            # A clock gone mad still gives a time PostgreSQL can compare; the future is cut to its now.
            signals[workspace_id] = (datetime.fromtimestamp(min(max(score, 0.0), _LATEST), UTC), (kind or "use")[:_KIND_LENGTH])
        services.request_activity(signals)
        arguments = [word for member, score in found for word in (member, repr(float(score)))]
        removed = int(client.eval(_FORGET_COPIED, 2, ACTIVITY_KEY, KIND_KEY, *arguments))
        copied += len(signals)
        if len(found) < BATCH or not removed:
            return copied


class TtlWork:
    """Copies and expires once an interval."""

    name = "ttl"
    shard = 0

    def __init__(self, *, url: str, standby_seconds: int, archive_seconds: int, interval: float) -> None:
        self._url = url
        self._standby_seconds = standby_seconds
        self._archive_seconds = archive_seconds
        self._interval = interval
        self._inbox = Inbox()

    def begin(self, term: Term) -> None:
        """Nothing is remembered between terms."""

    def wait(self, timeout: float) -> bool:
        return self._inbox.wait(timeout)

    def tick(self, term: Term, *, full: bool) -> None:
        standby: int | None = self._standby_seconds
        client = redis_client(self._url)
        try:
            copy_activity(client)
        except REDIS_ERRORS as error:
            # Somebody may be typing in every one of them.
            log.warning("activity not readable, nothing is stopped for being idle", error=str(error))
            standby = None
        finally:
            client.close()
        term.verify()
        stopping, archiving = services.request_expiry(standby_seconds=standby, archive_seconds=self._archive_seconds)
        for workspace_id in stopping:
            log.info("idle, to be stopped", workspace=str(workspace_id))
        for workspace_id in archiving:
            log.info("in standby for long, to be archived", workspace=str(workspace_id))

    def interval(self) -> float:
        return self._interval

    def first_delay(self) -> float:
        return 0.0

    def end(self) -> None:
        """Nothing is held."""

    def poke(self) -> None:
        self._inbox.poke()
