"""The HTTP side of the client: requests, failures as exceptions with an exit code, and what is remembered between calls.

The address and token come from the environment (`CODEHUB_URL`, `CODEHUB_TOKEN`) or from a file that only its owner can read.
"""

import json
import os
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final, NoReturn
from urllib.parse import quote, urlencode, urlsplit

DEFAULT_URL: Final = "http://127.0.0.1:8000"
OK, FAILED, USAGE, NOT_FOUND, AUTH, CONFLICT, LIMIT, NOT_REACHED = 0, 1, 2, 3, 4, 5, 6, 7
_EXIT_BY_STATUS: Final = {400: USAGE, 401: AUTH, 403: AUTH, 404: NOT_FOUND, 409: CONFLICT, 412: CONFLICT, 429: LIMIT}
_TRIES: Final = 3


class CliError(Exception):
    """Something to say to the person, and the exit code to say it with."""

    def __init__(self, message: str, *, exit_code: int = FAILED, body: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.body = body or {}


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the token to wherever it points."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        return None


@dataclass(slots=True)
class Client:
    """One server, one token."""

    url: str
    token: str = ""
    timeout: float = 30

    def get(self, path: str, **query: Any) -> Any:
        return self._call("GET", path, query=query)

    def post(self, path: str, body: Any = None, *, headers: dict[str, str] | None = None) -> Any:
        return self._call("POST", path, body=body, headers=headers)

    def patch(self, path: str, body: Any, **query: Any) -> Any:
        return self._call("PATCH", path, body=body, query=query)

    def delete(self, path: str, **query: Any) -> Any:
        return self._call("DELETE", path, query=query)

    def all(self, path: str, **query: Any) -> list[dict[str, Any]]:
        """Every row of a list, page by page."""
        page = self.get(path, **query)
        rows: list[dict[str, Any]] = page["results"]
        while page["next"]:
            # Only the query of the link is followed: the server may know itself by another name than we do.
            page = self._call("GET", f"{path}?{urlsplit(page['next']).query}")
            rows += page["results"]
        return rows

    def _call(
        self, method: str, path: str, *, body: Any = None, query: dict[str, Any] | None = None, headers: dict[str, str] | None = None
    ) -> Any:
        address = f"{self.url}/api/v1/{path}"
        chosen = {name: value for name, value in (query or {}).items() if value is not None}
        if chosen:
            address += "?" + urlencode(chosen, doseq=True)
        sent = {"Accept": "application/json", **(headers or {})}
        if self.token:
            sent["Authorization"] = f"Bearer {self.token}"
        data = None
        if body is not None:
            sent["Content-Type"] = "application/json"
            data = json.dumps(body).encode()
        # Only what changes nothing when repeated is tried again.
        tries = _TRIES if method == "GET" or "Idempotency-Key" in sent else 1
        try:
            request = urllib.request.Request(address, data=data, headers=sent, method=method)  # noqa: S310 - checked here
            if request.type not in {"http", "https"} or not urlsplit(address).hostname:
                raise ValueError(address)
        except ValueError:
            raise CliError(f"{self.url} is not an http or https address.", exit_code=USAGE) from None
        for attempt in range(1, tries + 1):
            try:
                return self._once(request)
            except (OSError, HTTPException) as error:
                if attempt == tries:
                    raise CliError(f"Cannot reach {self.url}: {getattr(error, 'reason', error)}") from None
                time.sleep(0.2 * attempt)
        return None

    def _once(self, request: urllib.request.Request) -> Any:
        try:
            with urllib.request.build_opener(_NoRedirects).open(request, timeout=self.timeout) as answer:
                raw = answer.read()
        except urllib.error.HTTPError as error:
            _fail(error, signing_in=request.selector.endswith("/auth/login"))
        except ValueError:
            # A token or key that no header can hold.
            raise CliError("The token or the key holds something no header can carry.", exit_code=USAGE) from None
        try:
            return json.loads(raw) if raw else None
        except ValueError:
            raise CliError(f"{self.url} does not answer like a CodeHub server.") from None


def _fail(error: urllib.error.HTTPError, *, signing_in: bool) -> NoReturn:
    with error:
        raw = error.read()
    try:
        body = json.loads(raw)
        message = str(body["detail"])
    except (ValueError, KeyError, TypeError):
        # Something that stands in front of CodeHub, or another server altogether: its codes are not ours.
        raise CliError(f"The server answered {error.code} {error.reason}, and not as CodeHub does.") from None
    for field, sentences in (body.get("fields") or {}).items():
        message += "".join(f"\n  {field}: {sentence}" for sentence in sentences if sentence not in message)
    for row in body.get("running") or []:
        message += f"\n  running: {row['name']} ({row['id']})"
    if error.code == 401 and not signing_in:
        message += " Try `codehub login`."
    raise CliError(message, exit_code=_EXIT_BY_STATUS.get(error.code, FAILED), body=body) from None


def config_path() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "codehub" / "config.json"


def stored() -> dict[str, str]:
    try:
        found = json.loads(config_path().read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise CliError(f"Cannot read {config_path()}: {error}") from None
    if not isinstance(found, dict):
        raise CliError(f"Cannot read {config_path()}: it does not hold what `codehub login` writes.")
    return {name: value for name, value in found.items() if isinstance(value, str)}


def store(values: dict[str, str]) -> None:
    """Keep address and token for the next call, readable by the owner alone, replaced in one step."""
    path = config_path()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(values, file)
    temporary.replace(path)


def address(given: str | None = None) -> str:
    return (given or os.environ.get("CODEHUB_URL") or stored().get("url") or DEFAULT_URL).rstrip("/")


def client_for(given_url: str | None = None) -> Client:
    """The server to talk to and the token for it; a stored token is never sent to another server than its own."""
    url = address(given_url)
    token = os.environ.get("CODEHUB_TOKEN", "")
    if not token:
        kept = stored()
        token = kept.get("token", "") if kept.get("url", "").rstrip("/") == url else ""
    return Client(url=url, token=token)


def path_of(*parts: str) -> str:
    return "/".join(quote(part, safe="") for part in parts)
