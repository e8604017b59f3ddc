"""What the proxy's benches stand on: PostgreSQL, Redis, one web process, nginx as file server and as proxy, an echo server and the
recording upstream, all on loopback, with one user who owns a workspace at each. Everything is removed at the end.
"""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import django
import psutil
from django.core.management import call_command
from websockets.asyncio.server import ServerConnection, serve

from codehub.embedded import services

LARGE = 100 * 1024 * 1024
SMALL = 1024


@dataclass(frozen=True)
class Ports:
    """Where everything listens; paths are those of workspaces at CodeHub."""

    files: int
    front: int
    echo: int
    upstream: int
    web: int
    to_files: str
    to_echo: str
    to_upstream: str
    to_nothing: str
    session: str
    process: psutil.Process

    @property
    def cookie(self) -> str:
        return f"codehub_session={self.session}"

    @property
    def headers(self) -> dict[str, str]:
        return {"Cookie": self.cookie, "Origin": f"http://127.0.0.1:{self.web}"}

    def cpu_seconds(self) -> float:
        """Processor time of the web process so far: unlike the clock, it does not depend on who else uses the machine."""
        spent = self.process.cpu_times()
        return float(spent.user + spent.system)

    def megabytes(self) -> float:
        return float(self.process.memory_info().rss) / 1e6


def nginx_config(directory: Path, *, files: int, front: int, echo: int) -> str:
    temporary = "".join(f"{kind}_temp_path {directory}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    return f"""
        daemon off; pid {directory}/pid; error_log {directory}/error.log; worker_processes 1; user root;
        events {{ worker_connections 4096; }}
        http {{
            access_log off; keepalive_requests 1000000000; {temporary}
            upstream files {{ server 127.0.0.1:{files}; keepalive 64; }}
            server {{ listen 127.0.0.1:{files} backlog=2048; root {directory}/www; }}
            server {{
                listen 127.0.0.1:{front} backlog=2048;
                location / {{ proxy_pass http://files; proxy_http_version 1.1; proxy_set_header Connection ""; }}
                location /echo {{
                    proxy_pass http://127.0.0.1:{echo}; proxy_http_version 1.1;
                    proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade;
                }}
            }}
        }}
    """


async def echo_server(port: int) -> None:
    async def echo(connection: ServerConnection) -> None:
        async for message in connection:
            await connection.send(message)

    async with serve(echo, "127.0.0.1", port, compression=None, max_size=None):
        await asyncio.Event().wait()


@contextmanager
def proxied() -> Iterator[Ports]:
    with ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="codehub-bench-"))
        directory.chmod(0o755)
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        os.environ |= stack.enter_context(services(directory, {"postgres", "redis"}, durable=False))
        os.environ |= {
            "CODEHUB_DATA_DIR": str(directory),
            "DJANGO_SETTINGS_MODULE": "codehub.settings",
            "DJANGO_SECRET_KEY": "only-for-the-bench-" + "0123456789abcdef" * 3,
            "LOG_LEVEL": "WARNING",
            "CODEHUB_WORKSPACE_DOMAIN": "none",
        }
        django.setup()
        call_command("migrate", verbosity=0)
        world: Any = import_module("tests.integration.proxy_world")
        user = import_module("django.contrib.auth.models").User.objects.create_user("bench")
        files, front, echo, nothing = (world.free_port() for _ in range(4))
        (directory / "www").mkdir()
        (directory / "www" / "small").write_bytes(b"k" * SMALL)
        (directory / "www" / "large").write_bytes(b"x" * LARGE)
        (directory / "nginx.conf").write_text(nginx_config(directory, files=files, front=front, echo=echo))
        for command in (["nginx", "-c", str(directory / "nginx.conf")], [sys.executable, "-m", "bench._proxy", str(echo)]):
            process = subprocess.Popen(command)
            stack.callback(process.wait, 10)
            stack.callback(process.terminate)
        upstream = stack.enter_context(world.upstream_process())
        before = set(psutil.Process().children())
        web = stack.enter_context(world.web_process(dict(os.environ)))
        (served,) = set(psutil.Process().children()) - before

        def path_to(port: int) -> str:
            return f"/w/{world.make_workspace(user, endpoint=f'http://127.0.0.1:{port}').pk}"

        yield Ports(
            files=files,
            front=front,
            echo=echo,
            upstream=upstream,
            web=web,
            to_files=path_to(files),
            to_echo=path_to(echo),
            to_upstream=path_to(upstream),
            to_nothing=path_to(nothing),
            session=world.sign_in(user),
            process=served,
        )


if __name__ == "__main__":
    asyncio.run(echo_server(int(sys.argv[1])))
