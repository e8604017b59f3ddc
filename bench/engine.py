"""The Docker runtime against raw engine calls: what our checks, labels and helpers cost, in the same run.

Prints medians and ratios for create, start and stop of the tiny image. `raw_circle` is what benches of the whole system
compare themselves with: the same container by raw calls, and a bare one without limits on the engine's default network. Removes
everything it made.
"""

import argparse
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

import docker

from coordinator.providers.base import ContainerSpec
from coordinator.providers.docker import DockerRuntime
from coordinator.providers.docker_spec import workspace_body
from coordinator.providers.probe import answers
from tests.engine import a_subnet, remove_installation

INSTALLATION = "bench-engine"


def wait_for_port(endpoint: str, path: str = "/") -> None:
    deadline = time.monotonic() + 60
    while not answers(endpoint, path):
        if time.monotonic() > deadline:
            raise TimeoutError("the port does not answer")
        time.sleep(0.002)


def raw_circle(spec: ContainerSpec, *, network: str = "") -> dict[str, float]:
    """Volume, create, start, port answering, stop and remove, each timed, with nothing but engine calls.

    With a network, of the very container CodeHub asks for: limited, hardened and kept apart from others. Without, of a bare one.
    """
    client = docker.APIClient(version="auto")
    name = f"bench-raw-{uuid4().hex}"
    body: dict[str, Any] = {"Image": spec.image, "User": f"{spec.uid}:{spec.gid}", "HostConfig": {"Init": True}}
    if network:
        body = workspace_body(spec, workspace_id=uuid4(), generation=1, installation_id="", network=network, loopback=False, cpus=spec.cpus)
        # Nobody's container but this bench's.
        body["Labels"] = {}
    body["HostConfig"]["Mounts"] = [{"Type": "volume", "Source": name, "Target": spec.home}]
    try:
        begin = time.monotonic()
        client.create_volume(name)
        volume = time.monotonic()
        container = client.create_container_from_config(body, name)["Id"]  # type: ignore[no-untyped-call]
        client.start(container)
        networks = client.inspect_container(container)["NetworkSettings"]["Networks"]
        wait_for_port(f"http://{next(iter(networks.values()))['IPAddress']}:{spec.port}", spec.health_path)
        ready = time.monotonic()
        client.stop(container, timeout=3)
        client.remove_container(container)
        stopped = time.monotonic()
        return {"volume": volume - begin, "start": ready - volume, "create": ready - begin, "stop": stopped - ready}
    finally:
        client.remove_volume(name, force=True)
        client.close()


def our_circle(runtime: DockerRuntime, spec: ContainerSpec) -> dict[str, float]:
    workspace_id = uuid4()
    begin = time.monotonic()
    runtime.provision(workspace_id, 1, spec)
    volume = time.monotonic()
    container = runtime.start(workspace_id, 1, spec)
    wait_for_port(container.endpoint, spec.health_path)
    ready = time.monotonic()
    runtime.delete(workspace_id)
    stopped = time.monotonic()
    runtime.delete_volume(workspace_id, 1)
    return {"volume": volume - begin, "start": ready - volume, "create": ready - begin, "stop": stopped - ready}


def report(rows: Sequence[tuple[dict[str, float], dict[str, float], dict[str, float]]], targets: Mapping[str, float] | None = None) -> None:
    """Medians of bare containers, of the same container by raw calls, and ours. The best of each tell what a busy machine hides."""
    for step in ("start", "stop", "create"):
        bare, raw, ours = ([row[side][step] * 1000 for row in rows] for side in range(3))
        wanted = f" (wanted at most {targets[step]})" if targets else ""
        middle = [statistics.median(times) for times in (ours, raw, bare)]
        best = [min(times) for times in (ours, raw, bare)]
        for name, (mine, same, plain) in (("medians", middle), ("best", best)):
            print(
                f"  {step:7} {name:8} ours {mine:6.0f} ms   raw {same:6.0f} ms   {mine / same:.2f} times raw{wanted}"
                f"   bare {plain:6.0f} ms, {mine / plain:.2f}"
            )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image", default="codehub/tiny:latest")
    parser.add_argument("--path", default="/")
    parser.add_argument("--runs", type=int, default=7)
    chosen = parser.parse_args(arguments)
    spec = ContainerSpec(image=chosen.image, health_path=chosen.path)
    runtime = DockerRuntime(INSTALLATION, subnet=a_subnet())
    our_circle(runtime, spec)
    rows = [(raw_circle(spec), raw_circle(spec, network=f"codehub-{INSTALLATION}"), our_circle(runtime, spec)) for _ in range(chosen.runs)]
    report(rows)
    runtime.close()
    remove_installation(INSTALLATION)


if __name__ == "__main__":
    main()
