"""What the API can do on one web process: lists under load, and one change told to many streams.

`python -m bench.api` starts services of its own and prints figures; it asserts nothing about time. Run by `make bench`.
"""

import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import cast

import django
import psutil
import uvloop
from redis.asyncio import Redis

from codehub.embedded import services

WORKSPACES = 1000
CLIENTS = 16
SECONDS = 8.0
STREAMS = 500
ROUNDS = 5
CHANNEL_PREFIX = "codehub-bench:sse"


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="codehub-bench-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        with services(directory, {"postgres", "redis"}, durable=False) as env:
            os.environ |= env
            os.environ |= {
                "CODEHUB_DATA_DIR": name,
                "DJANGO_SECRET_KEY": "bench" * 12,
                "DJANGO_SETTINGS_MODULE": "codehub.settings",
                "LOG_LEVEL": "ERROR",
                "API_THROTTLE_USER": "10000000/min",
                "REDIS_CHANNEL_SSE_PREFIX": CHANNEL_PREFIX,
            }
            subprocess.run([sys.executable, "manage.py", "migrate", "--verbosity", "0"], check=True)
            django.setup()
            lister, streamer, workspace, user_id = _fill()
            with socket.socket() as found:
                found.bind(("127.0.0.1", 0))
                port = int(found.getsockname()[1])
            web = subprocess.Popen([sys.executable, "manage.py", "run_web"], env={**os.environ, "PORT": str(port)})
            try:
                _await_web(port)
                uvloop.run(_bench_list(port, lister, web.pid))
                uvloop.run(_bench_streams(port, streamer, workspace, user_id, web.pid))
            finally:
                web.terminate()
                web.wait(timeout=30)


def _fill() -> tuple[str, str, str, int]:
    # Models can only be imported once the services' addresses are known and Django is set up.
    from django.contrib.auth.models import User  # noqa: PLC0415
    from django.db import connection  # noqa: PLC0415
    from django.utils import timezone  # noqa: PLC0415

    from workspaces.models import Image, Workspace  # noqa: PLC0415
    from workspaces.tokens import request_token  # noqa: PLC0415

    lister, streamer = User.objects.create(username="lister"), User.objects.create(username="streamer")
    image = Image.objects.all()[0]
    condition = {"status": True, "reason": "Found", "message": "", "last_transition_time": "2026-01-01T00:00:00Z"}
    keys = ("storage.volume_ready", "storage.archive_ready", "infra.container_ready", "policy.healthy")
    now = timezone.now()
    Workspace.objects.bulk_create(
        Workspace(
            owner=lister,
            image=image,
            name=f"workspace {number}",
            description="numbers for chapter 3",
            phase="STANDBY",
            desired_state="STANDBY",
            last_access_at=now,
            last_activity={"kind": "input", "at": now.isoformat()},
            conditions=dict.fromkeys(keys, condition),
        )
        for number in range(WORKSPACES)
    )
    # What autovacuum does within a minute on a database that lives longer than this one.
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    one = Workspace.objects.create(owner=streamer, image=image, name="watched", phase="STANDBY", desired_state="STANDBY")
    return request_token(lister, name="bench").token, request_token(streamer, name="bench").token, str(one.pk), streamer.pk


def _await_web(port: int) -> None:
    for _ in range(600):
        try:
            connection = HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/healthz")
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the web process did not start")


class _Reader(asyncio.Protocol):
    """One connection that follows `next` from page to page. As lean as it can be: it shares the machine with what it measures."""

    def __init__(self, port: int, token: str, times: list[float]) -> None:
        self._address = f"http://127.0.0.1:{port}".encode()
        self._head = f" HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
        self._times = times
        self._path = b"/api/v1/workspaces"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._ask()

    def _ask(self) -> None:
        self._start = b""
        self._missing = 0
        self._began = time.perf_counter()
        self._transport.write(b"GET " + self._path + self._head)

    def data_received(self, data: bytes) -> None:
        if len(self._start) < 4096:
            # Head and first piece of the body, where the link is.
            self._start += data
            head, end, body = self._start.partition(b"\r\n\r\n")
            if not end or len(body) < 512:
                return
            if not head.startswith(b"HTTP/1.1 200"):
                raise SystemExit(self._start.decode())
            length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            self._missing = int(length) - len(body)
        else:
            self._missing -= len(data)
        if self._missing:
            return
        self._times.append(time.perf_counter() - self._began)
        link = self._start.partition(b'{"next":')[2].partition(b',"previous"')[0].strip(b'"')
        self._path = b"/api/v1/workspaces" if link == b"null" else link.removeprefix(self._address)
        self._ask()


async def _bench_list(port: int, token: str, pid: int) -> None:
    """16 clients, each on one connection, follow `next` through 1,000 workspaces in pages of 50."""
    times: list[float] = []
    web = psutil.Process(pid)
    loop = asyncio.get_running_loop()
    readers = [await loop.create_connection(lambda: _Reader(port, token, times), "127.0.0.1", port) for _ in range(CLIENTS)]
    await asyncio.sleep(1)
    times.clear()
    used, own = web.cpu_times(), time.process_time()
    await asyncio.sleep(SECONDS)
    found, now = sorted(times), web.cpu_times()
    own = time.process_time() - own
    for transport, _ in readers:
        transport.abort()
    cpu = now.user + now.system - used.user - used.system
    print(
        f"list {WORKSPACES} workspaces, pages of 50, {CLIENTS} clients: {len(found) / SECONDS:.0f} requests/s, "
        f"p50 {statistics.median(found) * 1000:.0f} ms, p99 {found[int(len(found) * 0.99)] * 1000:.0f} ms; "
        f"{cpu / len(found) * 1000:.2f} ms of the web process's CPU each, {own / len(found) * 1000:.2f} ms of the client's"
    )


async def _bench_streams(port: int, token: str, workspace: str, user_id: int, pid: int) -> None:
    """500 streams of one user: how long from the change to the last one that was told."""
    process = psutil.Process(pid)
    request = f"GET /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\n\r\n".encode()

    def usage() -> tuple[int, int, int]:
        return process.memory_info().rss, process.num_fds(), process.num_threads()

    before = usage()
    streams = [await asyncio.open_connection("127.0.0.1", port) for _ in range(STREAMS)]
    for _, writer in streams:
        writer.write(request)

    async def all_told() -> None:
        await asyncio.gather(*(reader.readuntil(b"workspace_updated") for reader, _ in streams))

    await all_told()
    await asyncio.gather(*(reader.readuntil(b"\n\n") for reader, _ in streams))
    during = usage()
    slowest = []
    client = Redis.from_url(os.environ["REDIS_URL"])
    for _ in range(ROUNDS):
        began = time.perf_counter()
        await client.publish(f"{CHANNEL_PREFIX}:{user_id}", json.dumps({"type": "updated", "id": workspace}))
        await all_told()
        slowest.append(time.perf_counter() - began)
        await asyncio.gather(*(reader.readuntil(b"\n\n") for reader, _ in streams))
    await client.aclose()
    for _, writer in streams:
        writer.close()
    for _ in range(100):
        await asyncio.sleep(0.1)
        if process.num_fds() <= before[1] + 5:
            break
    after = usage()
    print(
        f"{STREAMS} streams: the last one told after {', '.join(f'{value * 1000:.0f}' for value in slowest)} ms; "
        f"{(during[0] - before[0]) / STREAMS / 1024:.0f} KiB each; descriptors {before[1]} -> {during[1]} -> {after[1]}; "
        f"threads {before[2]} -> {during[2]} -> {after[2]}; RSS {before[0] >> 20} -> {during[0] >> 20} -> {after[0] >> 20} MiB"
    )


if __name__ == "__main__":
    main()
