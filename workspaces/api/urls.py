"""Addresses of the API; each with and without a slash at the end."""

from django.urls import URLPattern, re_path

from workspaces.api.account import ImageListView, LoginView, LogoutView, MeView, TokenListView, TokenView
from workspaces.api.base import UnknownAddressView
from workspaces.api.documents import DocsView, EventsView, SchemaView
from workspaces.api.workspaces import HistoryView, LogsView, RecoverView, WorkspaceListView, WorkspaceView

urlpatterns: list[URLPattern] = [
    re_path(r"^v1/auth/login/?$", LoginView.as_view(), name="api-login"),
    re_path(r"^v1/auth/logout/?$", LogoutView.as_view(), name="api-logout"),
    re_path(r"^v1/tokens/?$", TokenListView.as_view(), name="api-tokens"),
    re_path(r"^v1/tokens/(?P<token_id>[^/]+)/?$", TokenView.as_view(), name="api-token"),
    re_path(r"^v1/me/?$", MeView.as_view(), name="api-me"),
    re_path(r"^v1/workspaces/?$", WorkspaceListView.as_view(), name="api-workspaces"),
    re_path(r"^v1/workspaces/(?P<workspace_id>[^/]+)/?$", WorkspaceView.as_view(), name="api-workspace"),
    re_path(r"^v1/workspaces/(?P<workspace_id>[^/]+)/recover/?$", RecoverView.as_view(), name="api-recover"),
    re_path(r"^v1/workspaces/(?P<workspace_id>[^/]+)/history/?$", HistoryView.as_view(), name="api-history"),
    re_path(r"^v1/workspaces/(?P<workspace_id>[^/]+)/logs/?$", LogsView.as_view(), name="api-logs"),
    re_path(r"^v1/images/?$", ImageListView.as_view(), name="api-images"),
    re_path(r"^v1/events/?$", EventsView.as_view(), name="api-events"),
    re_path(r"^v1/schema/?$", SchemaView.as_view(), name="api-schema"),
    re_path(r"^v1/docs/?$", DocsView.as_view(), name="api-docs"),
    re_path(r"^", UnknownAddressView.as_view(), name="api-unknown"),
]
