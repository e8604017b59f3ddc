"""Nothing is left behind: descriptors and memory of the web process return to where they were."""

import asyncio
import time

import aiohttp
import psutil
import pytest
from websockets.asyncio.client import ClientConnection, connect

from codehub.serve import raise_descriptor_limit
from tests.integration.proxy_world import World, free_port, make_workspace
from tests.integration.test_proxy_http import eventually, state

pytestmark = pytest.mark.slow
SLACK = 60
MEGABYTES = 60 * 1024 * 1024


def web_process_of(port: int) -> psutil.Process:
    """Found by the port it was told to serve; a child that ended and was not yet waited for has no command line."""
    alive = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    return next(child for child in alive if "codehub.serve" in child.cmdline() and str(port) in child.cmdline())


def settled_descriptors(process: psutil.Process, at_most: int, *, seconds: float = 30) -> int:
    deadline = time.monotonic() + seconds
    while process.num_fds() > at_most and time.monotonic() < deadline:
        time.sleep(0.1)
    return int(process.num_fds())


@pytest.mark.timeout(300)
def test_a_thousand_idle_websockets_leave_nothing_behind(path_world: World) -> None:
    raise_descriptor_limit()
    process = web_process_of(path_world.port)
    before = process.num_fds()
    url = f"ws://127.0.0.1:{path_world.port}/w/{path_world.workspace.pk}/ws"

    async def hold() -> None:
        opened: list[ClientConnection] = []
        for _ in range(20):
            batch = [connect(url, additional_headers=path_world.bearer, proxy=None, open_timeout=60, ping_interval=None) for _ in range(50)]
            opened.extend(await asyncio.gather(*batch))
        # Two each, and whatever else was open for a moment when it was counted before.
        assert process.num_fds() >= before + 2000 - SLACK
        await opened[-1].send("alive")
        assert await opened[-1].recv() == "alive"
        await asyncio.gather(*(connection.close() for connection in opened))

    def round_trip() -> int:
        asyncio.run(hold())
        assert settled_descriptors(process, before + SLACK) <= before + SLACK
        eventually(lambda: state(path_world)["websockets"] == 0)
        return int(process.memory_info().rss)

    # The allocator keeps what the first thousand needed; the second thousand must not need more.
    first = round_trip()
    assert round_trip() < first + MEGABYTES / 4


@pytest.mark.timeout(300)
def test_five_thousand_connects_to_a_dead_upstream_leave_nothing_behind(path_world: World) -> None:
    dead = make_workspace(path_world.owner, endpoint=f"http://127.0.0.1:{free_port()}", name="dead")
    process = web_process_of(path_world.port)
    before, memory = process.num_fds(), process.memory_info().rss

    async def knock() -> set[int]:
        seen: set[int] = set()
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=50), headers=path_world.bearer) as client:
            for _ in range(10):
                answers = await asyncio.gather(*(client.get(path_world.url(workspace=dead.pk)) for _ in range(500)))
                seen |= {answer.status for answer in answers}
                for answer in answers:
                    answer.release()
        return seen

    try:
        assert asyncio.run(knock()) == {502}
        assert settled_descriptors(process, before + SLACK) <= before + SLACK
        assert process.memory_info().rss < memory + MEGABYTES
    finally:
        dead.delete()
