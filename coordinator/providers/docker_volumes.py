"""The volume half of the Docker runtime: home volumes by label, and tar streams in and out of them.

A volume is made, read and filled through a helper: a container of an image of our own, created and never started, so that nothing
runs inside a home and nothing must be pulled. A new helper takes the place of what a killed process left.
"""

import os
import re
import secrets
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import structlog
from docker.errors import APIError, NotFound

from coordinator.providers import docker_spec as shape
from coordinator.providers.base import ActionFailedError, Buffer, ContainerSpec, MissingError, ProviderError, Volume
from coordinator.providers.docker_engine import Engine, explanation, status_of
from coordinator.providers.hometree import read_tree, sees_every_file, tree_bytes
from coordinator.providers.tarstream import DIRECTORY, END_OF_TAR, TarScanner, make_header, scan

log = structlog.get_logger(__name__)

READ_SIZE = 1 << 20
_HELPER_PATIENCE = 5.0
_REMOVAL_PATIENCE = 5.0
# The trailing dot makes the engine name members `./x`, as the interface wants them.
_HOME = {"path": f"{shape.HELPER_MOUNT}/."}
_ROOT = ord(shape.HELPER_MOUNT[1])
# Of nearly every image: reading and filling then need no image of their own.
_USUAL_OWNER = (1000, 1000)


def _create_named(body: dict[str, Any], name: str, api: Any) -> Any:
    return api.create_container_from_config(body, name)


def _archive_of(helper: str) -> str:
    return f"/containers/{helper}/archive"


class DockerVolumes:
    """Home volumes of one installation. Needs an engine; knows nothing of running containers."""

    def __init__(self, installation_id: str, engine: Engine) -> None:
        self._installation = installation_id
        self._engine = engine
        self._helper_image = f"codehub-home:{re.sub(r'[^A-Za-z0-9_.-]', '-', installation_id)[:100]}"
        self._making = threading.Lock()

    def close(self) -> None:
        """Give the engine's connections back. May be used again afterwards."""
        self._engine.close()

    # --- looking
    def list_volumes(self) -> list[Volume]:
        filters = {"label": [f"{shape.INSTALLATION}={self._installation}"]}
        answer = self._engine.call(lambda api: api.volumes(filters=filters), doing="list volumes")
        return [volume for row in answer.get("Volumes") or [] if (volume := shape.listed_volume(row))]

    def get_volume(self, workspace_id: UUID, generation: int) -> Volume | None:
        name = shape.volume_name(workspace_id, generation)
        try:
            row = self._engine.call(lambda api: api.inspect_volume(name), doing="inspect a volume")
        except NotFound:
            return None
        if (row.get("Labels") or {}).get(shape.INSTALLATION) != self._installation:
            return None
        return shape.listed_volume(row)

    def _rows(self, *wanted: str) -> list[dict[str, Any]]:
        filters = {"label": [f"{shape.INSTALLATION}={self._installation}", *wanted]}
        rows: list[dict[str, Any]] = self._engine.call(lambda api: api.containers(all=True, filters=filters), doing="list containers")
        return rows

    def _engine_info(self) -> dict[str, Any]:
        # Asked anew each time: the engine behind the socket may have been exchanged.
        info: dict[str, Any] = self._engine.call(lambda api: api.info(), doing="ask who it is")
        return info

    # --- volumes
    def provision(self, workspace_id: UUID, generation: int, spec: ContainerSpec) -> None:
        self._create_volume(workspace_id, generation)
        # Mounting gives an empty volume the owner of the image's directory under it, so one whose maker died half way gets it from
        # the next. Anything in a volume, and the volume stays as it is.
        with self._helper(workspace_id, generation, owner=(spec.uid, spec.gid)):
            return

    def delete_volume(self, workspace_id: UUID, generation: int) -> None:
        if self.get_volume(workspace_id, generation) is None:
            return
        name = shape.volume_name(workspace_id, generation)
        deadline = time.monotonic() + _REMOVAL_PATIENCE
        while True:
            try:
                self._engine.call(lambda api: api.remove_volume(name), doing="remove a volume", acting=True)
                return
            except NotFound:
                return
            except APIError as error:
                if status_of(error) != 409 or time.monotonic() > deadline:
                    raise ActionFailedError("the volume cannot be removed", stderr=explanation(error)) from error
                wanted = f"{shape.WORKSPACE}={workspace_id}", f"{shape.GENERATION}={generation}"
                users = self._rows(f"{shape.ROLE}={shape.ROLE_WORKSPACE}", *wanted)
                if any(row["State"] not in ("removing", "dead") for row in users):
                    raise ActionFailedError("the volume is in use by a container", stderr=explanation(error)) from error
            # A killed process may have left its helper on the volume. While the engine removes one it is in no list, and the volume in
            # use for a moment longer.
            self._remove_helpers(*wanted)
            time.sleep(0.05)

    def _create_volume(self, workspace_id: UUID, generation: int) -> None:
        """Creating by name is idempotent in the engine; an existing one keeps the labels it has."""
        name = shape.volume_name(workspace_id, generation)
        wanted = shape.labels(self._installation, workspace_id, generation)
        try:
            row = self._engine.call(lambda api: api.create_volume(name, labels=wanted), doing="create a volume", acting=True)
        except APIError as error:
            raise ActionFailedError("the volume cannot be created", stderr=explanation(error)) from error
        if (row.get("Labels") or {}).get(shape.INSTALLATION) != self._installation:
            raise ActionFailedError(f"a volume named {name} exists and is not ours; it is left alone")

    # --- tar in and out
    @contextmanager
    def read_volume(self, workspace_id: UUID, generation: int) -> Iterator[Iterator[bytes]]:
        with self._opened(workspace_id, generation) as helper, self._own_directory(workspace_id, generation, helper) as directory:
            if directory is not None:
                try:
                    yield read_tree(directory)
                except OSError as error:
                    raise ActionFailedError("the home cannot be read", stderr=str(error)) from error
                return
            with self._engine.stream(_archive_of(helper), params=_HOME, doing="read a home") as raw:
                # An IncompleteRead of a cut stream comes out of the context as UnreachableError.
                yield iter(lambda: raw.read(READ_SIZE), b"")

    @contextmanager
    def _own_directory(self, workspace_id: UUID, generation: int, helper: str) -> Iterator[bytes | None]:
        """The volume's directory where it is ours to read, which costs a quarter of a stream through the engine. None: ask the engine.

        The engine must keep its things on this machine (a socket may be forwarded: the helper it has just made lies there as well),
        the volume be a plain directory, and owners be told as they are (an engine without root, or with user namespaces, shows others).
        """
        descriptor = self._open_directory(workspace_id, generation, helper)
        try:
            # By its descriptor: nobody can put another in its place, and long names stay short enough.
            yield None if descriptor is None else b"/proc/self/fd/%d/." % descriptor
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _open_directory(self, workspace_id: UUID, generation: int, helper: str) -> int | None:
        if not self._engine.is_local or not sees_every_file():
            return None
        name = shape.volume_name(workspace_id, generation)
        row = self._engine.call(lambda api: api.inspect_volume(name), doing="inspect a volume")
        if row.get("Driver") != "local" or row.get("Options"):
            return None
        info = self._engine_info()
        options = " ".join(info.get("SecurityOptions") or [])
        root = Path(info.get("DockerRootDir") or "/nowhere")
        if "userns" in options or "rootless" in options or not (root / "containers" / helper).is_dir():
            return None
        try:
            return os.open(root / "volumes" / name / "_data", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return None

    def home_bytes(self, workspace_id: UUID, generation: int) -> int | None:
        # The engine itself can only measure all volumes at once. Its directory is ours to read when we are root on its machine.
        if not self._engine.is_local:
            return None
        name = shape.volume_name(workspace_id, generation)
        try:
            row = self._engine.call(lambda api: api.inspect_volume(name), doing="inspect a volume")
        except NotFound:
            return None
        place = str(row.get("Mountpoint") or "")
        return tree_bytes(os.fsencode(place)) if place else None

    def write_volume(self, workspace_id: UUID, generation: int, stream: Iterable[Buffer]) -> None:
        # At `/` with prefixed names, not at the home: there the engine refuses symlinks that point outside.
        renamed = scan(stream, TarScanner(lambda member: True, root=_ROOT, verify=False))
        failure: list[BaseException] = []

        def body() -> Iterator[Buffer]:
            try:
                yield from renamed
            except BaseException as error:
                failure.append(error)
                raise

        with self._opened(workspace_id, generation) as helper:
            try:
                # Once: the stream is used up by the first try.
                self._engine.call(lambda api: api.put_archive(helper, "/", body()), doing="fill a home", acting=True, tries=1)
            except (ProviderError, APIError) as error:
                if failure:
                    raise failure[0] from None
                if isinstance(error, APIError):
                    raise ActionFailedError("Docker could not fill a home", stderr=explanation(error)) from error
                raise

    # --- helpers
    @contextmanager
    def _opened(self, workspace_id: UUID, generation: int) -> Iterator[str]:
        """The id of a never-started container with the volume mounted as it is; removed on exit."""
        if self.get_volume(workspace_id, generation) is None:
            raise MissingError(f"the home volume (generation {generation}) is not there")
        with self._helper(workspace_id, generation) as helper:
            yield helper

    @contextmanager
    def _helper(self, workspace_id: UUID, generation: int, *, owner: tuple[int, int] | None = None) -> Iterator[str]:
        """A helper on a volume that was there a moment ago. With an owner, an empty volume becomes theirs."""
        helper = self._create_helper(workspace_id, generation, owner=owner)
        try:
            # Somebody may have removed the volume in between, and then the mount made a new one, without our label.
            if self.get_volume(workspace_id, generation) is None:
                self._remove_container(helper)
                self._remove_implicit_volume(workspace_id, generation)
                raise MissingError(f"the home volume (generation {generation}) is not there")
            yield helper
        finally:
            self._remove_container(helper)

    def _create_helper(self, workspace_id: UUID, generation: int, *, owner: tuple[int, int] | None = None) -> str:
        uid, gid = owner or _USUAL_OWNER
        image = f"{self._helper_image}-{uid}-{gid}"
        body = shape.helper_body(
            image, workspace_id=workspace_id, generation=generation, installation_id=self._installation, copying=owner is not None
        )
        # Tells what this call made, before an answer was lost, from what a killed process left.
        body["Labels"][shape.CALL] = secrets.token_hex(8)
        name = f"{shape.container_name(workspace_id)}-helper"
        for _ in range(4):
            try:
                answer = self._engine.call(partial(_create_named, body, name), doing="create a helper container", acting=True)
                return str(answer["Id"])
            except NotFound:
                self._import_helper_image(image, uid=uid, gid=gid)
            except APIError as error:
                if status_of(error) != 409:
                    raise ActionFailedError("the helper container cannot be created", stderr=explanation(error)) from error
                if made := self._rows(f"{shape.CALL}={body['Labels'][shape.CALL]}"):
                    return str(made[0]["Id"])
                if not self._removed_in_time(workspace_id):
                    name = f"{shape.container_name(workspace_id)}-helper-{uuid4().hex[:8]}"
        raise ActionFailedError("the helper container cannot be created: its name or image keeps disappearing")

    def _removed_in_time(self, workspace_id: UUID) -> bool:
        """Whether the helper of an earlier run is gone. Engines wait with that while somebody reads through it, and a frozen
        process may do so for hours: then it is left to the removal of its volume, and to the collection of leftovers."""
        done = threading.Event()

        def remove() -> None:
            try:
                if self._remove_helpers(f"{shape.WORKSPACE}={workspace_id}"):
                    done.set()
            except ProviderError as error:
                log.info("helper of an earlier run not removed", workspace=str(workspace_id), error=str(error))

        remover = threading.Thread(target=remove, name="remove-helper", daemon=True)
        remover.start()
        remover.join(_HELPER_PATIENCE)
        return done.is_set()

    def _import_helper_image(self, image: str, *, uid: int, gid: int) -> None:
        """An image of one empty directory. One for each user an image of the catalogue runs as, so one in most installations."""
        repository, _, tag = image.partition(":")
        now = time.time_ns() // 10**9 * 10**9
        content = make_header(f"{shape.HELPER_MOUNT[1:]}/".encode(), DIRECTORY, mode=0o755, uid=uid, gid=gid, mtime_ns=now) + END_OF_TAR
        changes = [f"LABEL {shape.INSTALLATION}={self._installation}"]
        with self._making:
            self._engine.call(
                lambda api: api.import_image_from_data(content, repository=repository, tag=tag, changes=changes),
                doing="import the helper image",
                acting=True,
            )

    def _remove_helpers(self, *wanted: str, older_than: datetime | None = None) -> int:
        rows = self._rows(f"{shape.ROLE}={shape.ROLE_HELPER}", *wanted)
        old = [row for row in rows if older_than is None or row["Created"] < older_than.timestamp()]
        for row in old:
            self._remove_container(row["Id"])
        return len(old)

    def _remove_container(self, container_id: str) -> None:
        """Gone on return. Kills what runs in it: who wants it to end in peace asks before."""
        try:
            self._engine.call(lambda api: api.remove_container(container_id, force=True, v=False), doing="remove a container", acting=True)
        except NotFound:
            return
        except APIError as error:
            # 409: its removal is already in progress.
            if status_of(error) != 409:
                raise ActionFailedError("the container cannot be removed", stderr=explanation(error)) from error

    def _remove_implicit_volume(self, workspace_id: UUID, generation: int) -> None:
        name = shape.volume_name(workspace_id, generation)
        try:
            row = self._engine.call(lambda api: api.inspect_volume(name), doing="inspect a volume")
            if not row.get("Labels"):
                self._engine.call(lambda api: api.remove_volume(name), doing="remove a volume", acting=True)
        except APIError:
            # Gone, or in use by somebody else: either way it is not ours.
            return

    def remove_leftovers(self, *, older_than: datetime) -> int:
        return self._remove_helpers(older_than=older_than)
