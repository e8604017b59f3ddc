"""The domain's Django app: models, services, API, dashboard, admin and proxy."""

from importlib import import_module

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _

from workspaces.column_names import translate_names


class WorkspacesConfig(AppConfig):
    name = "workspaces"
    verbose_name = _("Workspaces")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        import_module("workspaces.proxy.checks")
        translate_names(self.get_models())
