"""One Docker engine behind docker-py: connecting lazily, time-outs, short retries and the translation of errors.

Nothing above this module sees a requests, urllib3 or docker exception, except `docker.errors.APIError` of the 4xx kind,
which the runtime interprets. Knows no workspace.
"""

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import docker
import requests
import urllib3
from docker.errors import APIError, DockerException, create_api_error_from_http_exception

from coordinator.providers.base import ActionFailedError, ProviderError, UnreachableError

T = TypeVar("T")

TRIES = 3
_BACKOFF = 0.15
_BROKEN = (requests.exceptions.RequestException, urllib3.exceptions.HTTPError, http.client.HTTPException, OSError)
_TIMEOUTS = (requests.exceptions.Timeout, urllib3.exceptions.TimeoutError, TimeoutError)
_AWAY = (502, 503, 504)


def explanation(error: APIError) -> str:
    """The engine's own words."""
    return str(error.explanation or error)[:2000]


def status_of(error: APIError) -> int:
    return int(error.status_code or 0)


class Engine:
    def __init__(self, host: str, *, timeout: float) -> None:
        self._host = host
        self._path = host.removeprefix("unix://") or "/var/run/docker.sock"
        self._timeout = timeout
        self._client: docker.APIClient | None = None
        self._lock = threading.Lock()

    @property
    def is_local(self) -> bool:
        return not self._host or self._host.startswith(("unix://", "/"))

    def connect(self) -> docker.APIClient:
        """The client, made on first use: negotiating the version already needs an engine that answers."""
        with self._lock:
            if self._client is None:
                base_url = self._host if not self.is_local else f"unix://{self._path}"
                self._client = docker.APIClient(base_url=base_url, version="auto", timeout=int(self._timeout), num_pools=64)
            return self._client

    def call(self, function: Callable[[Any], T], *, doing: str, acting: bool = False, tries: int = TRIES) -> T:
        """Run one engine call that may be repeated. 4xx answers come out as `APIError`; no answer is UnreachableError.

        A 5xx answer is retried, since the engine may stumble; when it stays, it is UnreachableError, or with `acting`
        ActionFailedError: the engine uses 500 for a container that cannot start, and one bad image is no outage.
        """
        for attempt in range(1, tries + 1):
            try:
                self._knock()
                return function(self.connect())
            except APIError as error:
                status = status_of(error)
                if status and status < 500:
                    raise
                failure = _server_failure(error, doing=doing, acting=acting)
            except _TIMEOUTS as error:
                # Waiting again for as long would outlive what the caller planned for.
                raise unreachable(error, doing) from error
            except (*_BROKEN, DockerException) as error:
                failure = unreachable(error, doing)
            if attempt == tries:
                raise failure
            time.sleep(_BACKOFF * 2 ** (attempt - 1))
        raise AssertionError("unreachable code")

    def _knock(self) -> None:
        """Fail at once where nobody listens: docker-py leaves the socket of a refused connection open."""
        if not self.is_local:
            return
        with socket.socket(socket.AF_UNIX) as door:
            door.settimeout(self._timeout)
            door.connect(self._path)

    def close(self) -> None:
        """Give the connections back. The next call makes new ones."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    @contextmanager
    def stream(
        self,
        path: str,
        *,
        params: dict[str, Any],
        doing: str,
        timeout: float | None = None,
        post: dict[str, str] | None = None,
    ) -> Iterator[urllib3.BaseHTTPResponse]:
        """A streaming answer, closed on exit, wherever the reader stopped. With `post`, of a POST with these headers that acts.

        `timeout` bounds the silence between two pieces, not the whole.
        """

        def open_stream(client: Any) -> requests.Response:
            url = f"{client.base_url}/v{client.api_version}{path}"
            ask = client.get if post is None else client.post
            response: requests.Response = ask(
                url, params=params, stream=True, timeout=timeout or self._timeout, headers={"Accept-Encoding": "identity", **(post or {})}
            )
            try:
                response.raise_for_status()
            except requests.exceptions.HTTPError as error:
                create_api_error_from_http_exception(error)
            return response

        response = self.call(open_stream, doing=doing, acting=post is not None, tries=TRIES if post is None else 1)
        try:
            yield response.raw
        except _BROKEN as error:
            raise unreachable(error, doing) from error
        finally:
            response.close()


def json_lines(raw: urllib3.BaseHTTPResponse) -> Iterator[dict[str, Any]]:
    """One object a line, each as soon as it has come."""
    pending = b""
    while received := raw.read1():
        *complete, pending = (pending + received).split(b"\n")
        for line in complete:
            if line.strip():
                yield json.loads(line)


def unreachable(error: BaseException, doing: str) -> UnreachableError:
    return UnreachableError(f"Docker did not answer ({doing}): {type(error).__name__}: {error}"[:1000], endpoint="docker")


def _server_failure(error: APIError, *, doing: str, acting: bool) -> ProviderError:
    status = status_of(error)
    if acting and status not in _AWAY:
        return ActionFailedError(f"Docker could not {doing}", stderr=explanation(error))
    return UnreachableError(f"Docker failed ({doing}): {explanation(error)}"[:1000], endpoint="docker", status_code=status or None)
