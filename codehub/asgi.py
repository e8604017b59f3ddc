"""The web process: routes each connection by host and path to the code that serves its kind of traffic.

Workspace traffic goes to the proxy, `/ws/` to Channels, the event stream to its own application, everything else to synchronous
Django in a bounded pool of threads. Owns that routing and the process's start and end. Must not import the coordinator,
docker or boto3.
"""

import asyncio
import io
import os
import sys
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "codehub.settings")

from django.conf import settings
from django.core.wsgi import get_wsgi_application

from codehub.settings import database_from_url

CONFIG = settings.CONFIG
# Threads come and go with requests here, so connections are pooled; every other process keeps plain ones.
settings.DATABASES["default"].update(database_from_url(CONFIG.database_url, pool_size=CONFIG.database_pool_size))

django_wsgi = get_wsgi_application()

from channels.auth import AuthMiddlewareStack
from channels.routing import URLRouter

from workspaces.api.stream import events
from workspaces.proxy.answers import answer
from workspaces.proxy.app import Proxy
from workspaces.proxy.headers import same_origin
from workspaces.proxy.visit import forwarded_hop
from workspaces.routing import websocket_urlpatterns

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

_EVENTS = ("/api/v1/events", "/api/v1/events/")
# A form or an API call: what is longer is refused before a thread is taken. Django's own limit is the setting itself.
_MAX_BODY = CONFIG.api_max_body_bytes + 64 * 1024
_BODY_SECONDS = 60
# Answers up to this size are read in the thread that made them; longer ones piece by piece, so a slow reader holds no thread.
_WHOLE_ANSWER = 1024 * 1024


class BodyTooLargeError(Exception):
    """More was sent than any page of ours takes."""


class ClientLeftError(Exception):
    """The client closed the connection before its request was complete."""


class ThreadedDjango:
    """Synchronous Django as an ASGI application, in at most WEB_THREADS threads."""

    def __init__(self, application: Callable[[dict[str, Any], Any], Iterable[bytes]], *, threads: int) -> None:
        self._application = application
        self._threads = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="web")

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


threaded_django = ThreadedDjango(django_wsgi, threads=CONFIG.web_threads)
proxy = Proxy(threaded_django)
_channels: Any = AuthMiddlewareStack(URLRouter(websocket_urlpatterns))


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        await _live(receive, send)
        return
    target = proxy.target_of(scope)
    if target is not None:
        await proxy(scope, receive, send, target)
    elif scope["type"] == "websocket":
        await _websocket(scope, receive, send)
    elif scope["path"] in _EVENTS:
        await events(scope, receive, send)
    else:
        await threaded_django(scope, receive, send)


async def _websocket(scope: Scope, receive: Receive, send: Send) -> None:
    """The dashboard's own WebSockets: from its own origin only, compared with scheme, host and port."""
    headers = scope["headers"]
    fields = dict(headers)
    plain = "https" if scope.get("scheme") == "wss" else "http"
    _, scheme = forwarded_hop(headers, peer="", scheme=plain, trusted=CONFIG.codehub_trusted_proxies)
    if not scope["path"].startswith("/ws/") or not any(_matches(pattern, scope["path"]) for pattern in websocket_urlpatterns):
        await receive()
        await answer(scope, send, 404, "not_found", "There is nothing here.")
    elif not same_origin(fields.get(b"origin", b""), scheme=scheme, host=fields.get(b"host", b"")):
        await receive()
        await answer(scope, send, 403, "permission_denied", "This WebSocket comes from another origin.")
    else:
        await _channels(scope, receive, send)


def _matches(pattern: Any, path: str) -> bool:
    return pattern.pattern.match(path.removeprefix("/")) is not None


async def _live(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            proxy.start()
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            await proxy.stop()
            await send({"type": "lifespan.shutdown.complete"})
            return
