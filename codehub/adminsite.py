"""The operators' admin site: who gets in, and which pages it has beside those of the models.

Wiring only: it registers nothing itself and reads no table. Signing in is the dashboard's business, so that
throttling of logins is the same everywhere.
"""

from collections.abc import Callable
from functools import update_wrapper
from typing import Any, cast
from urllib.parse import quote

from django.conf import settings
from django.contrib import admin
from django.contrib.admin.apps import AdminConfig
from django.contrib.auth import REDIRECT_FIELD_NAME
from django.core.exceptions import BadRequest, PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.urls import URLPattern, URLResolver, path, reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext_lazy as _

View = Callable[..., HttpResponseBase]


class OperatorsAdminSite(admin.AdminSite):
    """Django's admin with CodeHub's name, CodeHub's login page and further pages."""

    site_header = _("CodeHub operators")
    site_title = _("CodeHub operators")
    index_title = _("Operators' desk")
    # The lists are wide: a column of links beside them would take the place of theirs.
    enable_nav_sidebar = False

    def __init__(self, name: str = "admin") -> None:
        super().__init__(name)
        self._pages: list[tuple[str, View, str]] = []

    def register_page(self, route: str, view: View, *, name: str) -> None:
        """Add a page below the admin's address, for signed-in operators only."""
        self._pages.append((route, view, name))

    def get_urls(self) -> list[URLPattern | URLResolver]:
        own: list[URLPattern | URLResolver] = [path(route, self.admin_view(view), name=name) for route, view, name in self._pages]
        return [*own, *super().get_urls()]

    def get_app_list(self, request: HttpRequest, app_label: str | None = None) -> list[Any]:
        """What operators come for stands first; who failed to sign in, last."""
        order = {"workspaces": 0, "auth": 1, "admin": 2}
        return sorted(super().get_app_list(request, app_label), key=lambda app: order.get(app["app_label"], 3))

    def admin_view(self, view: Any, cacheable: bool = False) -> Any:
        """PostgreSQL's text holds no NUL: an address with one matches nothing and would end as a server error."""
        inner = super().admin_view(view, cacheable)

        def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            if "\0" in request.path or any("\0" in text for key, texts in request.GET.lists() for text in (key, *texts)):
                raise BadRequest
            response: HttpResponseBase = inner(request, *args, **kwargs)
            return response

        return update_wrapper(guarded, inner)

    def login(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Send on to the one login page. A signed-in user who is no operator is told so: logging in again would not help."""
        target = request.GET.get(REDIRECT_FIELD_NAME, "")
        if not url_has_allowed_host_and_scheme(target, allowed_hosts={request.get_host()}, require_https=request.is_secure()):
            target = reverse("admin:index", current_app=self.name)
        if self.has_permission(request):
            return HttpResponseRedirect(target)
        if request.user.is_authenticated:
            raise PermissionDenied
        return HttpResponseRedirect(f"{settings.LOGIN_URL}?{REDIRECT_FIELD_NAME}={quote(target)}")


class OperatorsAdminConfig(AdminConfig):
    default_site = "codehub.adminsite.OperatorsAdminSite"


def operators_site() -> OperatorsAdminSite:
    """The site in use, with its own methods visible to the type checker."""
    return cast(OperatorsAdminSite, admin.site)
