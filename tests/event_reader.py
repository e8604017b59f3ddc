"""A reader of the API's event stream, for tests and for bench: it needs an address and a token, and no Django here."""

import json
import socket
import threading
import time
from contextlib import suppress
from queue import Empty, Queue
from types import TracebackType
from typing import Any, Self

import httpx


class EventReader:
    """One open stream, read in a thread: `next()` gives (event, data) in order, `closed` is set when the server ended it."""

    def __init__(self, url: str, token: str) -> None:
        self.events: Queue[tuple[str, Any]] = Queue()
        self.closed = threading.Event()
        self.ids: list[str] = []
        self._client = httpx.Client(timeout=httpx.Timeout(10, read=60))
        self._context = self._client.stream("GET", f"{url}/api/v1/events", headers={"Authorization": f"Bearer {token}"})
        self.response = self._context.__enter__()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def next(self, *, timeout: float = 20, heartbeats: bool = False) -> tuple[str, Any]:
        deadline = time.monotonic() + timeout
        while True:
            try:
                event = self.events.get(timeout=max(0.01, deadline - time.monotonic()))
            except Empty:
                raise AssertionError("no event came") from None
            if heartbeats or event[0] != "heartbeat":
                return event

    def _read(self) -> None:
        name = ""
        try:
            for line in self.response.iter_lines():
                field, _, value = line.partition(": ")
                if field == "event":
                    name = value
                elif field == "id":
                    self.ids.append(value)
                elif field == "data":
                    self.events.put((name, json.loads(value)))
        except (httpx.TransportError, httpx.StreamError):
            pass
        finally:
            self.closed.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # Closing alone would leave the socket open for as long as the other thread reads from it.
        with suppress(OSError):
            self.response.extensions["network_stream"].get_extra_info("socket").shutdown(socket.SHUT_RDWR)
        self._thread.join(timeout=10)
        self._client.close()
