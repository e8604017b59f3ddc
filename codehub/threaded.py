"""Synchronous Django behind the event loop, in a bounded pool of threads.

Owns the way of a request into a thread and of its answer out again: bodies are read before a thread is taken, and few calls run at
a time while they are short. Knows nothing of hosts and paths.
"""

import asyncio
import io
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from django.conf import settings

from workspaces.proxy.answers import Receive, Scope, Send, answer
from workspaces.proxy.visit import forwarded_hop

CONFIG = settings.CONFIG
# A form or an API call: what is longer is refused before a thread is taken. Django's own limit is the setting itself.
_MAX_BODY = CONFIG.api_max_body_bytes + 64 * 1024
_BODY_SECONDS = 60
# Answers up to this size are read in the thread that made them; longer ones piece by piece, so a slow reader holds no thread.
_WHOLE_ANSWER = 1024 * 1024
# Python runs one thread at a time: more than a few at once only take turns, and pay for each. A call that takes longer than
# this waits for something, most likely, and lets the next one begin.
_AT_ONCE = 4
_TURN_SECONDS = 0.05


class BodyTooLargeError(Exception):
    """More was sent than any page of ours takes."""


class ClientLeftError(Exception):
    """The client closed the connection before its request was complete."""


class ThreadedDjango:
    """Synchronous Django as an ASGI application, in at most WEB_THREADS threads."""

    def __init__(self, application: Callable[[dict[str, Any], Any], Iterable[bytes]], *, threads: int) -> None:
        self._application = application
        self._threads = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="web")
        self._turns = asyncio.Semaphore(min(_AT_ONCE, threads))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                body = await self._read(receive)
        except BodyTooLargeError:
            await answer(scope, send, 413, "too_large", "The body is too large.")
            return
        except TimeoutError:
            await answer(scope, send, 408, "timeout", "The body took too long to arrive.")
            return
        except ClientLeftError:
            return
        loop = asyncio.get_running_loop()
        async with self._turn():
            started, first, rest = await loop.run_in_executor(self._threads, self._run, environ_of(scope, body))
        await send(started)
        await send({"type": "http.response.body", "body": first, "more_body": rest is not None})
        if rest is not None:
            iterator, close = rest
            try:
                while piece := await loop.run_in_executor(self._threads, next, iterator, b""):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            finally:
                await loop.run_in_executor(self._threads, close)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """One of a few at a time, for a moment; whoever takes longer goes on beside the others."""
        await self._turns.acquire()
        has_turn = True

        def give_up() -> None:
            nonlocal has_turn
            if has_turn:
                has_turn = False
                self._turns.release()

        timer = asyncio.get_running_loop().call_later(_TURN_SECONDS, give_up)
        try:
            yield
        finally:
            timer.cancel()
            give_up()

    async def _read(self, receive: Receive) -> bytes:
        """The whole body, before a thread is taken: a slow client costs memory of its own size and nothing else."""
        pieces: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientLeftError
            piece = message.get("body", b"")
            size += len(piece)
            if size > _MAX_BODY:
                raise BodyTooLargeError
            pieces.append(piece)
            if not message.get("more_body", False):
                return b"".join(pieces)

    def _run(self, environ: dict[str, Any]) -> tuple[dict[str, Any], bytes, Any]:
        started: dict[str, Any] = {}

        def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> None:
            started["type"] = "http.response.start"
            started["status"] = int(status.split(" ", 1)[0])
            started["headers"] = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]

        answer_body = self._application(environ, start_response)
        close: Callable[[], None] = getattr(answer_body, "close", lambda: None)
        iterator = iter(answer_body)
        pieces: list[bytes] = []
        size = 0
        try:
            for piece in iterator:
                pieces.append(piece)
                size += len(piece)
                if size > _WHOLE_ANSWER:
                    return started, b"".join(pieces), (iterator, close)
        except BaseException:
            close()
            raise
        close()
        return started, b"".join(pieces), None


def environ_of(scope: Scope, body: bytes) -> dict[str, Any]:
    """The WSGI environment of a request. Whoever reads forwarded headers there asks how many proxies are trusted."""
    server = scope.get("server") or ("localhost", 80)
    peer = scope["client"][0] if scope.get("client") else ""
    _, scheme = forwarded_hop(scope["headers"], peer=peer, scheme=scope.get("scheme", "http"), trusted=CONFIG.codehub_trusted_proxies)
    environ: dict[str, Any] = {
        "REQUEST_METHOD": scope["method"],
        "SCRIPT_NAME": "",
        "PATH_INFO": scope["path"].encode("utf-8", "surrogateescape").decode("latin-1"),
        "RAW_URI": scope["raw_path"].decode("latin-1"),
        "QUERY_STRING": scope["query_string"].decode("latin-1"),
        "SERVER_NAME": server[0],
        "SERVER_PORT": str(server[1] or 0),
        "SERVER_PROTOCOL": f"HTTP/{scope['http_version']}",
        "REMOTE_ADDR": peer,
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": scheme,
        "wsgi.input": io.BytesIO(body),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
    }
    for name, value in scope["headers"]:
        # An underscore would turn into the same variable as a dash: a way to smuggle a header past the checks.
        if b"_" in name or name in (b"content-length", b"transfer-encoding", b"proxy"):
            continue
        key = name.decode("latin-1").upper().replace("-", "_")
        if key != "CONTENT_TYPE":
            key = "HTTP_" + key
        text = value.decode("latin-1")
        environ[key] = f"{environ[key]}{'; ' if key == 'HTTP_COOKIE' else ','}{text}" if key in environ else text
    return environ
