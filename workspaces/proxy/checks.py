"""System checks about where workspaces are served: an operator is warned when pages of workspaces could reach the dashboard."""

from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core import checks

_LOCAL = ("localhost", "127.0.0.1", "[::1]", "::1", "testserver", "0.0.0.0", ".localhost")  # noqa: S104


@checks.register(checks.Tags.security)
def check_origins(app_configs: Any, **kwargs: Any) -> list[checks.CheckMessage]:
    """W001: workspaces share the dashboard's origin. W002: they can set cookies for it."""
    config = settings.CONFIG
    public = urlsplit(config.public_url).hostname or ""
    remote = [name for name in [*config.allowed_hosts, public] if name not in _LOCAL]
    if not config.workspace_domain:
        if config.path_form_only or not remote:
            return []
        return [
            checks.Warning(
                "Workspaces are served on the dashboard's own origin: a page in a workspace can act as its owner.",
                hint="Set CODEHUB_WORKSPACE_DOMAIN to a domain with a wildcard record, or to `none` if that is wanted.",
                id="codehub.W001",
            )
        ]
    domain = config.workspace_domain
    if public == domain or public.endswith("." + domain):
        return [
            checks.Warning(
                "The dashboard is inside the workspaces' domain: scripts in a workspace can set cookies for it.",
                hint="Give CODEHUB_WORKSPACE_DOMAIN a domain of its own, best one that shares no registered name with the dashboard.",
                id="codehub.W002",
            )
        ]
    return []
