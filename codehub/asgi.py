"""The web process: routes each connection by host and path to the code that serves its kind of traffic.

Workspace traffic goes to the proxy, `/ws/` to Channels, the event stream to its own application, everything else to synchronous
Django in a bounded pool of threads. Owns that routing and the process's start and end. Must not import the coordinator,
docker or boto3.
"""

import gc
import os
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

from codehub.threaded import ThreadedDjango
from workspaces.api.stream import events
from workspaces.proxy.answers import Receive, Scope, Send, answer
from workspaces.proxy.app import Proxy
from workspaces.proxy.headers import same_origin
from workspaces.proxy.visit import forwarded_hop
from workspaces.routing import websocket_urlpatterns

_EVENTS = ("/api/v1/events", "/api/v1/events/")

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
            # What was loaded by now stays: looking through all of it for garbage again and again would only hold calls up.
            gc.collect()
            gc.freeze()
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            await proxy.stop()
            await send({"type": "lifespan.shutdown.complete"})
            return
