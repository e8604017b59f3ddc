"""The API's own description: OpenAPI as JSON, and a page to browse and try it, served from our own static files."""

import copy
from functools import lru_cache
from typing import Any

from django.contrib.auth.mixins import LoginRequiredMixin
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.csrf import ensure_csrf_cookie
from drf_spectacular.generators import SchemaGenerator
from rest_framework.request import Request
from rest_framework.response import Response

from workspaces.api import schema
from workspaces.api.base import ApiView
from workspaces.api.errors import ApiError
from workspaces.models import Image


@lru_cache(maxsize=1)
def openapi_document() -> dict[str, Any]:
    """The schema; the same for every caller, made once."""
    document: dict[str, Any] = SchemaGenerator().get_schema(request=None, public=True)  # type: ignore[no-untyped-call]
    return document


def _with_catalogue(document: dict[str, Any]) -> dict[str, Any]:
    """The schema with the images that may be chosen right now: another name is refused, and the schema says so."""
    names = list(Image.objects.filter(enabled=True).values_list("name", flat=True))
    if not names:
        return document
    found = copy.deepcopy(document)
    found["components"]["schemas"]["WorkspaceCreate"]["properties"]["image"]["enum"] = names
    return found


class SchemaView(ApiView):
    @schema.openapi
    def get(self, request: Request) -> Response:
        return Response(_with_catalogue(openapi_document()))


class DocsView(LoginRequiredMixin, View):
    """Swagger UI. Signed out, the login page comes first and leads back here."""

    # Whoever tries a call out here needs the CSRF token, and this page has no form that would set it.
    @method_decorator(ensure_csrf_cookie)
    def get(self, request: HttpRequest) -> HttpResponse:
        return render(request, "workspaces/api_docs.html")


class EventsView(ApiView):
    """The schema's entry for the live stream, which the ASGI application serves itself."""

    @schema.events
    def get(self, request: Request) -> Response:
        raise ApiError("unavailable", "Live events need the ASGI server.", headers={"Retry-After": "60"})
