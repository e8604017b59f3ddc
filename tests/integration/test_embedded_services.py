"""The services every integration test stands on are real, ours alone and closed to other hosts."""

import os
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.config import Config as ClientConfig
from botocore.exceptions import ClientError
from django.core.cache import cache
from django.db import connection

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


def _client(endpoint: str, access_key: str, secret_key: str) -> "S3Client":
    config = ClientConfig(retries={"total_max_attempts": 1}, proxies={})
    return boto3.client(
        "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id=access_key, aws_secret_access_key=secret_key, config=config
    )


@pytest.mark.django_db
def test_the_database_is_postgresql_and_our_role_is_no_superuser() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('server_version_num')::int >= 180000, rolsuper FROM pg_roles WHERE rolname = current_user")
        assert cursor.fetchone() == (True, False)


def test_the_cache_is_redis() -> None:
    cache.set("embedded", "redis", 10)
    assert cache.get("embedded") == "redis"


def test_s3_answers_our_key_and_refuses_any_other(s3: dict[str, str]) -> None:
    assert urlsplit(s3["S3_ENDPOINT_URL"]).hostname == "127.0.0.1"
    ours = _client(s3["S3_ENDPOINT_URL"], s3["AWS_ACCESS_KEY_ID"], s3["AWS_SECRET_ACCESS_KEY"])
    ours.put_object(Bucket=s3["S3_BUCKET"], Key="greeting", Body=b"hello")
    assert ours.get_object(Bucket=s3["S3_BUCKET"], Key="greeting")["Body"].read() == b"hello"
    theirs = _client(s3["S3_ENDPOINT_URL"], s3["AWS_ACCESS_KEY_ID"], "guessed")
    with pytest.raises(ClientError, match=r"SignatureDoesNotMatch|AccessDenied"):
        theirs.get_object(Bucket=s3["S3_BUCKET"], Key="greeting")
    ours.close()
    theirs.close()


def test_every_service_is_addressed_on_loopback() -> None:
    hosts = {urlsplit(os.environ[name]).hostname for name in ("DATABASE_URL", "REDIS_URL", "S3_ENDPOINT_URL")}
    assert hosts == {"127.0.0.1"}
