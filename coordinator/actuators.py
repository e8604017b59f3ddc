"""The steps of each operation. Every one is idempotent and checks that its run is still its own before each call outside.

Owns what a run does and how a failure is told (reason and context, without secrets). It neither decides what comes next nor
touches a workspace's row.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import structlog
from django.db import DatabaseError

from codehub.config import Config
from coordinator.archives import ArchiveResult, archive_home, empty_archive, meta_key, rebuild_meta, restore_home
from coordinator.providers.base import (
    ActionFailedError,
    ArchiveCorruptedError,
    ArchiveStore,
    Container,
    ContainerSpec,
    ContainerState,
    ImagePullFailedError,
    MissingError,
    ProviderError,
    Runtime,
    UnreachableError,
)
from coordinator.runs import FencedError, InterruptedRunError, OpenRun, RunKeeper, record_log_tail
from coordinator.specs import load_specs
from workspaces.phases import Action, AttemptState, ErrorReason

log = structlog.get_logger(__name__)
T = TypeVar("T")

TRIES = 3
LISTEN_SECONDS = 30.0
_LOG_LINES = 200
# There is one, or a few after somebody renamed them by hand; what still stands after that is for the next look to find.
_CONTAINERS = 5


@dataclass(frozen=True, slots=True)
class Tools:
    """What runs work with."""

    runtime: Runtime
    store: ArchiveStore
    config: Config
    keeper: RunKeeper
    pause: Callable[[float], None] = time.sleep
    listen_seconds: float = LISTEN_SECONDS
    """How long a start waits for the port; slower ones are left to later looks."""


def run_attempt(attempt_id: UUID, tools: Tools) -> UUID | None:
    """Run a queued attempt to its end and give its workspace's id. None: it was not ours to run, or was taken away."""
    run = tools.keeper.take(attempt_id)
    if run is None:
        return None
    logger = log.bind(workspace=str(run.workspace_id), action=str(run.action), attempt=str(attempt_id))
    try:
        result = _perform(run, tools)
    except FencedError:
        logger.warning("run was taken away")
        tools.keeper.end(run, AttemptState.LOST, result={})
        return None
    except InterruptedRunError:
        logger.info("run given up, the executor stops")
        tools.keeper.end(run, AttemptState.LOST, result={})
        return run.workspace_id
    except DatabaseError:
        # Without its row a run cannot know whether it is still wanted: it ends here and is noticed as lost.
        logger.exception("run ended, the database does not answer")
        tools.keeper.forget(run)
        return None
    except Exception as error:
        if not isinstance(error, ProviderError):
            logger.exception("run failed in an unforeseen way")
        failure = scrubbed(failure_of(run, error), tools.config)
        run.log_text = scrubbed(run.log_text, tools.config)
        logger.warning("run failed", reason=failure["reason"], error=failure["message"])
        tools.keeper.end(run, AttemptState.FAILED, result={}, error=failure)
        return run.workspace_id
    tools.keeper.end(run, AttemptState.SUCCEEDED, result=result)
    return run.workspace_id


def _perform(run: OpenRun, tools: Tools) -> dict[str, Any]:
    removals: dict[Action, Callable[[OpenRun, Tools], dict[str, Any]]] = {Action.DELETE_VOLUME: _delete_volume, Action.DELETE: _delete}
    if run.action in removals:
        return removals[run.action](run, tools)
    makings: dict[Action, Callable[[OpenRun, Tools, ContainerSpec], dict[str, Any]]] = {
        Action.PROVISION: _provision,
        Action.RESTORE: _restore,
        Action.ARCHIVE: _archive,
        Action.START: _start,
    }
    return makings[run.action](run, tools, load_specs([run.workspace_id])[run.workspace_id])


def _persistently(run: OpenRun, tools: Tools, call: Callable[[], T]) -> T:
    """A call outside, tried again when it only could not be reached for a moment."""
    for number in range(1, TRIES + 1):
        run.check()
        try:
            return call()
        except ProviderError as error:
            if not error.transient or number == TRIES:
                raise
            tools.pause(0.1 * 4**number)
    raise AssertionError("unreachable")


def _provision(run: OpenRun, tools: Tools, spec: ContainerSpec) -> dict[str, Any]:
    run.begin("provision")
    _persistently(run, tools, partial(tools.runtime.provision, run.workspace_id, run.params["generation"], spec))
    return {}


def _restore(run: OpenRun, tools: Tools, spec: ContainerSpec) -> dict[str, Any]:
    """One pass only: a second must go into a fresh volume, which the controller names."""
    run.begin("restore")
    result = restore_home(
        tools.runtime,
        tools.store,
        workspace_id=run.workspace_id,
        generation=run.params["generation"],
        key=run.params["key"],
        expected_sha256=run.params.get("sha256") or "",
        spec=spec,
        max_bytes=tools.config.restore_max_bytes,
        max_files=tools.config.restore_max_files,
        progress=run.progress,
        check=run.check,
    )
    return _facts(result)


def _archive(run: OpenRun, tools: Tools, spec: ContainerSpec) -> dict[str, Any]:
    key = run.params["key"]
    if run.params.get("repair"):
        run.begin("repair")
        _persistently(run, tools, partial(rebuild_meta, tools.store, key, run.params["sha256"], check=run.check))
        return {}
    if run.params.get("empty"):
        run.begin("archive")
        empty = partial(empty_archive, tools.store, key=key, uid=spec.uid, gid=spec.gid, check=run.check)
        return _facts(_persistently(run, tools, empty))
    run.begin("archive")
    pack = partial(
        archive_home,
        tools.runtime,
        tools.store,
        workspace_id=run.workspace_id,
        generation=run.params["generation"],
        key=key,
        progress=run.progress,
        check=run.check,
        begin=run.begin,
    )
    return _facts(_persistently(run, tools, pack))


def _facts(result: ArchiveResult) -> dict[str, Any]:
    return {
        "sha256": result.sha256,
        "size": result.size,
        "files": result.files,
        "skipped": result.skipped,
        "uncompressed": result.uncompressed,
    }


def _delete_volume(run: OpenRun, tools: Tools) -> dict[str, Any]:
    run.begin("delete volume")
    if run.params.get("key"):
        run.facts["kept"] = True
        _refuse_without_archive(run, tools, run.params["key"])
        # Said before the first call: a sign of life may have saved the former word already.
        run.facts["kept"] = False
    generations = {int(run.params["generation"])} - {0}
    if run.params.get("all"):
        volumes = _persistently(run, tools, tools.runtime.list_volumes)
        generations |= {volume.generation for volume in volumes if volume.workspace_id == run.workspace_id}
    for generation in sorted(generations):
        _persistently(run, tools, partial(tools.runtime.delete_volume, run.workspace_id, generation))
    return {"generations": sorted(generations)}


def _refuse_without_archive(run: OpenRun, tools: Tools, key: str) -> None:
    """The last look before the only copy on disk goes: the run may have waited long for its turn."""
    for name in (key, meta_key(key)):
        if _persistently(run, tools, partial(tools.store.head, name)) is None:
            raise MissingError("the archive is not in object storage: the home stays on disk")


def _delete(run: OpenRun, tools: Tools) -> dict[str, Any]:
    """Only what was seen by a run that was still wanted: one that froze before its call must not remove a newer container."""
    run.begin("delete")
    for _ in range(_CONTAINERS):
        found = _persistently(run, tools, partial(tools.runtime.get_container, run.workspace_id))
        if found is None:
            break
        words = _persistently(run, tools, partial(tools.runtime.delete, run.workspace_id, only=found.instance_id))
        _record_words(run, words)
    return {}


def _start(run: OpenRun, tools: Tools, spec: ContainerSpec) -> dict[str, Any]:
    run.begin("image")
    _persistently(run, tools, partial(tools.runtime.ensure_image, spec.image, _PullClock(run)))
    run.begin("start")
    former = _persistently(run, tools, partial(tools.runtime.get_container, run.workspace_id))
    if former is not None and former.state is ContainerState.STOPPED:
        # It is replaced: what it said before it died would be gone with it.
        _keep_logs(run, tools)
    try:
        container = _persistently(run, tools, partial(tools.runtime.start, run.workspace_id, run.params["generation"], spec))
        run.begin("listen")
        listening = _wait_until_it_listens(run, tools, container, spec)
    except ActionFailedError:
        _keep_logs(run, tools)
        raise
    return {"endpoint": container.endpoint, "instance": container.instance_id, "listening": listening}


class _PullClock:
    """Counts the time in which a pull moved: it does not count towards the operation's limit."""

    def __init__(self, run: OpenRun) -> None:
        self._run = run
        self._moved = time.monotonic()
        self._done = -1

    def __call__(self, done: int, total: int | None) -> None:
        now = time.monotonic()
        # Once all is there it is unpacked, and the engine speaks only when that moves.
        if done != self._done or done == total:
            self._run.facts["pull_seconds"] = round(self._run.facts.get("pull_seconds", 0.0) + min(now - self._moved, 30.0), 3)
            self._moved, self._done = now, done
        self._run.progress(done, total)


def _wait_until_it_listens(run: OpenRun, tools: Tools, container: Container, spec: ContainerSpec) -> bool:
    """Wait for the port, so that the end of this run completes the operation at once."""
    began = looked = time.monotonic()
    wait = 0.01
    while not tools.runtime.probe(container, spec):
        now = time.monotonic()
        if now - began > tools.listen_seconds:
            return False
        if now - looked >= 0.5:
            looked = now
            run.check()
            current = tools.runtime.get_container(run.workspace_id)
            if current is None or current.state is not ContainerState.RUNNING:
                detail = current.detail if current else "the container is gone"
                raise ActionFailedError("the container ended before it listened", exit_code=_exit_code(current), stderr=detail)
        tools.pause(wait)
        wait = min(wait * 1.5, 0.1)
    return True


def _exit_code(container: Container | None) -> int | None:
    return container.exit_code if container else None


def _keep_logs(run: OpenRun, tools: Tools) -> None:
    """What the IDE printed last, for the people who ask why. Failing to get it fails nothing."""
    try:
        text = tools.runtime.logs(run.workspace_id, _LOG_LINES)
    except ProviderError as error:
        log.info("logs could not be read", workspace=str(run.workspace_id), error=str(error))
        return
    _record_words(run, text)


def _record_words(run: OpenRun, text: str) -> None:
    if text:
        run.log_text = text
        record_log_tail(run.workspace_id, text)


def failure_of(run: OpenRun, error: Exception) -> dict[str, Any]:
    """The reason and its context, as the controller and people read it."""
    message = str(error)[:2000] or type(error).__name__
    archive_context = {"archive_key": run.params.get("key"), "detail": message}
    if isinstance(error, UnreachableError):
        context: dict[str, Any] = {"endpoint": error.endpoint, "status_code": error.status_code, "error": message}
        return {"reason": ErrorReason.UNREACHABLE, "message": message, "context": context}
    if isinstance(error, ArchiveCorruptedError):
        return {"reason": ErrorReason.ARCHIVE_CORRUPTED, "message": message, "context": archive_context}
    if isinstance(error, MissingError) and run.action is Action.RESTORE:
        return {"reason": ErrorReason.DATA_LOST, "message": message, "context": archive_context}
    stderr = error.stderr if isinstance(error, ProviderError) else ""
    context = {
        "action": run.action,
        "exit_code": error.exit_code if isinstance(error, ProviderError) else None,
        "stderr": (stderr or run.log_text)[-2000:],
    }
    reason = ErrorReason.IMAGE_PULL_FAILED if isinstance(error, ImagePullFailedError) else ErrorReason.ACTION_FAILED
    return {"reason": reason, "message": message, "context": context}


_USERINFO = re.compile(r"(://)[^/\s@]+@")


def scrubbed(value: Any, config: Config) -> Any:
    """The same value without anything secret in its texts."""
    secrets = [config.aws_secret_access_key, config.django_secret_key, config.codehub_admin_password]
    # An access key's name that is an ordinary word (the embedded one is) would blot out every text that uses the word.
    names = [config.aws_access_key_id] if len(config.aws_access_key_id) >= 16 else []
    return _scrub(value, [secret for secret in secrets + names if len(secret) >= 4])


def _scrub(value: Any, secrets: list[str]) -> Any:
    if isinstance(value, dict):
        return {key: _scrub(item, secrets) for key, item in value.items()}
    if isinstance(value, list):
        return [_scrub(item, secrets) for item in value]
    if not isinstance(value, str) or isinstance(value, (ErrorReason, Action)):
        return value
    for secret in secrets:
        value = value.replace(secret, "***")
    return _USERINFO.sub(r"\1***@", value)
