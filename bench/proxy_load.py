"""What the proxy costs when bodies are huge and connections many: memory and descriptors of the web process, before, at most, after.

`python -m bench.proxy_load [--gigabytes 10] [--clients 5000]`. Bodies are made on the fly and thrown away on the other side. It must be
flat: a body of 10 GB, 1,000 idle WebSockets or 5,000 clients that do not read may not cost more than what is written in docs/proxy.md.
"""

import argparse
import asyncio
import resource
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from websockets.asyncio.client import ClientConnection, connect

from bench._proxy import Ports, proxied

BLOCK = b"x" * (1 << 20)
MESSAGE = 64 << 20
MESSAGES = 5
SOCKETS = 1000
KNOCKS = 5000


@contextmanager
def watched(ports: Ports, what: str) -> Iterator[list[str]]:
    """Prints memory and descriptors of the web process around something, with the notes that were added."""
    before, descriptors = ports.megabytes(), ports.process.num_fds()
    most = [before, descriptors]
    done = threading.Event()

    def sample() -> None:
        while not done.wait(0.02):
            most[0] = max(most[0], ports.megabytes())
            most[1] = max(most[1], ports.process.num_fds())

    watcher = threading.Thread(target=sample)
    watcher.start()
    began, spent = time.perf_counter(), ports.cpu_seconds()
    notes: list[str] = []
    try:
        yield notes
    finally:
        seconds, spent = time.perf_counter() - began, ports.cpu_seconds() - spent
        done.set()
        watcher.join()
    deadline = time.monotonic() + 20
    while ports.process.num_fds() > descriptors + 20 and time.monotonic() < deadline:
        time.sleep(0.1)
    # Memory goes back a few seconds after a crowd.
    time.sleep(6 if most[1] > descriptors + 100 else 0)
    print(
        f"{what:34} {before:5.0f} -> {most[0]:5.0f} -> {ports.megabytes():5.0f} MB"
        f"  {descriptors:5d} -> {most[1]:5d} -> {ports.process.num_fds():5d} descriptors  {seconds:6.1f} s  {spent:5.1f} s cpu  {', '.join(notes)}",
        flush=True,
    )


def request(ports: Ports, line: str, *headers: str) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", ports.web))
    lines = [f"{line} HTTP/1.1", f"Host: 127.0.0.1:{ports.web}", f"Cookie: {ports.cookie}", *headers, "", ""]
    client.sendall("\r\n".join(lines).encode())
    return client


def upload(ports: Ports, gigabytes: float) -> None:
    size = int(gigabytes * 1e9) // len(BLOCK) * len(BLOCK)
    with watched(ports, f"upload of {size / 1e9:.1f} GB") as notes:
        began = time.perf_counter()
        with request(ports, f"POST {ports.to_upstream}/sink", f"Content-Length: {size}", "Connection: close") as client:
            for _ in range(size // len(BLOCK)):
                client.sendall(BLOCK)
            answer = client.recv(65536)
        if b" 200 " not in answer[:20]:
            raise SystemExit(f"the upload was answered with {answer[:200]!r}")
        notes.append(f"{size / 1e6 / (time.perf_counter() - began):.0f} MB/s")


def download(ports: Ports, gigabytes: float, path: str) -> None:
    size = int(gigabytes * 1e9)
    with watched(ports, f"download of {size / 1e9:.1f} GB, {path}") as notes:
        began = time.perf_counter()
        buffer = bytearray(1 << 18)
        taken = 0
        with request(ports, f"GET {ports.to_upstream}/{path}?size={size}", "Connection: close") as client:
            while count := client.recv_into(buffer):
                taken += count
        if taken < size:
            raise SystemExit(f"only {taken} bytes came")
        notes.append(f"{taken / 1e6 / (time.perf_counter() - began):.0f} MB/s")


async def large_messages(ports: Ports) -> None:
    url = f"ws://127.0.0.1:{ports.web}{ports.to_echo}/echo"
    async with connect(url, additional_headers=ports.headers, compression=None, proxy=None, max_size=None) as client:
        for _ in range(MESSAGES):
            await client.send(bytes(MESSAGE))
            if len(await client.recv()) != MESSAGE:
                raise SystemExit("a message was cut")


async def idle_sockets(ports: Ports, notes: list[str]) -> None:
    url = f"ws://127.0.0.1:{ports.web}{ports.to_echo}/echo"
    before = ports.megabytes()
    opened: list[ClientConnection] = []
    for _ in range(SOCKETS // 50):
        batch = [connect(url, additional_headers=ports.headers, proxy=None, open_timeout=60, ping_interval=None) for _ in range(50)]
        opened.extend(await asyncio.gather(*batch))
    notes.append(f"{(ports.megabytes() - before) / SOCKETS * 1000:.0f} KB each")
    await asyncio.gather(*(connection.close() for connection in opened))


async def knock(ports: Ports, notes: list[str]) -> None:
    head = f"GET {ports.to_nothing}/ HTTP/1.1\r\nHost: 127.0.0.1:{ports.web}\r\nCookie: {ports.cookie}\r\n\r\n".encode()
    seen: dict[bytes, int] = {}

    async def worker() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", ports.web)
        for _ in range(KNOCKS // 50):
            writer.write(head)
            answer = await reader.readuntil(b"\r\n\r\n")
            length = int(answer.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
            seen[answer[9:12]] = seen.get(answer[9:12], 0) + 1
        writer.close()

    await asyncio.gather(*(worker() for _ in range(50)))
    notes.append(", ".join(f"{count} times {status.decode()}" for status, count in seen.items()))


async def slow_clients(ports: Ports, notes: list[str], *, clients: int, head: str, body: bytes = b"") -> None:
    """Clients that begin and then do nothing; meanwhile somebody else's requests are timed."""
    before = ports.megabytes()
    lines = []
    first = f"{head} HTTP/1.1\r\nHost: 127.0.0.1:{ports.web}\r\nCookie: {ports.cookie}\r\n".encode() + body
    for start in range(0, clients, 100):
        batch = await asyncio.gather(
            *(asyncio.open_connection("127.0.0.1", ports.web, limit=1024) for _ in range(min(100, clients - start)))
        )
        for reader, writer in batch:
            # The client's own buffer must not be the one that takes it all.
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(first)
        lines.extend(batch)
    await asyncio.sleep(2)
    notes.append(f"{(ports.megabytes() - before) / clients * 1000:.0f} KB each")
    times = []
    reader, writer = await asyncio.open_connection("127.0.0.1", ports.web)
    for _ in range(200):
        began = time.perf_counter()
        writer.write(f"GET {ports.to_files}/small HTTP/1.1\r\nHost: 127.0.0.1:{ports.web}\r\nCookie: {ports.cookie}\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(1024)
        times.append(time.perf_counter() - began)
    notes.append(f"others' p50 {sorted(times)[100] * 1000:.2f} ms")
    for _, line in [*lines, (reader, writer)]:
        line.transport.abort()


def run(ports: Ports, what: str, work: Callable[[list[str]], Awaitable[None]]) -> None:
    with watched(ports, what) as notes:
        asyncio.run(work(notes))  # type: ignore[arg-type]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--clients", type=int, default=2000)
    given = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with proxied() as ports:
        request(ports, f"GET {ports.to_files}/small").close()
        print(f"{'':34} {'memory of the web process':>26}  before, at most, after")
        for _ in range(2):
            run(ports, f"{SOCKETS} idle WebSockets", lambda notes: idle_sockets(ports, notes))
        upload(ports, given.gigabytes)
        download(ports, given.gigabytes, "big")
        download(ports, min(1.0, given.gigabytes), "endless")
        run(ports, f"{MESSAGES} messages of 64 MB and back", lambda notes: large_messages(ports))
        run(ports, f"{KNOCKS} requests, nothing listens", lambda notes: knock(ports, notes))
        slow = given.clients
        unread = f"GET {ports.to_upstream}/big?size=50000000"
        run(ports, f"{slow} clients that do not read", lambda notes: slow_clients(ports, notes, clients=slow, head=unread, body=b"\r\n"))
        chunked = f"GET {ports.to_upstream}/endless?size=50000000"
        run(ports, f"{slow} the same, chunked", lambda notes: slow_clients(ports, notes, clients=slow, head=chunked, body=b"\r\n"))
        late = f"POST {ports.to_upstream}/sink"
        begun = b"Content-Length: 1000000\r\n\r\nbegun"
        run(ports, f"{slow} uploads that stop", lambda notes: slow_clients(ports, notes, clients=slow, head=late, body=begun))


if __name__ == "__main__":
    main()
