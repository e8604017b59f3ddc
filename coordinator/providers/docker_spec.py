"""What CodeHub asks of Docker for one container: names, labels, hardening and limits, as plain request bodies.

Pure: makes no call. The labels are how everything is found again, by one installation and never by another.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import datetime
from ipaddress import ip_network
from typing import Any
from uuid import UUID

from coordinator.providers.base import Container, ContainerSpec, ContainerState, Volume
from coordinator.providers.probe import filled

INSTALLATION, WORKSPACE, GENERATION, ROLE, PORT, DIGEST, CALL = (
    "codehub.installation",
    "codehub.workspace",
    "codehub.generation",
    "codehub.role",
    "codehub.port",
    "codehub.spec",
    "codehub.call",
)
ROLE_WORKSPACE, ROLE_HELPER = "workspace", "helper"
HELPER_MOUNT = "/h"
_VOLUME_NAME = re.compile(r"^ws-([0-9a-f-]{36})-home-(\d+)$")
_EXITED = re.compile(r"Exited \((-?\d+)\)")


def container_name(workspace_id: UUID) -> str:
    return f"ws-{workspace_id}"


def volume_name(workspace_id: UUID, generation: int) -> str:
    return f"ws-{workspace_id}-home-{generation}"


def workspace_of_volume(name: str) -> UUID | None:
    match = _VOLUME_NAME.match(name)
    return UUID(match[1]) if match else None


def labels(installation_id: str, workspace_id: UUID, generation: int, **more: str) -> dict[str, str]:
    return {INSTALLATION: installation_id, WORKSPACE: str(workspace_id), GENERATION: str(generation), **more}


def volume_mount(name: str, target: str, *, copying: bool = False) -> dict[str, Any]:
    """Copying, the engine fills an empty volume with the image's files, and gives it their directory's owner."""
    return {"Type": "volume", "Source": name, "Target": target, "VolumeOptions": {"NoCopy": not copying}}


def workspace_body(
    spec: ContainerSpec, *, workspace_id: UUID, generation: int, installation_id: str, network: str, loopback: bool, cpus: float
) -> dict[str, Any]:
    """The body of a create call for a workspace's container, hardened: untrusted code runs in it."""

    def fill(text: str) -> str:
        return filled(text, spec=spec, workspace_id=workspace_id, home=spec.home, port=spec.port)

    port = f"{spec.port}/tcp"
    memory = spec.memory_mb * 1024 * 1024
    environment = {"HOME": spec.home, "PORT": str(spec.port)} | {key: fill(value) for key, value in spec.env.items()}
    host: dict[str, Any] = {
        "Mounts": [volume_mount(volume_name(workspace_id, generation), spec.home)],
        "NetworkMode": network,
        "SecurityOpt": ["no-new-privileges"],
        "CapDrop": ["ALL"],
        "Privileged": False,
        "PidsLimit": spec.pids_limit,
        "Memory": memory,
        "MemorySwap": memory,
        "NanoCpus": int(cpus * 1_000_000_000),
        "Init": True,
        "RestartPolicy": {"Name": "no"},
        "LogConfig": {"Type": "json-file", "Config": {"max-size": "1m", "max-file": "2"}},
    }
    if loopback:
        host["PortBindings"] = {port: [{"HostIp": "127.0.0.1", "HostPort": ""}]}
    body: dict[str, Any] = {
        "Image": spec.image,
        "User": f"{spec.uid}:{spec.gid}",
        "Hostname": "workspace",
        "WorkingDir": spec.home,
        "Env": [f"{key}={value}" for key, value in environment.items()],
        "ExposedPorts": {port: {}},
        "Labels": labels(installation_id, workspace_id, generation, **{ROLE: ROLE_WORKSPACE, PORT: str(spec.port)}),
        "StopTimeout": 5,
        "HostConfig": host,
    }
    if spec.command:
        body["Entrypoint"] = []
        body["Cmd"] = [fill(word) for word in spec.command]
    # Tells a container that was asked for just now from an older one with other settings.
    body["Labels"][DIGEST] = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]
    return body


def helper_body(image: str, *, workspace_id: UUID, generation: int, installation_id: str, copying: bool) -> dict[str, Any]:
    """A container that is never started: a handle by which the engine lets us read and fill a volume."""
    return {
        "Image": image,
        "Cmd": ["never-started"],
        "Labels": labels(installation_id, workspace_id, generation, **{ROLE: ROLE_HELPER}),
        "NetworkDisabled": True,
        "HostConfig": {
            "Mounts": [volume_mount(volume_name(workspace_id, generation), HELPER_MOUNT, copying=copying)],
            "NetworkMode": "none",
            "RestartPolicy": {"Name": "no"},
        },
    }


def listed_container(row: Mapping[str, Any]) -> Container | None:
    """A row of the engine's listing; None when its labels are not ours to understand."""
    try:
        found = row["Labels"]
        workspace_id, generation, port = UUID(found[WORKSPACE]), int(found[GENERATION]), int(found[PORT])
    except (KeyError, ValueError, TypeError):
        return None
    # A paused container is no use to anyone: it has to be replaced like a dead one.
    running = row.get("State") == "running"
    status = str(row.get("Status", ""))
    exited = _EXITED.match(status)
    networks = (row.get("NetworkSettings") or {}).get("Networks") or {}
    address = next((str(net["IPAddress"]) for net in networks.values() if net.get("IPAddress")), "")
    public = next((entry["PublicPort"] for entry in row.get("Ports") or [] if entry.get("PublicPort") and entry["PrivatePort"] == port), 0)
    return Container(
        workspace_id=workspace_id,
        generation=generation,
        state=ContainerState.RUNNING if running else ContainerState.STOPPED,
        endpoint=_endpoint(running, public, address, port),
        detail=status,
        exit_code=int(exited[1]) if exited else None,
        instance_id=str(row.get("Id", "")),
    )


def inspected_container(row: Mapping[str, Any], *, workspace_id: UUID, generation: int, port: int) -> Container:
    """The answer of an inspect call, right after a start."""
    state = row["State"]
    running = bool(state.get("Running")) and not state.get("Paused")
    settings = row.get("NetworkSettings") or {}
    bindings = (settings.get("Ports") or {}).get(f"{port}/tcp") or []
    public = next((int(binding["HostPort"]) for binding in bindings if binding.get("HostPort")), 0)
    address = next((str(net["IPAddress"]) for net in (settings.get("Networks") or {}).values() if net.get("IPAddress")), "")
    return Container(
        workspace_id=workspace_id,
        generation=generation,
        state=ContainerState.RUNNING if running else ContainerState.STOPPED,
        endpoint=_endpoint(running, public, address, port),
        detail="out of memory" if state.get("OOMKilled") else str(state.get("Status", "")),
        started_at=_time(state.get("StartedAt", "")),
        exit_code=None if running else int(state.get("ExitCode", 0)),
        instance_id=str(row.get("Id", "")),
    )


def gateway_of(network: Mapping[str, Any]) -> str:
    """The engine's own end of a network. It does not say which one it took of a subnet that was given: the first."""
    for pool in (network.get("IPAM") or {}).get("Config") or []:
        if pool.get("Gateway"):
            return str(pool["Gateway"])
        return str(next(ip_network(str(pool["Subnet"]), strict=False).hosts()))
    return ""


def listed_volume(row: Mapping[str, Any]) -> Volume | None:
    try:
        found = row["Labels"]
        return Volume(UUID(found[WORKSPACE]), int(found[GENERATION]))
    except (KeyError, ValueError, TypeError):
        return None


def _endpoint(running: bool, public: int, address: str, port: int) -> str:
    """A port that was published is there to be used, however later containers are reached."""
    if not running:
        return ""
    if public:
        # The container's own address comes along for whoever needs another of its ports: only one is published.
        return f"http://127.0.0.1:{public}" + (f"#{address}" if address else "")
    return f"http://{address}:{port}" if address else ""


def _time(text: str) -> datetime | None:
    """The engine's nanoseconds are cut to what Python reads; its year 1 means never."""
    if not text or text.startswith("0001"):
        return None
    return datetime.fromisoformat(re.sub(r"\.(\d{1,6})\d*", lambda match: f".{match[1]:0<6}", text.replace("Z", "+00:00")))
