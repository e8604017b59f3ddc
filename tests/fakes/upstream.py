"""A recording upstream: stands where an IDE would, answers what it is told to, and shows what reached it.

`python -m tests.fakes.upstream PORT`. HTTP on raw streams, so that it can also misbehave; WebSocket echo on the same port
through a second listener is not needed: `/ws` paths are handed to the websockets library's sans-I/O server.
"""

import asyncio
import contextlib
import json
import sys
from urllib.parse import parse_qs, urlsplit

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

state: dict[str, int] = {"open": 0, "cut": 0, "requests": 0, "received": 0, "whole": 0, "websockets": 0, "handshakes": 0}


class Exchange:
    """One request on a raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def read_head(self) -> bool:
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return False
        first, *lines = head.decode("latin-1").split("\r\n")
        self.method, self.target, _ = first.split(" ", 2)
        self.headers = [tuple(line.split(": ", 1)) for line in lines if line]
        self.fields = {name.lower(): value for name, value in self.headers}
        self.path = urlsplit(self.target).path
        self.query = {key: values[0] for key, values in parse_qs(urlsplit(self.target).query).items()}
        return True

    async def read_body(self, *, keep: bool = True) -> bytes:
        pieces: list[bytes] = []
        if "chunked" in self.fields.get("transfer-encoding", ""):
            while size := int((await self.reader.readuntil(b"\n")).strip(), 16):
                pieces.append(await self.reader.readexactly(size))
                state["received"] += size
                await self.reader.readline()
                if not keep:
                    pieces.clear()
            await self.reader.readline()
        else:
            left = int(self.fields.get("content-length", "0"))
            while left:
                piece = await self.reader.read(min(left, 1 << 20))
                if not piece:
                    raise ConnectionError("cut")
                left -= len(piece)
                state["received"] += len(piece)
                if keep:
                    pieces.append(piece)
        return b"".join(pieces)

    def send(self, status: int, headers: list[tuple[str, str]], body: bytes = b"", *, length: bool = True) -> None:
        lines = [f"HTTP/1.1 {status} X", *(f"{name}: {value}" for name, value in headers)]
        if length:
            lines.append(f"Content-Length: {len(body)}")
        self.writer.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + (b"" if self.method == "HEAD" else body))

    def json(self, value: object) -> None:
        self.send(200, [("Content-Type", "application/json")], json.dumps(value).encode())


async def _echo(exchange: Exchange) -> None:
    body = await exchange.read_body()
    exchange.json(
        {
            "method": exchange.method,
            "target": exchange.target,
            "headers": exchange.headers,
            "body": body.decode("latin-1"),
        }
    )


async def _respond(exchange: Exchange) -> None:
    """Status and headers as asked for in the query: `status`, and `headers` as JSON pairs."""
    await exchange.read_body()
    headers = [tuple(pair) for pair in json.loads(exchange.query.get("headers", "[]"))]
    exchange.send(int(exchange.query.get("status", "200")), headers, exchange.query.get("body", "").encode())


async def _raw(exchange: Exchange) -> None:
    """Bytes as they are in the query, then the end of the connection."""
    await exchange.read_body()
    exchange.writer.write(exchange.query["bytes"].encode("latin-1"))
    await exchange.writer.drain()
    raise ConnectionError("done")


async def _big(exchange: Exchange) -> None:
    """`size` bytes that differ from place to place. With `send` only that many come, and then nothing, or with `break` the end."""
    size = int(exchange.query["size"])
    exchange.writer.write(f"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: {size}\r\n\r\n".encode())
    left = int(exchange.query.get("send", size))
    number = 0
    while left:
        piece = (b"%07d\n" % number * 32768)[:left]
        exchange.writer.write(piece)
        left -= len(piece)
        number += 1
        await exchange.writer.drain()
    if "break" in exchange.query:
        raise ConnectionError("done")
    if "send" in exchange.query:
        await _hang(exchange)


async def _chunked(exchange: Exchange) -> None:
    exchange.writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/plain\r\nTrailer: x-after\r\n\r\n")
    for piece in (b"one", b"two", b"three"):
        exchange.writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        await exchange.writer.drain()
        await asyncio.sleep(0.01)
    exchange.writer.write(b"0\r\nx-after: 1\r\n\r\n")


async def _endless(exchange: Exchange) -> None:
    """At least `size` bytes in chunks."""
    exchange.writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(0, int(exchange.query["size"]), 1 << 18):
        exchange.writer.write(b"40000\r\n" + b"x" * (1 << 18) + b"\r\n")
        await exchange.writer.drain()
    exchange.writer.write(b"0\r\n\r\n")


async def _stream(exchange: Exchange) -> None:
    """Server-sent events until the client goes."""
    exchange.writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    state["open"] += 1
    try:
        while True:
            exchange.writer.write(b"d\r\ndata: hello\n\n\r\n")
            await exchange.writer.drain()
            await asyncio.sleep(0.05)
    finally:
        state["open"] -= 1
        state["cut"] += 1


async def _sink(exchange: Exchange) -> None:
    try:
        await exchange.read_body(keep=False)
    except (ConnectionError, asyncio.IncompleteReadError):
        state["cut"] += 1
        raise
    state["whole"] += 1
    exchange.json({"received": state["received"]})


async def _early(exchange: Exchange) -> None:
    exchange.send(413, [("Connection", "close")], b"too much")
    await exchange.writer.drain()
    # A close with unread bytes is a reset, which may overtake the answer: read on until the other side has gone.
    while await exchange.reader.read(1 << 16):
        pass
    raise ConnectionError("done")


async def _until_close(exchange: Exchange) -> None:
    exchange.writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nuntil the end")
    await exchange.writer.drain()
    raise ConnectionError("done")


async def _broken(exchange: Exchange) -> None:
    exchange.writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nonly this")
    await exchange.writer.drain()
    raise ConnectionError("done")


async def _hints(exchange: Exchange) -> None:
    exchange.writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\n")
    await exchange.writer.drain()
    exchange.send(200, [], b"after hints")


async def _range(exchange: Exchange) -> None:
    start, end = exchange.fields["range"].removeprefix("bytes=").split("-")
    data = bytes(range(256))[int(start) : int(end) + 1]
    exchange.send(206, [("Content-Range", f"bytes {start}-{end}/256"), ("Accept-Ranges", "bytes")], data)


async def _page(exchange: Exchange) -> None:
    html = exchange.query.get("html", "<!doctype html><html><head><title>IDE</title></head><body>IDE</body></html>")
    exchange.send(200, [("Content-Type", "text/html; charset=utf-8"), ("ETag", '"x"')], html.encode())


async def _hang(exchange: Exchange) -> None:
    state["open"] += 1
    try:
        await exchange.reader.read(1)
    finally:
        state["open"] -= 1
        state["cut"] += 1


async def _small(exchange: Exchange) -> None:
    exchange.send(200, [("Content-Type", "text/plain")], b"k" * 1024)


async def _state(exchange: Exchange) -> None:
    exchange.json(state)


HANDLERS = {
    "/respond": _respond,
    "/raw": _raw,
    "/big": _big,
    "/chunked": _chunked,
    "/endless": _endless,
    "/stream": _stream,
    "/sink": _sink,
    "/early": _early,
    "/until-close": _until_close,
    "/broken": _broken,
    "/hints": _hints,
    "/range": _range,
    "/page": _page,
    "/hang": _hang,
    "/small": _small,
    "/state": _state,
}


async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    exchange = Exchange(reader, writer)
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        while await exchange.read_head():
            state["requests"] += 1
            if exchange.fields.get("upgrade", "").lower() == "websocket":
                await _to_websocket(exchange)
                return
            await HANDLERS.get(exchange.path, _echo)(exchange)
            await writer.drain()
    writer.close()


async def _to_websocket(exchange: Exchange) -> None:
    """Splice to the WebSocket server on its private socket, handshake included."""
    state["handshakes"] += 1
    up_reader, up_writer = await asyncio.open_unix_connection(f"\0codehub-test-ws-{sys.argv[1]}")
    lines = [f"{exchange.method} {exchange.target} HTTP/1.1", *(f"{name}: {value}" for name, value in exchange.headers)]
    up_writer.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n")
    await asyncio.gather(_pipe(exchange.reader, up_writer), _pipe(up_reader, exchange.writer), return_exceptions=True)


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


async def websocket(connection: ServerConnection) -> None:
    state["websockets"] += 1
    request = connection.request
    assert request is not None
    path = urlsplit(request.path).path
    try:
        if path.endswith("/headers"):
            await connection.send(json.dumps({"path": request.path, "headers": list(request.headers.raw_items())}))
        if path.endswith("/close"):
            await connection.close(int(parse_qs(urlsplit(request.path).query)["code"][0]), "as asked")
            return
        if path.endswith("/fragments"):
            await connection.send(["a", "b", "c"])
            await connection.send([b"1", b"2", b"3"])
        if path.endswith("/die"):
            connection.transport.abort()
            return
        with contextlib.suppress(ConnectionClosed):
            async for message in connection:
                await connection.send(message)
    finally:
        state["websockets"] -= 1
        await connection.wait_closed()
        state["last_close"] = connection.close_code or 0


def refuse(connection: ServerConnection, request: Request) -> Response | None:
    if urlsplit(request.path).path.endswith("/refuse"):
        return connection.respond(418, "a teapot\n")
    return None


async def main() -> None:
    port = int(sys.argv[1])
    server = await asyncio.start_server(handle, "127.0.0.1", port, limit=1 << 20)
    async with (
        server,
        serve(
            websocket,
            unix=True,
            path=f"\0codehub-test-ws-{port}",
            max_size=None,
            process_request=refuse,
            select_subprotocol=lambda _connection, offered: offered[-1] if offered else None,
            ping_interval=None,
        ),
    ):
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
