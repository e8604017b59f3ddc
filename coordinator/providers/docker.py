"""The Docker runtime: containers and home volumes of one installation on one engine.

Owns what the interface promises on Docker: everything is found by label, an existing thing without our label is never touched,
mounting never creates a volume, and a repeated call finds its own work done. Never runs anything inside a home.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Literal
from uuid import UUID

import structlog
from docker import auth
from docker.errors import APIError, NotFound
from docker.types import IPAMConfig, IPAMPool
from docker.utils import parse_repository_tag

from coordinator.providers import docker_spec as shape
from coordinator.providers.base import (
    ActionFailedError,
    Container,
    ContainerSpec,
    ContainerState,
    ImagePullFailedError,
    MissingError,
    Progress,
    ProviderError,
)
from coordinator.providers.docker_engine import Engine, explanation, json_lines, status_of
from coordinator.providers.docker_volumes import DockerVolumes
from coordinator.providers.probe import answers, filled, is_own_address

log = structlog.get_logger(__name__)

_STOP_SECONDS = 3
_EVENTS_TIMEOUT = 300.0
_PULL_SILENCE = 300.0
_EVENTS = {"type": ["container", "volume"], "event": ["start", "die", "destroy", "oom", "rename", "pause", "unpause"]}


def _subnets(name: str) -> Iterator[str]:
    """A few small private networks to try, others for each name: 10.128.0.0/9 in pieces of 1024 addresses."""
    digest = hashlib.sha256(name.encode()).digest()
    for number in range(0, 16, 2):
        yield f"10.{128 + digest[number] % 128}.{digest[number + 1] & 0xFC}.0/22"


class DockerRuntime(DockerVolumes):
    """Implements `Runtime`."""

    name = "docker"

    def __init__(
        self,
        installation_id: str,
        *,
        host: str = "",
        timeout: float = 60,
        publish: Literal["auto", "loopback", "bridge"] = "auto",
        subnet: str = "",
    ) -> None:
        super().__init__(installation_id, Engine(host, timeout=timeout))
        self._publish = publish
        self._published = publish == "loopback"
        self._network = f"codehub-{re.sub(r'[^A-Za-z0-9_.-]', '-', installation_id)}"
        self._subnet = subnet
        self._network_ready = False
        self._cpus: int | None = None

    # --- looking
    def identity(self) -> str:
        return str(self._engine_info()["ID"])

    def list_containers(self) -> list[Container]:
        return [container for _, container in self._containers()]

    def get_container(self, workspace_id: UUID) -> Container | None:
        found = [container for _, container in self._containers(workspace_id)]
        # Two can exist after somebody renamed one behind our back: the one that runs is the one that matters.
        return next((container for container in found if container.state is ContainerState.RUNNING), found[0] if found else None)

    def probe(self, container: Container, spec: ContainerSpec) -> bool:
        if container.state is not ContainerState.RUNNING or not container.endpoint:
            return False
        path = filled(spec.health_path, spec=spec, workspace_id=container.workspace_id, home=spec.home, port=spec.port)
        return answers(container.endpoint, path)

    def free_bytes(self) -> int | None:
        if not self._engine.is_local:
            return None
        try:
            space = os.statvfs(str(self._engine_info()["DockerRootDir"]))
        except OSError:
            return None
        return space.f_bavail * space.f_frsize

    def logs(self, workspace_id: UUID, lines: int = 200) -> str:
        container = self.get_container(workspace_id)
        return self._printed(container.instance_id, lines) if container else ""

    def events(self) -> Iterator[UUID]:
        params = {"filters": json.dumps(_EVENTS)}
        with self._engine.stream("/events", params=params, doing="follow events", timeout=_EVENTS_TIMEOUT) as raw:
            for event in json_lines(raw):
                if workspace_id := self._event_subject(event):
                    yield workspace_id

    def _event_subject(self, event: dict[str, Any]) -> UUID | None:
        actor = event.get("Actor") or {}
        attributes = actor.get("Attributes") or {}
        if event.get("Type") == "volume":
            return shape.workspace_of_volume(str(actor.get("ID", "")))
        if attributes.get(shape.INSTALLATION) != self._installation or attributes.get(shape.ROLE) != shape.ROLE_WORKSPACE:
            return None
        try:
            return UUID(attributes.get(shape.WORKSPACE, ""))
        except ValueError:
            return None

    def _containers(self, workspace_id: UUID | None = None) -> list[tuple[str, Container]]:
        wanted = [f"{shape.ROLE}={shape.ROLE_WORKSPACE}"]
        if workspace_id:
            wanted.append(f"{shape.WORKSPACE}={workspace_id}")
        rows = self._rows(*wanted)
        return [(row["Id"], found) for row in rows if (found := shape.listed_container(row))]

    # --- images and networks
    def ensure_image(self, image: str, progress: Progress) -> None:
        try:
            self._engine.call(lambda api: api.inspect_image(image), doing="look for an image")
            return
        except NotFound:
            pass
        except APIError as error:
            raise ImagePullFailedError(f"the image {image} cannot be used", stderr=explanation(error)) from error
        try:
            self._pull(image, progress)
        except (APIError, ActionFailedError) as error:
            text = explanation(error) if isinstance(error, APIError) else error.stderr
            raise ImagePullFailedError(f"the image {image} cannot be pulled", stderr=text) from error

    def _pull(self, image: str, progress: Progress) -> None:
        # By hand: docker-py's own call waits for ever on a registry that fell silent.
        repository, tag = parse_repository_tag(image)
        registry, _ = auth.resolve_repository_name(repository)
        login = self._engine.call(lambda api: auth.get_config_header(api, registry), doing="pull an image")
        headers = {"X-Registry-Auth": login.decode() if isinstance(login, bytes) else str(login)} if login else {}
        layers: dict[str, tuple[int, int]] = {}
        asked = {"fromImage": repository, "tag": tag or "latest"}
        with self._engine.stream("/images/create", params=asked, doing="pull an image", timeout=_PULL_SILENCE, post=headers) as raw:
            for line in json_lines(raw):
                if "error" in line:
                    raise ActionFailedError("pull failed", stderr=str(line["error"]))
                layer, detail = str(line.get("id")), line.get("progressDetail") or {}
                if line.get("status") == "Downloading" and detail.get("total"):
                    layers[layer] = (int(detail.get("current", 0)), int(detail["total"]))
                elif layer in layers:
                    # Checked, unpacked, done: what was downloaded does not become less by it.
                    layers[layer] = (layers[layer][1], layers[layer][1])
                progress(sum(done for done, _ in layers.values()), sum(total for _, total in layers.values()) or None)

    def _ensure_network(self) -> None:
        if self._network_ready:
            return
        with self._making:
            try:
                found = self._look_at_network()
            except NotFound:
                self._make_network()
                found = self._look_at_network()
            if self._publish == "auto":
                # A bridge on this machine leads straight to the containers; behind a virtual machine's wall a published port does.
                self._published = self._engine.is_local and not is_own_address(shape.gateway_of(found))
            self._network_ready = True

    def _look_at_network(self) -> dict[str, Any]:
        row: dict[str, Any] = self._engine.call(lambda api: api.inspect_network(self._network), doing="look for the network")
        return row

    def _network_is_gone(self, error: APIError) -> bool:
        """`docker network prune` takes a network nobody uses; some engines tell when a container is made, others when it starts."""
        gone = status_of(error) == 404 and "network" in explanation(error).lower()
        self._network_ready = self._network_ready and not gone
        return gone

    def _make_network(self) -> None:
        """One bridge for each installation. Engines hand out about thirty by themselves; after those we name the addresses."""
        for subnet in [self._subnet] if self._subnet else [None, *_subnets(self._network)]:
            try:
                self._engine.call(partial(self._create_network, subnet), doing="create the network", acting=True)
                return
            except APIError as error:
                # 409: another process was first, or the engine did the work and answered 500 before.
                if status_of(error) == 409:
                    return
                failure = ActionFailedError("the network of the workspaces cannot be created", stderr=explanation(error))
            except ActionFailedError as error:
                failure = error
            if "pool" not in failure.stderr.lower():
                break
        raise failure

    def _create_network(self, subnet: str | None, api: Any) -> None:
        api.create_network(
            self._network,
            driver="bridge",
            options={"com.docker.network.bridge.enable_icc": "false"},
            labels={shape.INSTALLATION: self._installation},
            ipam=IPAMConfig(pool_configs=[IPAMPool(subnet=subnet)]) if subnet else None,
            check_duplicate=True,
        )

    # --- containers
    def start(self, workspace_id: UUID, generation: int, spec: ContainerSpec) -> Container:
        return self._start(workspace_id, generation, spec, again=True)

    def _start(self, workspace_id: UUID, generation: int, spec: ContainerSpec, *, again: bool) -> Container:
        if self.get_volume(workspace_id, generation) is None:
            raise MissingError(f"the home volume (generation {generation}) is not there")
        if running := self._clear_the_way(workspace_id, generation):
            return running
        self._ensure_network()
        container_id = self._create(workspace_id, generation, spec)
        if self.get_volume(workspace_id, generation) is None:
            # It vanished since the first look, and the mount made a new one: an empty home must never be started.
            self._remove_container(container_id)
            self._remove_implicit_volume(workspace_id, generation)
            raise MissingError(f"the home volume (generation {generation}) is not there")
        try:
            self._engine.call(lambda api: api.start(container_id), doing="start the container", acting=True)
            row = self._engine.call(lambda api: api.inspect_container(container_id), doing="inspect the container")
        except APIError as error:
            if again and self._network_is_gone(error):
                self._remove_container(container_id)
                return self._start(workspace_id, generation, spec, again=False)
            raise ActionFailedError("the container cannot be started", stderr=explanation(error)) from error
        return shape.inspected_container(row, workspace_id=workspace_id, generation=generation, port=spec.port)

    def _clear_the_way(self, workspace_id: UUID, generation: int) -> Container | None:
        """A running container of this generation is given back and everything else of this workspace removed."""
        keep: Container | None = None
        for container_id, container in self._containers(workspace_id):
            if keep is None and container.generation == generation and container.state is ContainerState.RUNNING:
                keep = container
            else:
                self._remove_container(container_id)
        return keep

    def _create(self, workspace_id: UUID, generation: int, spec: ContainerSpec) -> str:
        name = shape.container_name(workspace_id)
        body = shape.workspace_body(
            spec,
            workspace_id=workspace_id,
            generation=generation,
            installation_id=self._installation,
            network=self._network,
            loopback=self._published,
            cpus=min(spec.cpus, self._cpu_count()),
        )
        for attempt in range(3):
            try:
                answer = self._engine.call(
                    lambda api: api.create_container_from_config(body, name), doing="create the container", acting=True
                )
                return str(answer["Id"])
            except APIError as error:
                text = explanation(error)
                if attempt < 2 and self._network_is_gone(error):
                    self._ensure_network()
                    continue
                if status_of(error) == 404:
                    raise ImagePullFailedError(f"the image {spec.image} is not there", stderr=text) from error
                # 409: the engine made it and answered 500, or another process of ours was faster.
                if status_of(error) == 409 and (made := self._made_just_now(workspace_id, body["Labels"])):
                    return made
                if status_of(error) == 409 and attempt < 2 and self._containers(workspace_id):
                    self._clear_all(workspace_id)
                    continue
                if status_of(error) == 409:
                    raise ActionFailedError(
                        f"a container named {name} exists that this installation did not make; it is left alone", stderr=text
                    ) from error
                raise ActionFailedError("the container cannot be created", stderr=text) from error
        raise ActionFailedError("the container cannot be created: its name keeps being taken")

    def _made_just_now(self, workspace_id: UUID, labels: dict[str, str]) -> str | None:
        """A container with exactly what we asked for, whoever asked."""
        rows = self._rows(*(f"{key}={labels[key]}" for key in (shape.WORKSPACE, shape.GENERATION, shape.DIGEST)))
        usable = [row["Id"] for row in rows if row["State"] in ("created", "running")]
        return str(usable[0]) if usable else None

    def _cpu_count(self) -> int:
        if self._cpus is None:
            self._cpus = int(self._engine_info()["NCPU"])
        return self._cpus

    def _clear_all(self, workspace_id: UUID) -> None:
        for container_id, _ in self._containers(workspace_id):
            self._remove_container(container_id)

    def delete(self, workspace_id: UUID, *, only: str | None = None) -> str:
        # An instance id is of one container for ever: it need not be looked for.
        doomed = [container_id for container_id, _ in self._containers(workspace_id)] if only is None else [only]
        words = ""
        for container_id in doomed:
            self._stop(container_id)
            # Not to be had: that keeps no container alive.
            with suppress(ProviderError):
                words = self._printed(container_id) or words
            self._remove_container(container_id)
        return words

    def _printed(self, container_id: str, lines: int = 200) -> str:
        try:
            raw = self._engine.call(lambda api: api.logs(container_id, tail=lines), doing="read logs")
        except APIError:
            return ""
        return bytes(raw).decode("utf-8", "replace")

    def _stop(self, container_id: str) -> None:
        """Ask the IDE to end, if it has not; the removal that follows kills what does not."""
        try:
            self._engine.call(lambda api: api.stop(container_id, timeout=_STOP_SECONDS), doing="stop the container", acting=True)
        except NotFound:
            return
        except APIError as error:
            log.info("container could not be stopped in peace", container=container_id, error=explanation(error))
