"""One Redis connection for all subscribers of a web process, and what reaches them."""

import asyncio
import json
from uuid import uuid4

import pytest
import redis
from django.conf import settings

from workspaces import live
from workspaces.access import publish_access_changed


def _publish(user_id: int, kind: str, workspace: str) -> None:
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        client.publish(f"{settings.CONFIG.redis_channel_sse_prefix}:{user_id}", json.dumps({"type": kind, "id": workspace}))


def _connections() -> int:
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        return sum(1 for found in client.client_list() if int(found["sub"]) > 0)


def test_a_change_reaches_every_subscriber_of_its_user_and_nobody_else() -> None:
    async def scenario() -> None:
        async with live.subscribe(71) as one, live.subscribe(71) as two, live.subscribe(72) as other:
            await asyncio.to_thread(_publish, 71, "updated", "a")
            first, second = await one.next(5), await two.next(5)
            assert first is not None
            assert first == second
            assert (first.kind, first.workspace) == ("updated", "a")
            await asyncio.to_thread(_publish, 72, "deleted", "b")
            seen = await other.next(5)
            assert seen is not None
            assert seen.workspace == "b"
            assert await one.next(0.05) is None

    asyncio.run(scenario())


def test_a_hundred_subscribers_share_one_connection_and_it_ends_with_them() -> None:
    async def scenario() -> None:
        before = _connections()
        async with live.subscribe(1):
            others = [live.subscribe(user_id) for user_id in range(2, 101)]
            for other in others:
                await other.__aenter__()
            assert _connections() == before + 1
            for other in others:
                await other.__aexit__(None, None, None)
        for _ in range(100):
            if _connections() == before:
                return
            await asyncio.sleep(0.02)
        pytest.fail("the connection is still there")

    asyncio.run(scenario())


def test_changes_of_one_workspace_are_taken_together_and_progress_never_hides_an_update() -> None:
    async def scenario() -> None:
        async with live.subscribe(5) as changes:
            for kind in ("updated", "progress", "progress"):
                changes.put(live.Change(kind, "a", 1))
            found = await changes.next(1)
            assert found is not None
            assert found.kind == "updated"
            assert await changes.next(0) is None

    asyncio.run(scenario())


def test_a_queue_that_runs_over_becomes_one_resync() -> None:
    async def scenario() -> None:
        async with live.subscribe(5) as changes:
            for number in range(live.MAX_PENDING + 10):
                changes.put(live.Change("updated", str(uuid4()), number))
            found = await changes.next(1)
            assert found is not None
            assert found.kind == "resync"
            assert await changes.next(0) is None

    asyncio.run(scenario())


def test_a_lost_redis_connection_is_made_again_and_everyone_resyncs() -> None:
    async def scenario() -> None:
        async with live.subscribe(6) as changes:
            with redis.Redis.from_url(settings.REDIS_URL) as client:
                client.client_kill_filter(_type="pubsub")
            found = await changes.next(10)
            assert found is not None
            assert found.kind == "resync"
            await asyncio.to_thread(_publish, 6, "updated", "a")
            found = await changes.next(5)
            assert found is not None
            assert found.workspace == "a"

    asyncio.run(scenario())


def test_a_resync_on_the_channel_of_all_reaches_everyone() -> None:
    async def scenario() -> None:
        async with live.subscribe(7) as changes:
            with redis.Redis.from_url(settings.REDIS_URL) as client:
                client.publish(f"{settings.CONFIG.redis_channel_sse_prefix}:all", json.dumps({"type": "resync"}))
            found = await changes.next(5)
            assert found is not None
            assert found.kind == "resync"

    asyncio.run(scenario())


def test_a_change_of_access_is_told_before_anything_else() -> None:
    async def scenario() -> None:
        async with live.subscribe(8) as changes:
            changes.put(live.Change("updated", "a", 1))
            await asyncio.to_thread(publish_access_changed, 8)
            for _ in range(200):
                await asyncio.sleep(0.01)
                if "access" in changes._pending:
                    break
            found = await changes.next(1)
            assert found is not None
            assert found.kind == "access"

    asyncio.run(scenario())
