"""The coordinator's Django app: it owns management commands and no models."""

from django.apps import AppConfig


class CoordinatorConfig(AppConfig):
    name = "coordinator"
