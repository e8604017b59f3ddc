"""Settings are typed, refuse nonsense by name, keep secrets closed, and their documentation is what the code says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from codehub.config import Config, ConfigError, generated_secret, load
from codehub.settings_docs import PAGE, page

ROOT = Path(__file__).resolve().parents[2]
WRONG = [
    ("DOCKER_SUBNET", "10.0.0.1/8"),
    ("TTL_STANDBY_SECONDS", "ten"),
    ("PORT", "70000"),
    ("CODEHUB_RUNTIME", "kubernetes"),
    ("DATABASE_URL", "mysql://somewhere/db"),
    ("REDIS_URL", "localhost"),
    ("S3_ENDPOINT_URL", "ftp://somewhere"),
    ("API_THROTTLE_USER", "plenty"),
    ("COORDINATOR_IDLE_INTERVAL", "0"),
    ("TTL_ALLOW_NEVER", "perhaps"),
    ("TTL_MIN_SECONDS", "99999999"),
    ("TTL_STANDBY_SECONDS", "99999999999999999999"),
    ("LIMIT_MAX_RUNNING_GLOBAL", "99999999999999"),
    ("DATABASE_URL", "postgresql://"),
    ("DATABASE_URL", "postgresql://user:hidden@host:notaport/db"),
    ("REDIS_URL", "redis://host:port"),
    ("S3_ENDPOINT_URL", "http://"),
    ("S3_BUCKET", "Not_A_Bucket"),
    ("S3_PREFIX", "/from/the/root"),
    ("API_THROTTLE_USER", "0/min"),
    ("CODEHUB_PUBLIC_URL", "https://host/codehub"),
    ("CODEHUB_WORKSPACE_DOMAIN", "https://work.example.org"),
    ("ALLOWED_HOSTS", "https://code.example.org"),
    ("CSRF_TRUSTED_ORIGINS", "code.example.org"),
    ("ADMINS", "nobody"),
    ("EMAIL_URL", "mail.example.org"),
    ("DOCKER_HOST", "nonsense"),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_bad_value_is_refused_with_the_name_of_its_variable(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    load.cache_clear()
    try:
        with pytest.raises(ConfigError) as refused:
            load()
    finally:
        load.cache_clear()
    assert name in str(refused.value)


RIGHT = [
    ("DATABASE_URL", "postgresql:///codehub?host=/run/postgresql"),
    ("DATABASE_URL", "postgresql://u:p%40@db.example.org/codehub?sslmode=require"),
    ("REDIS_URL", "unix:///run/redis.sock?db=1"),
    ("REDIS_URL", "rediss://:pass@cache:6380/0"),
    ("S3_PREFIX", "team/codehub-"),
    ("DOCKER_HOST", "unix:///run/docker.sock"),
    ("DOCKER_HOST", "tcp://127.0.0.1:2375"),
    ("ALLOWED_HOSTS", ".example.org, 10.0.0.1, [::1], *"),
    ("CSRF_TRUSTED_ORIGINS", "https://*.example.org"),
    ("CODEHUB_WORKSPACE_DOMAIN", "none"),
    ("EMAIL_URL", "smtp+tls://user:pass@mail:587"),
    ("TTL_STANDBY_SECONDS", ""),
]


@pytest.mark.parametrize(("name", "value"), RIGHT)
def test_a_good_value_is_taken(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    assert Config().codehub_data_dir


def test_a_wrong_secret_is_not_repeated_in_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "mysql://user:hidden-word@host/db")
    load.cache_clear()
    try:
        with pytest.raises(ConfigError) as refused:
            load()
    finally:
        load.cache_clear()
    assert "hidden-word" not in str(refused.value)


def test_nonsense_in_a_setting_stops_manage_py_with_its_name(tmp_path: Path) -> None:
    env = {**os.environ, "TTL_STANDBY_SECONDS": "ten", "CODEHUB_DATA_DIR": str(tmp_path)}
    result = subprocess.run([sys.executable, str(ROOT / "manage.py"), "check"], env=env, capture_output=True, text=True)
    assert result.returncode == 1
    assert "TTL_STANDBY_SECONDS" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_database_that_is_not_there_is_named_without_a_traceback_or_its_password(tmp_path: Path) -> None:
    env = {**os.environ, "DATABASE_URL": "postgresql://codehub:hidden-word@127.0.0.1:9/codehub", "CODEHUB_DATA_DIR": str(tmp_path)}
    result = subprocess.run([sys.executable, str(ROOT / "manage.py"), "prepare_database"], env=env, capture_output=True, text=True)
    assert result.returncode == 1
    assert "DATABASE_URL" in result.stderr
    assert "Traceback" not in result.stderr
    assert "hidden-word" not in result.stderr


def test_a_data_directory_that_cannot_be_one_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match="CODEHUB_DATA_DIR"):
            Config(codehub_data_dir=place, django_secret_key="").secret_key()


def test_the_environment_overrides_what_embedded_services_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "embedded.env").write_text("REDIS_URL=redis://127.0.0.1:1/0\nS3_ENDPOINT_URL=http://127.0.0.1:2\n")
    monkeypatch.setenv("CODEHUB_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:9/0")
    monkeypatch.delenv("S3_ENDPOINT_URL")
    load.cache_clear()
    try:
        config = load()
    finally:
        load.cache_clear()
    assert config.redis_url == "redis://127.0.0.1:9/0"
    assert config.s3_endpoint_url == "http://127.0.0.1:2"


def test_a_generated_secret_is_closed_to_others_and_stays_the_same(tmp_path: Path) -> None:
    path = tmp_path / "new" / "secret"
    first = generated_secret(path)
    assert len(first) >= 24
    assert generated_secret(path) == first
    assert path.stat().st_mode & 0o777 == 0o600


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError):
        setattr(Config(), "port", 1)  # noqa: B010 (a plain assignment would not pass the type checker)


def test_the_settings_page_says_what_the_code_says() -> None:
    assert PAGE.read_text() == page(), "run: python -m codehub.settings_docs"


def test_every_setting_has_a_line_of_documentation() -> None:
    assert [name for name, field in Config.model_fields.items() if not field.description] == []
