"""Ask the controller to look at a workspace sooner than it would by itself.

A wake-up is a hint on Redis: losing it costs at most one idle interval. Must not carry anything but the id.
"""

from uuid import UUID

from django.conf import settings
from django_redis import get_redis_connection


def publish_observe(workspace_id: UUID) -> int:
    """Ask for a targeted observation; returns how many listeners heard it. Raises redis.RedisError when Redis is away."""
    heard: int = get_redis_connection("default").publish(f"{settings.CONFIG.redis_channel_wake_prefix}:ob", str(workspace_id))
    return heard
