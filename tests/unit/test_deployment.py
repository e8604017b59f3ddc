"""The compose file of the documentation, read as Compose reads it: commands that exist, settings that are known, secrets where they belong."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import get_commands

from codehub.config import Config

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
TEXT = (DEPLOY / "compose.yaml").read_text()
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(TEXT)["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"] == "codehub"}
EXAMPLE = [line.partition("=")[0] for line in (DEPLOY / "example.env").read_text().splitlines() if line and not line.startswith("#")]


@pytest.mark.parametrize("name", OURS)
def test_each_command_exists(name: str) -> None:
    python, manage, command, *_ = OURS[name]["command"]
    assert (python, manage) == ("python", "manage.py")
    assert command in get_commands()


@pytest.mark.parametrize("name", OURS)
def test_each_setting_is_known(name: str) -> None:
    known = {field.upper() for field in Config.model_fields}
    assert set(OURS[name]["environment"]) - known <= {"S3_SECRET_KEY"}


def test_whatever_is_asked_for_stands_in_the_example_and_the_other_way_round() -> None:
    asked = set(re.findall(r"\$\{([A-Z0-9_]+)", TEXT))
    known = {field.upper() for field in Config.model_fields}
    assert asked <= set(EXAMPLE)
    assert set(EXAMPLE) <= asked | known


@pytest.mark.parametrize("name", ["web", "prepare"])
def test_what_faces_the_world_holds_no_keys_of_object_storage_and_no_socket(name: str) -> None:
    service = OURS[name]
    assert "volumes" not in service
    assert "group_add" not in service
    assert service["environment"]["S3_SECRET_KEY"] == ""
    assert not {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} & set(service["environment"])


def test_everything_waited_for_is_there_and_every_port_is_on_loopback() -> None:
    for service in SERVICES.values():
        assert set(service.get("depends_on", {})) <= set(SERVICES)
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        assert {mount.partition(":")[0] for mount in service.get("volumes", [])} <= {"postgres", "redis", "s3", "/var/run/docker.sock"}
