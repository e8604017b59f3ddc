"""Builds the parts from the configuration: which engine, which store, which executor, and says which and why.

Owns construction only. Nothing here talks to an engine beyond asking whether it answers.
"""

from collections.abc import Callable
from functools import lru_cache
from uuid import UUID

import redis
import structlog
from django.conf import settings

from codehub.config import Config
from coordinator.actuators import Tools
from coordinator.executor import CeleryExecutor, Executor, ThreadExecutor
from coordinator.providers.base import ArchiveStore, ProviderError, Runtime
from coordinator.providers.docker import DockerRuntime
from coordinator.providers.process import ProcessRuntime
from coordinator.providers.s3 import S3Store
from coordinator.runs import RunKeeper
from workspaces.models import Installation

log = structlog.get_logger(__name__)


def build_runtime(config: Config, installation: Installation) -> Runtime:
    """The engine of `CODEHUB_RUNTIME`. `auto`: the one the homes live on already, else Docker when it answers, else processes."""
    name, why = _choose_runtime(config, installation)
    log.info("runtime chosen", runtime=name, why=why)
    return _docker(config, installation) if name == "docker" else _process(config, installation)


def _choose_runtime(config: Config, installation: Installation) -> tuple[str, str]:
    if config.codehub_runtime != "auto":
        return config.codehub_runtime, "CODEHUB_RUNTIME says so"
    if installation.runtime in ("docker", "process"):
        # Docker may only be away for a moment: the homes are there all the same.
        return installation.runtime, "the homes of this installation live there"
    try:
        _docker(config, installation).identity()
    except ProviderError as error:
        return "process", f"no Docker engine answers: {error}"
    return "docker", "a Docker engine answers"


def _docker(config: Config, installation: Installation) -> Runtime:
    return DockerRuntime(
        str(installation.pk),
        host=config.docker_host,
        timeout=config.docker_timeout,
        publish=config.docker_publish,
        subnet=config.docker_subnet,
    )


def _process(config: Config, installation: Installation) -> Runtime:
    return ProcessRuntime(str(installation.pk), data_dir=config.codehub_data_dir)


def build_store(config: Config, installation: Installation) -> S3Store:
    """Object storage, below this installation's prefix."""
    return S3Store(
        endpoint_url=config.s3_endpoint_url,
        bucket=config.s3_bucket,
        prefix=config.s3_prefix or f"{installation.pk}/",
        access_key=config.aws_access_key_id,
        secret_key=config.aws_secret_access_key,
        region=config.s3_region,
    )


def build_executor(config: Config, *, runtime: Runtime, store: ArchiveStore, wake: Callable[[UUID], None] | None = None) -> Executor:
    """Threads here, or Celery. `wake` is called with a workspace's id when one of its runs ended in this process."""
    if config.codehub_executor == "celery":
        # A true cycle: the task builds its tools here.
        from coordinator.tasks import send_attempt  # noqa: PLC0415

        return CeleryExecutor(send_attempt)

    def woken(workspace_id: UUID) -> None:
        if wake is not None:
            wake(workspace_id)
        publish_wake(workspace_id, config)

    tools = Tools(runtime, store, config, RunKeeper())
    return ThreadExecutor(tools, workers=config.coordinator_workers, transfer_workers=config.coordinator_transfer_workers, wake=woken)


@lru_cache(maxsize=1)
def worker_tools() -> Tools:
    """What a Celery worker process works with, made on its first task."""
    config, installation = settings.CONFIG, Installation.objects.get()
    return Tools(build_runtime(config, installation), build_store(config, installation), config, RunKeeper())


@lru_cache(maxsize=4)
def _redis(url: str) -> "redis.Redis":
    return redis.Redis.from_url(url, socket_timeout=2, socket_connect_timeout=2)


def publish_wake(workspace_id: UUID, config: Config) -> None:
    """Ask whoever leads to look at this workspace now. Losing it costs one interval, so it may fail."""
    try:
        _redis(config.redis_url).publish(f"{config.redis_channel_wake_prefix}:ob", str(workspace_id))
    except redis.RedisError as error:
        log.info("wake-up not sent", workspace=str(workspace_id), error=str(error))
