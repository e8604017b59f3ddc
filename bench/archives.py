"""Archive and restore against the raw pipelines, in the same run, on a real engine and a real S3 server.

Prints medians, ratios and the memory of our side, each run of which is a process of its own. Builds its own home: small files,
text, incompressible blobs. Removes everything it made.
"""

import argparse
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID, uuid4

import boto3
import docker
from botocore.config import Config

from codehub.embedded import Seaweed
from codehub.embedded.process import Child
from coordinator import archives
from coordinator.providers.base import ContainerSpec
from coordinator.providers.docker import DockerRuntime
from coordinator.providers.hometree import read_tree
from coordinator.providers.s3 import S3Store
from tests.engine import remove_installation

T = TypeVar("T")

INSTALLATION = "bench-archives"
SPEC = ContainerSpec(image="none")
BUCKET = "bench"


def unheard(done: int, total: int | None) -> None:
    return None


def nothing() -> None:
    return None


def build_home(root: Path, *, mib: int) -> None:
    """About `mib` MiB: 20,000 small files for each GiB, text, and blobs that do not compress."""
    chance = random.Random(1)
    words = [bytes(chance.choices(b"abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 9))) for _ in range(5000)]
    text = b" ".join(chance.choices(words, k=700_000))
    share = mib / 1024
    for number in range(max(1, int(20_000 * share))):
        directory = root / "src" / str(number // 200)
        if number % 200 == 0:
            directory.mkdir(parents=True)
        start = chance.randrange(len(text) - 20_000)
        (directory / f"{number}.txt").write_bytes(text[start : start + chance.randint(500, 16_000)])
    (root / "big").mkdir()
    for number in range(max(1, int(8 * share))):
        with (root / "big" / f"text-{number}").open("wb") as file:
            for _ in range(16):
                start = chance.randrange(len(text) // 8)
                file.write(text[start : start + (3 << 20)])
        with (root / "big" / f"blob-{number}").open("wb") as file:
            for _ in range(56):
                file.write(os.urandom(1 << 20))


@contextmanager
def object_storage(directory: Path) -> Iterator[dict[str, str]]:
    server = Seaweed(directory / "s3", bucket=BUCKET)
    server.prepare()
    child = Child(server.name, server.command(), on_line=lambda _line: None)
    try:
        server.wait_ready()
        yield server.env()
    finally:
        child.stop()
        server.cleanup()


def store_of(environment: dict[str, str]) -> S3Store:
    return S3Store(
        endpoint_url=environment["S3_ENDPOINT_URL"],
        bucket=BUCKET,
        prefix="ours/",
        access_key=environment["AWS_ACCESS_KEY_ID"],
        secret_key=environment["AWS_SECRET_ACCESS_KEY"],
    )


def raw_client(environment: dict[str, str]) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=environment["S3_ENDPOINT_URL"],
        region_name="us-east-1",
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
        config=Config(request_checksum_calculation="when_required", proxies={}),
    )


def raw_archive(client: Any, home: Path) -> float:
    """`tar | zstd -T0 -3 | upload`."""
    begin = time.monotonic()
    with (
        subprocess.Popen(["tar", "-C", str(home), "-c", "."], stdout=subprocess.PIPE) as tar,
        subprocess.Popen(["zstd", "-T0", "-3", "-q"], stdin=tar.stdout, stdout=subprocess.PIPE) as zstd,
    ):
        client.upload_fileobj(zstd.stdout, BUCKET, "raw")
    return time.monotonic() - begin


def raw_restore(client: Any, receiver: list[str]) -> float:
    """`download | zstd -d | receiver`."""
    begin = time.monotonic()
    with (
        subprocess.Popen(["zstd", "-d", "-q"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as zstd,
        subprocess.Popen(receiver, stdin=zstd.stdout) as last,
    ):
        if zstd.stdin is None or zstd.stdout is None:
            raise RuntimeError("no pipe")
        zstd.stdout.close()
        shutil.copyfileobj(client.get_object(Bucket=BUCKET, Key="raw")["Body"], zstd.stdin, 1 << 20)
        zstd.stdin.close()
        last.wait()
    return time.monotonic() - begin


def raw_restore_to_docker(client: Any, cleanup: ExitStack) -> float:
    engine = docker.from_env()
    cleanup.callback(engine.close)
    volume = engine.volumes.create(f"bench-{uuid4().hex}")
    cleanup.callback(volume.remove)
    engine.api.import_image_from_data(bytes(1024), repository="bench-empty", tag="latest")
    cleanup.callback(engine.images.remove, "bench-empty:latest")
    mount = docker.types.Mount("/v", str(volume.name), type="volume", no_copy=True)
    holder = engine.containers.create("bench-empty:latest", command="none", mounts=[mount])
    cleanup.callback(holder.remove)
    return raw_restore(client, ["docker", "cp", "-", f"{holder.id}:/v"])


def raw_restore_to_directory(client: Any, directory: Path) -> float:
    target = directory / f"plain-{uuid4().hex}"
    target.mkdir()
    return raw_restore(client, ["tar", "-C", str(target), "-x"])


def settled(step: Callable[[], T]) -> T:
    """One step on a disk that has written everything before it: nobody pays for his predecessor."""
    os.sync()
    return step()


def ours(step: str, environment: dict[str, str], workspace_id: UUID, generation: int, sha256: str) -> dict[str, Any]:
    """One step in a fresh process, which tells its time and the most memory it ever held."""
    command = [sys.executable, "-m", "bench.archives", "--step", step, str(workspace_id), str(generation), sha256]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **environment})
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def most_memory() -> int:
    """The most this process ever held, in MB. Not `getrusage`: that counts what whoever started it held before it began."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) // 1024 if found else 0


def run_step(step: str, workspace_id: UUID, generation: int, sha256: str) -> None:
    runtime, store = DockerRuntime(INSTALLATION), store_of(dict(os.environ))
    key = archives.archive_key(workspace_id, "bench")
    runtime.identity()
    store.head(key)
    facts: dict[str, Any] = {}
    begin = time.monotonic()
    if step == "archive":
        result = archives.upload_home(
            runtime, store, workspace_id=workspace_id, generation=generation, key=key, progress=unheard, check=nothing
        )
        facts["seconds"] = time.monotonic() - begin
        begin = time.monotonic()
        archives.commit_archive(store, key, result, check=nothing)
        facts |= {"verify": time.monotonic() - begin, "sha256": result.sha256, "size": result.size, "tar": result.uncompressed}
    else:
        archives.restore_home(
            runtime,
            store,
            workspace_id=workspace_id,
            generation=generation,
            key=key,
            expected_sha256=sha256,
            spec=SPEC,
            max_bytes=1 << 40,
            max_files=10**8,
            progress=unheard,
            check=nothing,
        )
        facts["seconds"] = time.monotonic() - begin
    facts["rss_mb"] = most_memory()
    runtime.close()
    print(json.dumps(facts))


def measure_memory(*, mib: int) -> None:
    """One archive and one restore of ours alone, for homes too large to do everything five times."""
    with ExitStack() as stack:
        environment, workspace_id, directory = prepare(stack, mib=mib)
        shutil.rmtree(directory / "home")
        archived = ours("archive", environment, workspace_id, 1, "-")
        DockerRuntime(INSTALLATION).delete_volume(workspace_id, 1)
        restored = ours("restore", environment, workspace_id, 2, archived["sha256"])
    print(
        f"home: {archived['tar'] / 2**20:.0f} MiB as tar, {archived['size'] / 2**20:.0f} MiB stored; memory of archive and verification "
        f"at most {archived['rss_mb']} MB, of restore {restored['rss_mb']} MB (wanted under 200); "
        f"archive {archived['seconds']:.0f} s, verification {archived['verify']:.0f} s, restore {restored['seconds']:.0f} s"
    )


def prepare(stack: ExitStack, *, mib: int) -> tuple[dict[str, str], UUID, Path]:
    """An S3 server, a home of that size as a directory and as a volume."""
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
    directory.chmod(0o755)
    environment = stack.enter_context(object_storage(directory))
    home, workspace_id = directory / "home", uuid4()
    home.mkdir()
    build_home(home, mib=mib)
    runtime = DockerRuntime(INSTALLATION)
    stack.callback(remove_installation, INSTALLATION)
    stack.callback(runtime.close)
    runtime.provision(workspace_id, 1, SPEC)
    runtime.write_volume(workspace_id, 1, read_tree(os.fsencode(home)))
    return environment, workspace_id, directory


def measure(*, mib: int, runs: int) -> None:
    with ExitStack() as stack:
        environment, workspace_id, directory = prepare(stack, mib=mib)
        home, client = directory / "home", raw_client(environment)
        # Nothing is removed before the end: ext4 looks through the names of files just deleted for each one that is made.
        cleanup = stack.enter_context(ExitStack())
        times: dict[str, list[float]] = {name: [] for name in ("raw archive", "archive", "verify", "raw cp", "raw tar", "restore")}
        memory: list[int] = []
        for run in range(runs):
            times["raw archive"].append(settled(partial(raw_archive, client, home)))
            archived = settled(partial(ours, "archive", environment, workspace_id, 1, "-"))
            store_of(environment).delete([archives.meta_key(archives.archive_key(workspace_id, "bench"))])
            times["archive"].append(archived["seconds"])
            times["verify"].append(archived["verify"])
            times["raw cp"].append(settled(partial(raw_restore_to_docker, client, cleanup)))
            times["raw tar"].append(settled(partial(raw_restore_to_directory, client, directory)))
            restored = settled(partial(ours, "restore", environment, workspace_id, 2 + run, archived["sha256"]))
            times["restore"].append(restored["seconds"])
            memory += [archived["rss_mb"], restored["rss_mb"]]
        report(times, memory, archived)


def report(times: dict[str, list[float]], memory: list[int], archived: dict[str, Any]) -> None:
    median = {name: statistics.median(values) for name, values in times.items()}
    lines = [
        f"home: {archived['tar'] / 2**20:.0f} MiB as tar, {archived['size'] / 2**20:.0f} MiB stored; medians of {len(times['archive'])}",
        f"archive   ours {median['archive']:7.2f} s   raw tar|zstd|upload  {median['raw archive']:7.2f} s   "
        f"{median['raw archive'] / median['archive']:.2f} of raw (wanted 0.80)   verification {median['verify']:.2f} s",
        f"restore   ours {median['restore']:7.2f} s   raw download|zstd|cp {median['raw cp']:7.2f} s   "
        f"{median['raw cp'] / median['restore']:.2f} of raw (wanted 0.80)",
        f"restore   ours {median['restore']:7.2f} s   plain tar            {median['raw tar']:7.2f} s   "
        f"{median['raw tar'] / median['restore']:.2f} of plain tar (wanted 0.50)",
        f"memory    at most {max(memory)} MB (wanted under 200)",
    ]
    print("\n".join(lines))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024, help="size of the home")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--memory", action="store_true", help="ours alone, once, for its memory")
    parser.add_argument("--step", nargs=4, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.step:
        step, workspace_id, generation, sha256 = chosen.step
        run_step(step, UUID(workspace_id), int(generation), sha256)
    elif chosen.memory:
        measure_memory(mib=chosen.mib)
    else:
        measure(mib=chosen.mib, runs=chosen.runs)


if __name__ == "__main__":
    main()
