"""Addresses of live pages. The ASGI application puts sessions and the origin check in front of them."""

from typing import Any

from django.urls import URLPattern, path

from workspaces.consumers import DashboardConsumer, WorkspaceConsumer

# Channels routes ASGI applications with Django's patterns, which are typed for views.
_dashboard: Any = DashboardConsumer.as_asgi()
_workspace: Any = WorkspaceConsumer.as_asgi()

websocket_urlpatterns: list[URLPattern] = [
    path("ws/dashboard/", _dashboard),
    path("ws/workspaces/<uuid:workspace_id>/", _workspace),
]
