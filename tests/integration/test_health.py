"""`/healthz` and `/readyz` on real services, and with each of them gone."""

import pytest
from django.db import connection
from django.test import Client
from pytest_django import Settings

pytestmark = pytest.mark.django_db


def test_healthz_answers_without_asking_anything(client: Client) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}


def test_readyz_is_200_when_database_migrations_and_redis_are_there(client: Client) -> None:
    response = client.get("/readyz")
    assert response.status_code == 200
    assert response.json() == {"status": "ok", "checks": {"database": "ok", "migrations": "ok", "redis": "ok"}}


def test_readyz_names_redis_when_it_does_not_answer(client: Client, settings: Settings) -> None:
    settings.REDIS_URL = "redis://:secret-word@127.0.0.1:1/0"
    response = client.get("/readyz")
    assert response.status_code == 503
    assert response.json()["checks"] == {"database": "ok", "migrations": "ok", "redis": "does not answer"}
    assert b"secret-word" not in response.content


def test_readyz_counts_migrations_that_are_missing(client: Client) -> None:
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM django_migrations WHERE app = 'workspaces' AND name LIKE '0001%%'")
    response = client.get("/readyz")
    assert response.status_code == 503
    assert response.json()["checks"]["migrations"] == "1 not applied"


def test_health_pages_refuse_writing_methods(client: Client) -> None:
    assert client.post("/readyz").status_code == 405
