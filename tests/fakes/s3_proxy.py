"""An HTTP proxy between boto3 and a real S3 server that misbehaves on demand.

Owns the connection only: it forwards requests as they are signed, and cuts, delays, shortens or swallows them as `mode` says.
"""

import http.client
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

MODES = ("cut_upload", "cut_download", "truncate", "slow", "error", "lose_answer")


class MisbehavingProxy(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        address = urlsplit(upstream)
        self.upstream = (str(address.hostname), int(address.port or 80))
        self.mode = ""
        self.only = ".zst"
        """Requests whose path does not contain this are left alone."""
        self.faults = 0
        self.left = 10**9
        """How many more requests misbehave."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def misbehave(self, mode: str, *, only: str = ".zst", times: int = 10**9) -> None:
        assert mode in MODES
        self.mode, self.only, self.left = mode, only, times

    def behave(self) -> None:
        self.mode = ""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: MisbehavingProxy

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        return

    def _mode(self) -> str:
        proxy = self.server
        if not proxy.mode or proxy.only not in self.path or proxy.left <= 0:
            return ""
        wanted = {"cut_upload": "PUT", "truncate": "PUT", "cut_download": "GET"}.get(proxy.mode, self.command)
        if self.command != wanted:
            return ""
        proxy.left -= 1
        proxy.faults += 1
        return proxy.mode

    def _forward(self) -> None:
        mode = self._mode()
        length = int(self.headers.get("Content-Length") or 0)
        if self.headers.get("Expect", "").lower() == "100-continue":
            self.send_response_only(100)
            self.end_headers()
        if mode == "cut_upload":
            self.rfile.read(length // 2)
            self._hang_up()
            return
        body = self.rfile.read(length)
        if mode == "error":
            self._answer(503, [("Content-Type", "text/plain")], b"busy")
            return
        if mode == "slow":
            time.sleep(3)
        if mode == "truncate":
            body = body[: len(body) // 2]
        status, headers, answer = self._ask(body)
        if mode == "lose_answer":
            self._hang_up()
            return
        self._answer(status, headers, answer, cut=mode == "cut_download")

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _forward  # noqa: N815

    def _ask(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(*self.server.upstream, timeout=30)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in ("content-length", "expect", "connection"):
                    connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes, *, cut: bool = False) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        length = next((value for name, value in headers if name.lower() == "content-length"), str(len(body)))
        self.send_header("Content-Length", length if self.command == "HEAD" else str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if cut:
            self.wfile.write(body[: len(body) // 2])
            self._hang_up()
            return
        self.wfile.write(body)

    def _hang_up(self) -> None:
        self.close_connection = True
        self.wfile.flush()
        self.connection.shutdown(2)


@contextmanager
def misbehaving(upstream: str) -> Iterator[MisbehavingProxy]:
    proxy = MisbehavingProxy(upstream)
    thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        proxy.server_close()
        thread.join(timeout=5)
