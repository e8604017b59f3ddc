"""The process runtime: IDEs as process groups, homes as directories, for a machine without Docker.

Owns `homes/` and `process/` in the data directory. There is no isolation: it is for trying CodeHub out. What runs is known from
state files and confirmed with the kernel each time, so that it survives our restarts and nobody else's process is touched.
"""

import fcntl
import hashlib
import json
import os
import re
import secrets
import socket
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

from coordinator.providers import process_group
from coordinator.providers.base import (
    ActionFailedError,
    Buffer,
    Container,
    ContainerSpec,
    ContainerState,
    ImagePullFailedError,
    MissingError,
    Progress,
    UnreachableError,
    Volume,
)
from coordinator.providers.hometree import read_tree, remove_tree, tree_bytes, write_tree
from coordinator.providers.probe import answers, filled

_HOME_NAME = re.compile(r"^ws-([0-9a-f-]{36})-home-(\d+)$")
_LOG_LIMIT = 2 * 1024 * 1024
_LOG_KEPT = 256 * 1024
_SOCKET_LIMIT = 100
_PATIENCE = 5.0


@dataclass(slots=True)
class _State:
    """What is written down of one run. `pid` is 0 between the decision to start and the start itself."""

    generation: int
    instance: str
    pid: int = 0
    mark: str = ""
    endpoint: str = ""
    started_at: float = 0
    exit_code: int | None = None
    is_ended_in_order: bool = False


class ProcessRuntime:
    """Implements `Runtime`."""

    name = "process"

    def __init__(self, installation_id: str, *, data_dir: Path) -> None:
        self._installation = installation_id
        self._homes = data_dir.resolve() / "homes"
        self._own = data_dir.resolve() / "process"

    # --- directories
    def _ready(self) -> None:
        """Both directories are there and ours. A homes directory that went missing must not look like an empty one."""
        marker, known = self._homes / ".codehub-installation", self._own / "installation"
        try:
            if not known.exists():
                for directory in (self._homes, self._own, self._own / "state", self._own / "logs"):
                    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
                for file in (marker, known):
                    _write_whole(file, self._installation)
            if marker.read_text() != self._installation:
                raise UnreachableError("the homes in the data directory belong to another installation", endpoint="docker")
        except OSError as error:
            raise UnreachableError(f"the directory of the homes cannot be read: {error}", endpoint="docker") from error

    def _home(self, workspace_id: UUID, generation: int) -> Path:
        return self._homes / f"ws-{workspace_id}-home-{generation}"

    def _state_file(self, workspace_id: UUID) -> Path:
        return self._own / "state" / f"ws-{workspace_id}.json"

    def _log_file(self, workspace_id: UUID) -> Path:
        return self._own / "logs" / f"ws-{workspace_id}.log"

    def _socket(self, workspace_id: UUID) -> Path:
        """A path short enough for a socket's address, in a directory nobody else can enter."""
        name = hashlib.sha256(f"{self._installation}:{workspace_id}".encode()).hexdigest()[:16] + ".sock"
        directory = self._own / "run"
        if len(os.fsencode(directory / name)) > _SOCKET_LIMIT:
            place = hashlib.sha256(os.fsencode(self._own)).hexdigest()[:12]
            directory = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"codehub-{os.geteuid()}-{place}"
        directory.mkdir(mode=0o700, exist_ok=True)
        info = os.lstat(directory)
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid() or stat.S_IMODE(info.st_mode) & 0o077:
            raise ActionFailedError(f"the directory of the sockets is not private: {directory}")
        return directory / name

    @contextmanager
    def _alone(self, workspace_id: UUID) -> Iterator[None]:
        """One process at a time starts or ends the runs of one workspace."""
        self._ready()
        with (self._own / "state" / f"ws-{workspace_id}.lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    # --- looking
    def identity(self) -> str:
        self._ready()
        path = self._own / "identity"
        try:
            if not path.exists():
                _write_whole(path, f"process-{secrets.token_hex(16)}", replace=False)
            return path.read_text()
        except OSError as error:
            raise UnreachableError(f"the data directory cannot be read: {error}", endpoint="docker") from error

    def list_containers(self) -> list[Container]:
        self._ready()
        try:
            found = [UUID(path.stem.removeprefix("ws-")) for path in (self._own / "state").glob("ws-*.json")]
        except OSError as error:
            raise UnreachableError(f"the data directory cannot be read: {error}", endpoint="docker") from error
        return [container for workspace_id in found if (container := self._look(workspace_id))]

    def list_volumes(self) -> list[Volume]:
        self._ready()
        try:
            matches = [_HOME_NAME.match(path.name) for path in self._homes.iterdir()]
        except OSError as error:
            raise UnreachableError(f"the directory of the homes cannot be read: {error}", endpoint="docker") from error
        return [Volume(UUID(match[1]), int(match[2])) for match in matches if match]

    def get_container(self, workspace_id: UUID) -> Container | None:
        self._ready()
        return self._look(workspace_id)

    def get_volume(self, workspace_id: UUID, generation: int) -> Volume | None:
        self._ready()
        try:
            os.lstat(self._home(workspace_id, generation))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UnreachableError(f"the directory of the homes cannot be read: {error}", endpoint="docker") from error
        return Volume(workspace_id, generation)

    def _look(self, workspace_id: UUID, *, is_alone: bool = False) -> Container | None:
        """`is_alone`: the caller holds the workspace's lock."""
        state = self._load(workspace_id)
        if state is None:
            return None
        running = bool(state.pid) and process_group.birth_mark(state.pid) == state.mark
        if running:
            self._trim_log(workspace_id)
        elif state.pid and state.exit_code is None:
            self._note_exit(workspace_id, state, is_alone=is_alone)
        ended = "ended" if state.exit_code is None else f"ended with {state.exit_code}"
        return Container(
            workspace_id=workspace_id,
            generation=state.generation,
            state=ContainerState.RUNNING if running else ContainerState.STOPPED,
            endpoint=state.endpoint if running else "",
            detail="running" if running else ended,
            started_at=datetime.fromtimestamp(state.started_at, UTC),
            exit_code=state.exit_code,
            instance_id=state.instance,
            is_ended_in_order=state.is_ended_in_order,
        )

    def _load(self, workspace_id: UUID) -> _State | None:
        try:
            return _State(**json.loads(self._state_file(workspace_id).read_text()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise UnreachableError(f"the state of a workspace's process cannot be read: {error}", endpoint="docker") from error

    def _save(self, workspace_id: UUID, state: _State) -> None:
        _write_whole(self._state_file(workspace_id), json.dumps(asdict(state)))

    def _note_exit(self, workspace_id: UUID, state: _State, *, is_alone: bool) -> None:
        """Take the exit code, which is given once, and write it down.

        Only while nobody else starts or ends it: what was read before must never take the place of a newer run's state, and a code
        that cannot be written now is left for the next look.
        """
        if is_alone:
            state.exit_code = process_group.reap(state.pid)
            if state.exit_code is not None:
                self._save(workspace_id, state)
            return
        with (self._own / "state" / f"ws-{workspace_id}.lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            current = self._load(workspace_id)
            if current is not None and current.instance == state.instance:
                self._note_exit(workspace_id, state, is_alone=True)

    def probe(self, container: Container, spec: ContainerSpec) -> bool:
        if container.state is not ContainerState.RUNNING or not container.endpoint:
            return False
        home = str(self._home(container.workspace_id, container.generation))
        return answers(container.endpoint, filled(spec.health_path, spec=spec, workspace_id=container.workspace_id, home=home, port=0))

    def free_bytes(self) -> int | None:
        self._ready()
        space = os.statvfs(self._homes)
        return space.f_bavail * space.f_frsize

    def logs(self, workspace_id: UUID, lines: int = 200) -> str:
        try:
            with self._log_file(workspace_id).open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_KEPT))
                text = file.read().decode("utf-8", "replace")
        except FileNotFoundError:
            return ""
        return "".join(text.splitlines(keepends=True)[-lines:])

    def _trim_log(self, workspace_id: UUID) -> None:
        """Cut in place: the process holds the file open for appending, so it goes on at the new end."""
        path = self._log_file(workspace_id)
        try:
            if path.stat().st_size <= _LOG_LIMIT:
                return
            with path.open("r+b") as file:
                file.seek(-_LOG_KEPT, os.SEEK_END)
                kept = file.read()
                file.truncate(0)
            with path.open("ab") as file:
                file.write(kept)
        except FileNotFoundError:
            return

    def events(self) -> Iterator[UUID]:
        seen: dict[UUID, Container] | None = None
        while True:
            current = {container.workspace_id: container for container in self.list_containers()}
            if seen is not None:
                for workspace_id in seen.keys() | current.keys():
                    if seen.get(workspace_id) != current.get(workspace_id):
                        yield workspace_id
            seen = current
            time.sleep(0.5)

    # --- images
    def ensure_image(self, image: str, progress: Progress) -> None:
        """There are no images: what is needed is the program, and `start` looks for it."""
        progress(1, 1)

    # --- containers
    def start(self, workspace_id: UUID, generation: int, spec: ContainerSpec) -> Container:
        with self._alone(workspace_id):
            if self.get_volume(workspace_id, generation) is None:
                raise MissingError(f"the home (generation {generation}) is not there")
            current = self._look(workspace_id, is_alone=True)
            if current and current.state is ContainerState.RUNNING and current.generation == generation:
                return current
            if current:
                self._end(workspace_id)
            return self._start(workspace_id, generation, spec)

    def _start(self, workspace_id: UUID, generation: int, spec: ContainerSpec) -> Container:
        if not spec.command:
            raise ImagePullFailedError(f"the image {spec.image} has no command for the process runtime")
        program = process_group.executable(spec.command[0])
        if program is None:
            raise ImagePullFailedError(f"{spec.command[0]} is not installed on this machine")
        home = str(self._home(workspace_id, generation))
        on_socket = any("{socket}" in word for word in (*spec.command, *spec.env.values()))
        path = self._socket(workspace_id)
        path.unlink(missing_ok=True)
        port = 0 if on_socket else _free_port()
        words = [filled(w, spec=spec, workspace_id=workspace_id, home=home, port=port, socket_path=str(path)) for w in spec.command]
        state = _State(generation, instance=secrets.token_hex(16), started_at=time.time())
        state.endpoint = f"unix:{path}" if on_socket else f"http://127.0.0.1:{port}"
        environment = self._environment(spec, home) | {process_group.MARKER: state.instance, "PORT": str(port)}
        environment |= {
            k: filled(v, spec=spec, workspace_id=workspace_id, home=home, port=port, socket_path=str(path)) for k, v in spec.env.items()
        }
        # Written down before it exists: if we die in between, its marker in the environment leads to it.
        self._save(workspace_id, state)
        try:
            self._log_file(workspace_id).unlink(missing_ok=True)
            state.pid = process_group.spawn(
                [program, *words[1:]], directory=home, environment=environment, log=self._log_file(workspace_id)
            )
        except OSError as error:
            raise ActionFailedError("the IDE cannot be started", stderr=str(error)) from error
        # A process that ended at once has no mark. Nothing that lives has this one either, so it is simply seen as stopped.
        state.mark = process_group.birth_mark(state.pid) or "ended at once"
        self._save(workspace_id, state)
        found = self._look(workspace_id, is_alone=True)
        if found is None:
            raise ActionFailedError("the IDE was removed while it was started")
        return found

    @staticmethod
    def _environment(spec: ContainerSpec, home: str) -> dict[str, str]:
        """Nothing of ours is passed on but what a program needs to run: our environment holds secrets."""
        own = str(Path(process_group.executable(spec.command[0]) or "").parent)
        kept = {key: os.environ[key] for key in ("LANG", "LC_ALL", "TZ", "USER", "LOGNAME", "SSL_CERT_FILE") if key in os.environ}
        path = os.pathsep.join([own, os.environ.get("PATH", os.defpath)])
        return {"LANG": "C.UTF-8", "SHELL": "/bin/sh"} | kept | {"PATH": path, "HOME": home}

    def delete(self, workspace_id: UUID, *, only: str | None = None) -> str:
        with self._alone(workspace_id):
            state = self._load(workspace_id)
            if only is None or (state is not None and state.instance == only):
                return self._end(workspace_id)
            return ""

    def _end(self, workspace_id: UUID) -> str:
        """End what runs; what it printed last."""
        state = self._load(workspace_id)
        if state is None:
            return ""
        if not process_group.end(state.pid, state.mark, state.instance, patience=_PATIENCE):
            raise ActionFailedError("the IDE's processes do not end")
        words = self.logs(workspace_id)
        self._socket(workspace_id).unlink(missing_ok=True)
        self._log_file(workspace_id).unlink(missing_ok=True)
        self._state_file(workspace_id).unlink(missing_ok=True)
        return words

    # --- homes
    def provision(self, workspace_id: UUID, generation: int, spec: ContainerSpec) -> None:
        self._ready()
        home = self._home(workspace_id, generation)
        if home.exists():
            return
        made = self._homes / f".new-{secrets.token_hex(8)}"
        try:
            made.mkdir(mode=0o700)
            made.rename(home)
        except OSError as error:
            if made.exists():
                made.rmdir()
            if not home.is_dir():
                raise ActionFailedError("the home cannot be created", stderr=str(error)) from error

    def delete_volume(self, workspace_id: UUID, generation: int) -> None:
        self._ready()
        container = self._look(workspace_id)
        if container and container.generation == generation and container.state is ContainerState.RUNNING:
            raise ActionFailedError("the home is in use by a running IDE")
        trash = self._homes / f".trash-{secrets.token_hex(8)}"
        try:
            self._home(workspace_id, generation).rename(trash)
            # Renaming keeps the directory's own times: the age of the leftovers counts from now.
            os.utime(trash)
            remove_tree(os.fsencode(trash))
        except FileNotFoundError:
            return
        except OSError as error:
            raise ActionFailedError("the home cannot be removed", stderr=str(error)) from error

    @contextmanager
    def read_volume(self, workspace_id: UUID, generation: int) -> Iterator[Iterator[bytes]]:
        if self.get_volume(workspace_id, generation) is None:
            raise MissingError(f"the home (generation {generation}) is not there")
        try:
            yield read_tree(os.fsencode(self._home(workspace_id, generation)))
        except OSError as error:
            raise ActionFailedError("the home cannot be read", stderr=str(error)) from error

    def home_bytes(self, workspace_id: UUID, generation: int) -> int | None:
        return tree_bytes(os.fsencode(self._home(workspace_id, generation)))

    def write_volume(self, workspace_id: UUID, generation: int, stream: Iterable[Buffer]) -> None:
        if self.get_volume(workspace_id, generation) is None:
            raise MissingError(f"the home (generation {generation}) is not there")
        write_tree(os.fsencode(self._home(workspace_id, generation)), stream)

    def remove_leftovers(self, *, older_than: datetime) -> int:
        self._ready()
        removed = 0
        for path in [*self._homes.glob(".trash-*"), *self._homes.glob(".new-*")]:
            try:
                if path.stat().st_mtime < older_than.timestamp():
                    remove_tree(os.fsencode(path))
                    removed += 1
            except FileNotFoundError:
                # Its own maker was faster.
                continue
        return removed


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _write_whole(path: Path, text: str, *, replace: bool = True) -> None:
    """The file has the old content or the new, never half of it; without `replace` the first writer wins."""
    fresh = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    fresh.write_text(text)
    fresh.chmod(0o600)
    if replace:
        fresh.replace(path)
        return
    try:
        os.link(fresh, path)
    except FileExistsError:
        pass
    finally:
        fresh.unlink()
