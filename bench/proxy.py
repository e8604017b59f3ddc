"""The proxy beside a direct connection and nginx in front of the same server: latency, requests a second, large bodies, echo.

`python -m bench.proxy`. Authorisation is included for CodeHub. Latency is asked three ways: alone on one connection, at a rate that
leaves everybody time (what a person feels), and with 32 connections that never pause (then it is the queue that is measured, and
says no more than requests a second do). Times are printed, never judged: the machine is shared.
"""

import asyncio
import os
import re
import statistics
import subprocess
import time

import uvloop
from websockets.asyncio.client import connect

from bench._proxy import LARGE, SMALL, Ports, proxied

SECONDS = 5
CONNECTIONS = 32
RATE = 500
ECHOES = 2000
DOWNLOADS = 7


def milliseconds(text: str) -> float:
    number, unit = re.fullmatch(r"([\d.]+)(us|ms|s)", text).groups()  # type: ignore[union-attr]
    return float(number) * {"us": 0.001, "ms": 1.0, "s": 1000.0}[unit]


def saturate(url: str, cookie: str, *, connections: int, seconds: int) -> tuple[float, float, float]:
    """Requests a second, and p50 and p99 in milliseconds, with connections that never pause."""
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}", "--latency", "-H", f"Cookie: {cookie}", url]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if "Non-2xx" in text:
        raise SystemExit(f"{url} answered with errors:\n{text}")
    rate, middle, slow = (re.search(rf"{key}\s+([\d.]+\w*)", text)[1] for key in ("Requests/sec:", "50%", "99%"))  # type: ignore[index]
    return float(rate), milliseconds(middle), milliseconds(slow)


async def at_a_rate(port: int, path: str, cookie: str) -> tuple[float, float]:
    """p50 and p99 in milliseconds of RATE requests a second, each counted from the moment it was due."""
    lines = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS)]
    head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nCookie: {cookie}\r\n\r\n".encode()
    free: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    for line in lines:
        free.put_nowait(line)
    times: list[float] = []

    async def ask(due: float) -> None:
        reader, writer = line = await free.get()
        writer.write(head)
        answer = await reader.readuntil(b"\r\n\r\n")
        if not answer.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"{path} answered with {answer[:40]!r}")
        await reader.readexactly(SMALL)
        times.append(time.perf_counter() - due)
        free.put_nowait(line)

    begin = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(RATE * SECONDS):
            due = begin + number / RATE
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            group.create_task(ask(due))
    for _, writer in lines:
        writer.close()
    ordered = sorted(times)
    return ordered[len(ordered) // 2] * 1000, ordered[int(len(ordered) * 0.99)] * 1000


def megabytes_per_second(url: str, cookie: str) -> tuple[float, float]:
    """Median and best of several downloads of 100 MB."""
    seen = []
    for _ in range(DOWNLOADS):
        began = time.perf_counter()
        subprocess.run(["curl", "-s", "-f", "-o", "/dev/null", "-H", f"Cookie: {cookie}", url], check=True)
        seen.append(LARGE / 1e6 / (time.perf_counter() - began))
    return statistics.median(seen), max(seen)


async def echo_time(url: str, headers: dict[str, str]) -> float:
    """Median microseconds of a 64-byte echo."""
    async with connect(url, additional_headers=headers, compression=None, proxy=None) as client:
        times = []
        for _ in range(ECHOES):
            began = time.perf_counter()
            await client.send(b"x" * 64)
            await client.recv()
            times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


def report(ports: Ports) -> None:
    bases = {"direct": (ports.files, ""), "nginx": (ports.front, ""), "codehub": (ports.web, ports.to_files)}
    lines = {"direct": (ports.echo, ""), "nginx": (ports.front, ""), "codehub": (ports.web, ports.to_echo)}
    print(f"load of the machine at the start: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"{'':8} {'one connection':>17} {f'{RATE} a second':>17} {f'{CONNECTIONS} connections, no pause':>28} {'100 MB':>15} {'echo':>8}")
    print(f"{'':8} {'p50':>8} {'p99':>8} {'p50':>8} {'p99':>8} {'p50':>8} {'p99':>8} {'a second':>10} {'median':>7} {'best':>7} {'p50':>8}")
    spent: dict[str, float] = {}
    for name, (port, path) in bases.items():
        url = f"http://127.0.0.1:{port}{path}"
        _, middle, slow = saturate(f"{url}/small", ports.cookie, connections=1, seconds=3)
        calm = uvloop.run(at_a_rate(port, f"{path}/small", ports.cookie))
        before = ports.cpu_seconds()
        busy = saturate(f"{url}/small", ports.cookie, connections=CONNECTIONS, seconds=SECONDS)
        spent["a request"] = (ports.cpu_seconds() - before) / (busy[0] * SECONDS) * 1e6
        before = ports.cpu_seconds()
        large, best = megabytes_per_second(f"{url}/large", ports.cookie)
        spent["100 MB"] = (ports.cpu_seconds() - before) / DOWNLOADS * 1e6
        before = ports.cpu_seconds()
        echo = asyncio.run(echo_time(f"ws://127.0.0.1:{lines[name][0]}{lines[name][1]}/echo", ports.headers))
        spent["an echo"] = (ports.cpu_seconds() - before) / ECHOES * 1e6
        figures = [middle, slow, *calm, busy[1], busy[2]]
        print(
            f"{name:8}", *(f"{figure:6.2f}ms" for figure in figures), f"{busy[0]:10.0f} {large:7.0f} {best:7.0f} {echo:6.0f}us", flush=True
        )
    print("processor time of the web process:", ", ".join(f"{value:.0f} us {what}" for what, value in spent.items()))


if __name__ == "__main__":
    with proxied() as running:
        report(running)
