"""Every setting of CodeHub, typed, from the environment.

Owns names, defaults, bounds and one line of documentation each (`docs/settings.md` is generated from here).
A bad value stops the start with the variable's name and what is allowed. Must not import Django.
"""

import os
import re
import secrets
from functools import lru_cache
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

Seconds = Annotated[float, Field(gt=0, le=31_536_000)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Duration = Annotated[int, Field(ge=0, le=315_360_000)]
Limit = Annotated[int, Field(ge=0, le=1_000_000_000)]
Words = Annotated[list[str], NoDecode]

EMBEDDED_ENV_FILE = "embedded.env"


# What each address may start with.
SCHEMES: dict[str, tuple[str, ...]] = {
    "database_url": ("postgresql", "postgres"),
    "redis_url": ("redis", "rediss", "unix"),
    "s3_endpoint_url": ("http", "https"),
    "codehub_public_url": ("http", "https"),
    "codehub_alert_webhook_url": ("http", "https"),
    "email_url": ("smtp", "smtps", "smtp+tls"),
    "docker_host": ("unix", "tcp", "http", "https", "ssh"),
}
_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*(:\d+)?|\[[0-9A-Fa-f:.]+\]")


class ConfigError(SystemExit):
    """A setting is wrong. Exits with a message that names the variable and what it may be."""


class Config(BaseSettings):
    """One attribute for each environment variable; the variable's name is the attribute's in capitals."""

    model_config = SettingsConfigDict(extra="ignore", env_ignore_empty=True, frozen=True)

    # --- where it runs
    codehub_data_dir: Path = Field(Path(".codehub"), description="Directory of the embedded services, secrets and process homes.")
    port: int = Field(8000, ge=1, le=65535, description="Port of the web server.")
    host: str = Field("127.0.0.1", description="Address the web server binds to.")
    codehub_public_url: str = Field(
        "",
        description="How browsers reach CodeHub, for example `https://code.example.org`. `https` turns on secure cookies and HSTS. Empty: `http://{HOST}:{PORT}`.",
    )
    allowed_hosts: Words = Field(["localhost", "127.0.0.1", "[::1]"], description="Host names CodeHub answers to, comma separated.")
    csrf_trusted_origins: Words = Field([], description="Further origins forms may be posted from, comma separated.")
    codehub_trusted_proxies: int = Field(
        0, ge=0, le=10, description="How many reverse proxies stand in front; that many `X-Forwarded-For` hops are believed."
    )
    codehub_debug: bool = Field(False, description="Django's debug mode. Never in production.")
    codehub_admin_password: str = Field(
        "", description="Password given to user `admin` when it is first created. Empty: one is generated and printed."
    )
    django_secret_key: str = Field(
        "",
        description="Signing key. Empty: generated once into `secret-key` in the data directory. Give it when several machines share the work.",
    )
    web_threads: Count = Field(8, le=256, description="Threads for ordinary pages and API calls in one web process.")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="Least severe log lines that are written.")
    log_format: Literal["auto", "json", "console"] = Field(
        "auto", description="`json`: one object a line; `console`: for people; `auto`: console on a terminal."
    )

    # --- services
    database_url: str = Field("", description="`postgresql://user:password@host:port/name`. Empty: embedded PostgreSQL.")
    database_pool_size: Count = Field(10, le=500, description="Connections the web process keeps to PostgreSQL.")
    redis_url: str = Field("", description="`redis://host:port/0` or `unix://path`. Empty: embedded Redis.")
    s3_endpoint_url: str = Field("", description="S3 endpoint. Empty: embedded S3 server.")
    s3_bucket: str = Field("codehub", pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$", description="Bucket of the archives.")
    s3_prefix: str = Field(
        "",
        max_length=200,
        pattern=r"^([\w!.*'()-]+/)*[\w!.*'()-]*$",
        description="Prefix of every object name. Empty: `{installation id}/`.",
    )
    s3_region: str = Field("us-east-1", description="Region told to the S3 endpoint.")
    aws_access_key_id: str = Field("", description="S3 access key.")
    aws_secret_access_key: str = Field("", description="S3 secret key.")

    # --- runtime
    codehub_runtime: Literal["auto", "docker", "process"] = Field(
        "auto", description="Where workspaces run. `auto`: Docker when an engine answers, else processes."
    )
    codehub_executor: Literal["threads", "celery"] = Field(
        "threads", description="Where actuators run: threads of the coordinator or Celery workers."
    )
    docker_host: str = Field("", description="Docker engine. Empty: the local socket.")
    docker_timeout: Seconds = Field(60, description="Seconds an engine call may take.")
    docker_publish: Literal["auto", "loopback", "bridge"] = Field(
        "auto",
        description="How the proxy reaches containers: by the bridge address or a port published on loopback. `auto`: the bridge where it is on this machine or the engine is remote.",
    )
    docker_subnet: str = Field(
        "",
        description="Addresses of the workspaces' network, for example `10.90.0.0/20`, for firewall rules to name. Used when the network is made. Empty: the engine's choice.",
    )
    codehub_workspace_domain: str = Field(
        "",
        description="Domain of the workspaces' own origins (`{id}.<domain>`). Empty: `localhost` when opened on this machine, else the shared origin. `none`: always the path form.",
    )

    # --- coordinator
    coordinator_idle_interval: Seconds = Field(15, description="Seconds between full looks when nothing happens.")
    coordinator_active_interval: Seconds = Field(1, description="Seconds between full looks while something happens.")
    coordinator_active_duration: Seconds = Field(30, description="Seconds the active interval holds after a wake-up.")
    coordinator_ttl_interval: Seconds = Field(60, description="Seconds between activity copies and expiry checks.")
    coordinator_gc_interval: Seconds = Field(14400, description="Seconds between garbage collections.")
    coordinator_archive_list_interval: Seconds = Field(60, description="Seconds between listings of the archives.")
    coordinator_workers: Count = Field(20, le=500, description="Actuators that may run at once (start, stop, provision, delete).")
    coordinator_transfer_workers: Count = Field(4, le=100, description="Archives and restores that may run at once.")
    reconciler_max_retries: Count = Field(3, le=100, description="The attempt that fails for the last time.")
    reconciler_retry_backoff: Seconds = Field(30, description="Seconds before the first retry; doubles, with jitter.")
    reconciler_starting_timeout: Seconds = Field(300, description="Seconds STARTING may take.")
    reconciler_stopping_timeout: Seconds = Field(300, description="Seconds STOPPING may take.")
    reconciler_archiving_timeout: Seconds = Field(1800, description="Seconds ARCHIVING may take.")
    reconciler_restoring_timeout: Seconds = Field(1800, description="Seconds RESTORING may take.")
    reconciler_provisioning_timeout: Seconds = Field(300, description="Seconds PROVISIONING may take.")
    reconciler_create_empty_archive_timeout: Seconds = Field(300, description="Seconds CREATE_EMPTY_ARCHIVE may take.")
    reconciler_deleting_timeout: Seconds = Field(300, description="Seconds DELETING may take before operators are told.")
    restore_max_bytes: int = Field(1_099_511_627_776, ge=1, description="Largest home a restore may unpack, in bytes.")
    restore_max_files: int = Field(20_000_000, ge=1, description="Most files a restore may unpack.")

    # --- idle, limits, clean-up
    ttl_standby_seconds: Duration = Field(600, description="Seconds without use before a running workspace stops; 0 = never.")
    ttl_archive_seconds: Duration = Field(1800, description="Seconds in standby before a home is archived; 0 = never.")
    ttl_min_seconds: Duration = Field(60, ge=1, description="Smallest TTL an owner may choose.")
    ttl_max_seconds: Duration = Field(2_592_000, ge=1, description="Largest TTL an owner may choose.")
    ttl_allow_never: bool = Field(True, description="Whether an owner may choose 0 (never).")
    activity_flush_interval: Seconds = Field(30, description="Seconds between copies of recorded use to Redis.")
    limit_max_running_per_user: Limit = Field(2, description="Running workspaces a user may have.")
    limit_max_running_global: Limit = Field(100, description="Running workspaces all users may have together.")
    limit_max_workspaces_per_user: Limit = Field(100, description="Workspaces a user may own, whatever their state.")
    gc_grace_seconds: Duration = Field(7200, description="Seconds something must be seen as an orphan before it is removed.")

    # --- events, API
    redis_channel_sse_prefix: str = Field("codehub:sse", description="Redis channels of live events: `{prefix}:{user_id}`.")
    redis_channel_wake_prefix: str = Field("codehub:wake", description="Redis channels of wake-ups: `{prefix}:ob` and `{prefix}:wc`.")
    sse_heartbeat_interval: Seconds = Field(30, description="Seconds between heartbeats of a live stream.")
    sse_max_streams_per_user: Count = Field(600, description="Live streams one user may hold in one web process.")
    token_ttl_days: Count = Field(30, le=3650, description="Days a token lives unless its owner says otherwise.")
    api_throttle_user: str = Field(
        "6000/min", pattern=r"^[1-9]\d{0,8}/(s|sec|second|m|min|minute|h|hour|d|day)$", description="API calls a signed-in user may make."
    )
    api_throttle_anon: str = Field(
        "120/min",
        pattern=r"^[1-9]\d{0,8}/(s|sec|second|m|min|minute|h|hour|d|day)$",
        description="API calls an anonymous address may make.",
    )
    login_failure_limit: Count = Field(10, description="Failed logins of one account from one address before it must wait.")
    login_cooloff_seconds: Count = Field(300, description="Seconds a throttled login must wait.")
    api_max_body_bytes: Count = Field(262_144, le=100_000_000, description="Largest body of an API call or form.")

    # --- telling people
    admins: Words = Field([], description="Operators' e-mail addresses, comma separated.")
    email_url: str = Field("", description="`smtp://user:password@host:port` (`smtps`, `smtp+tls`). Empty: mail goes to the log.")
    default_from_email: str = Field("codehub@localhost", description="Sender of mail.")
    codehub_alert_webhook_url: str = Field("", description="URL that receives a JSON POST for each alert.")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, dotenv_settings

    @field_validator("allowed_hosts", "csrf_trusted_origins", "admins", mode="before")
    @classmethod
    def _split_words(cls, value: Any) -> Any:
        if isinstance(value, str):
            return [word.strip() for word in value.split(",") if word.strip()]
        return value

    @field_validator(*SCHEMES)
    @classmethod
    def _check_url(cls, value: str, info: ValidationInfo) -> str:
        if value:
            _require_url(value, SCHEMES[str(info.field_name)])
        return value.rstrip("/")

    @field_validator("docker_subnet")
    @classmethod
    def _check_subnet(cls, value: str) -> str:
        if value:
            ip_network(value)
        return value

    @field_validator("codehub_public_url")
    @classmethod
    def _check_public_url(cls, value: str) -> str:
        if value and urlsplit(value).path:
            raise ValueError("must be an origin without a path: CodeHub lives at the root of its host")
        return value

    @field_validator("csrf_trusted_origins")
    @classmethod
    def _check_origins(cls, value: list[str]) -> list[str]:
        for origin in value:
            _require_url(origin, ("http", "https"))
        return value

    @field_validator("allowed_hosts")
    @classmethod
    def _check_hosts(cls, value: list[str]) -> list[str]:
        for name in value:
            if name != "*" and not _HOST_NAME.fullmatch(name.removeprefix(".")):
                raise ValueError(f"{name!r} is not a host name: give names without scheme, port or path")
        return value

    @field_validator("admins")
    @classmethod
    def _check_addresses(cls, value: list[str]) -> list[str]:
        for address in value:
            if not re.fullmatch(r"[^@\s]+@[^@\s]+", address):
                raise ValueError(f"{address!r} is not an e-mail address")
        return value

    @field_validator("codehub_workspace_domain")
    @classmethod
    def _check_domain(cls, value: str) -> str:
        if value and not _HOST_NAME.fullmatch(value):
            raise ValueError("must be a domain name such as work.example.org, localhost, or none")
        return value

    @model_validator(mode="after")
    def _check_ttl_bounds(self) -> Self:
        if self.ttl_min_seconds > self.ttl_max_seconds:
            raise ValueError("TTL_MIN_SECONDS must not exceed TTL_MAX_SECONDS")
        return self

    @property
    def public_url(self) -> str:
        return self.codehub_public_url or f"http://{self.host}:{self.port}"

    @property
    def is_https(self) -> bool:
        return self.public_url.startswith("https://")

    @property
    def workspace_domain(self) -> str:
        """The configured domain, or an empty string for `localhost` detection and for `none`."""
        return "" if self.codehub_workspace_domain == "none" else self.codehub_workspace_domain

    @property
    def path_form_only(self) -> bool:
        return self.codehub_workspace_domain == "none"

    def operation_timeout(self, operation: str) -> float:
        """Seconds the named operation may take."""
        return float(getattr(self, f"reconciler_{operation.lower()}_timeout"))

    def secret_key(self) -> str:
        """The signing key: the one given, or the one kept in the data directory, made on first use."""
        if self.django_secret_key:
            return self.django_secret_key
        try:
            return generated_secret(self.codehub_data_dir / "secret-key", length=50)
        except OSError as error:
            raise _unusable(error) from None


def _require_url(value: str, schemes: tuple[str, ...]) -> None:
    """Raise ValueError, without repeating the value (it may hold a password), unless it can lead somewhere."""
    parts = urlsplit(value)
    if parts.scheme not in schemes or "://" not in value:
        raise ValueError(f"must start with {', '.join(f'{scheme}://' for scheme in schemes)}")
    try:
        port = parts.port
    except ValueError:
        raise ValueError("the port is not a number from 1 to 65535") from None
    if port == 0 or (parts.scheme != "unix" and not parts.hostname and "host=" not in parts.query):
        raise ValueError("it names no host, or port 0")


def generated_secret(path: Path, *, length: int = 24) -> str:
    """The secret kept in `path` (mode 0600), made on first use. Two processes that race agree on one value."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        value = path.read_text().strip()
        if value:
            return value
        # Another process created the file and has not written it yet, or died before it could.
        path.write_text(secrets.token_urlsafe(length))
        return path.read_text().strip()
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_urlsafe(length))
    return path.read_text().strip()


def _unusable(error: OSError) -> ConfigError:
    reason = f"{error.strerror}: {error.filename}"
    return ConfigError(
        f"CodeHub cannot start, a setting is wrong:\n  CODEHUB_DATA_DIR: it must be a directory this user may write to ({reason})"
    )


def _explain(error: ValidationError) -> str:
    lines = []
    for problem in error.errors():
        name = str(problem["loc"][0]).upper() if problem["loc"] else ""
        message = problem["msg"].removeprefix("Value error, ")
        given = f" (given: {problem['input']!r})" if name and "PASSWORD" not in name and "SECRET" not in name and "URL" not in name else ""
        lines.append(f"{name}: {message}{given}" if name else message)
    return "CodeHub cannot start, a setting is wrong:\n  " + "\n  ".join(lines)


@lru_cache(maxsize=1)
def load() -> Config:
    """Read the environment once. Embedded services publish their addresses in a file that the environment overrides."""
    data_dir = Path(os.environ.get("CODEHUB_DATA_DIR") or ".codehub")
    try:
        return Config(_env_file=data_dir / EMBEDDED_ENV_FILE, _env_file_encoding="utf-8")
    except ValidationError as error:
        raise ConfigError(_explain(error)) from None
    except OSError as error:
        raise _unusable(error) from None
