"""Where each address leads. Workspace traffic goes to the proxy before it gets here; what it cannot forward is shown by `gate`."""

from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path, re_path

from codehub.health import healthz, readyz
from codehub.metrics import metrics
from workspaces.proxy.pages import gate

urlpatterns: list[URLPattern | URLResolver] = [
    path("healthz", healthz, name="healthz"),
    path("readyz", readyz, name="readyz"),
    path("metrics", metrics, name="metrics"),
    path("api/", include("workspaces.api.urls")),
    path("admin/", admin.site.urls),
    re_path(r"^w/(?P<workspace_id>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?P<rest>/.*)?$", gate, name="workspace-gate"),
    path("", include("workspaces.urls")),
]

handler400 = "workspaces.views_errors.bad_request"
handler403 = "workspaces.views_errors.permission_denied"
handler404 = "workspaces.views_errors.not_found"
handler500 = "workspaces.views_errors.server_error"
