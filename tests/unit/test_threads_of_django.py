"""Synchronous Django behind an event loop: few calls at a time while they are short, and none waits behind slow ones."""

import asyncio
import threading
from typing import Any

from codehub.threaded import ThreadedDjango

SCOPE = {
    "type": "http",
    "method": "GET",
    "path": "/",
    "raw_path": b"/",
    "query_string": b"",
    "http_version": "1.1",
    "headers": [],
    "client": ("127.0.0.1", 1),
    "server": ("127.0.0.1", 80),
    "scheme": "http",
}


async def _call(application: ThreadedDjango) -> list[Any]:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await application(SCOPE, receive, send)
    return sent


def test_calls_that_wait_for_something_do_not_keep_others_waiting() -> None:
    """All threads but one hang; each call that comes then is answered by the last one."""
    released, hanging = threading.Event(), threading.Semaphore(7)

    def django(_environ: Any, start_response: Any) -> list[bytes]:
        if hanging.acquire(blocking=False):
            assert released.wait(30)
        start_response("200 OK", [])
        return [b"done"]

    async def main() -> None:
        application = ThreadedDjango(django, threads=8)
        slow = [asyncio.create_task(_call(application)) for _ in range(7)]
        for _ in range(3):
            sent = await asyncio.wait_for(_call(application), 10)
            assert sent[1]["body"] == b"done"
        assert not any(task.done() for task in slow)
        released.set()
        assert all(sent[0]["status"] == 200 for sent in await asyncio.gather(*slow))

    asyncio.run(main())


def test_turns_come_back_after_calls_that_failed_or_took_long() -> None:
    calls = 0

    def django(_environ: Any, start_response: Any) -> list[bytes]:
        nonlocal calls
        calls += 1
        if calls % 2:
            raise ValueError("broken")
        threading.Event().wait(0.06 if calls % 4 else 0)
        start_response("200 OK", [])
        return [b""]

    async def main() -> None:
        application = ThreadedDjango(django, threads=2)
        for _ in range(12):
            await asyncio.gather(_call(application), return_exceptions=True)
        assert application._turns._value == 2

    asyncio.run(main())
    assert calls == 12
