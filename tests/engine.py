"""What tests and benches take from the shared Docker engine, and how they give it back.

Everything is found by an installation's label: whoever makes an installation removes it, its network and its images included.
"""

import random
import subprocess
from pathlib import Path
from typing import Any

import docker

TINY = "codehub/tiny:latest"


def build_tiny_image() -> str:
    """The test image, made in a second when it is not there yet."""
    script = Path(__file__).resolve().parents[1] / "images/tiny/build.sh"
    subprocess.run(["bash", str(script)], check=True, capture_output=True, timeout=120)
    return TINY


def a_subnet() -> str:
    """Addresses of its own for a network: the engine's few default ones are for whoever did not choose."""
    return f"10.{random.randint(128, 250)}.{random.randint(0, 255)}.0/24"


def remove_installation(installation_id: str) -> None:
    """Everything on the engine that carries this installation's label."""
    client = docker.from_env()
    label: dict[str, Any] = {"label": f"codehub.installation={installation_id}"}
    for container in client.containers.list(all=True, filters=label):
        container.remove(force=True)
    for volume in client.volumes.list(filters=label):
        volume.remove(force=True)
    for network in client.networks.list(filters=label):
        network.remove()
    for image in client.images.list(filters=label):
        client.images.remove(str(image.id), force=True)
    client.close()
