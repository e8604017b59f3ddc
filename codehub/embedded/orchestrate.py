"""Which embedded programs are needed, and all of them at once for a `with` block.

Owns the composition the tests and the supervisor share. Starts nothing that was not asked for.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from codehub.embedded.postgres import Postgres
from codehub.embedded.process import Child
from codehub.embedded.redis import Redis
from codehub.embedded.seaweed import Seaweed
from codehub.embedded.service import EmbeddedError, Service, ensure_directory


def build_services(data_dir: Path, wanted: Collection[str], *, durable: bool = True, bucket: str = "codehub") -> list[Service]:
    """The wanted ones of `postgres`, `redis` and `s3`, in the order they start; they stop in the opposite one."""
    ensure_directory(data_dir)
    made: list[Service] = []
    if "postgres" in wanted:
        made.append(Postgres(data_dir / "postgres", durable=durable))
    if "redis" in wanted:
        made.append(Redis(data_dir / "redis", durable=durable))
    if "s3" in wanted:
        made.append(Seaweed(data_dir / "s3", bucket=bucket))
    return made


@contextmanager
def services(data_dir: Path, wanted: Collection[str], *, durable: bool = True, bucket: str = "codehub") -> Iterator[dict[str, str]]:
    """Run the wanted programs inside the block and give the settings that lead to them. No restarts: for tests and scripts."""
    running: list[tuple[Service, Child]] = []
    env: dict[str, str] = {}
    try:
        for service in build_services(data_dir, wanted, durable=durable, bucket=bucket):
            service.prepare()
            running.append((service, Child(service.name, service.command(), on_line=lambda _line: None)))
            env |= service.env()
        for service, child in running:
            try:
                service.wait_ready()
            except EmbeddedError as error:
                raise EmbeddedError(f"{error}; {service.name} {child.how_it_ended()}:\n" + "\n".join(child.last_lines)) from error
        yield env
    finally:
        for service, child in reversed(running):
            child.stop()
            service.cleanup()
