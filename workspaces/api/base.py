"""What all API views share: JSON in and out, authentication, throttling, errors, and the door for unknown addresses."""

from collections.abc import Iterable
from typing import Any

import orjson
from django.conf import settings
from django.contrib.auth.models import User
from django.http import Http404
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.permissions import IsAuthenticated
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from workspaces.access import client_address
from workspaces.api.authentication import SessionAuthentication, TokenAuthentication
from workspaces.api.errors import exception_handler, too_large
from workspaces.api.requests import StrictJSONParser
from workspaces.api.throttles import CallThrottle


class FastJSONRenderer(BaseRenderer):
    """orjson: dates, UUIDs and ready-made JSON fragments go out as they are."""

    media_type = "application/json"
    format = "json"
    charset = None
    render_style = "text"

    def render(self, data: Any, accepted_media_type: str | None = None, renderer_context: Any = None) -> bytes:
        return b"" if data is None else dump(data)


def dump(data: Any) -> bytes:
    return orjson.dumps(data, option=orjson.OPT_UTC_Z)


class OnlyJSON(BaseContentNegotiation):
    """JSON is all there is; what a caller claims to accept changes nothing."""

    def select_parser(self, request: Request, parsers: Iterable[Any]) -> Any:
        media_type = (request.content_type or "").partition(";")[0].strip().lower()
        return next((parser for parser in parsers if parser.media_type == media_type), None)

    def select_renderer(self, request: Request, renderers: Iterable[Any], format_suffix: str | None = None) -> tuple[Any, str]:
        renderer = next(iter(renderers))
        return renderer, renderer.media_type


class ApiView(APIView):
    """Base of every view. Subclasses are documented in their docstrings and by schema annotations."""

    authentication_classes = [TokenAuthentication, SessionAuthentication]
    permission_classes = [IsAuthenticated]
    throttle_classes = [CallThrottle]
    parser_classes = [StrictJSONParser]
    renderer_classes = [FastJSONRenderer]
    content_negotiation_class = OnlyJSON
    metadata_class = None
    http_method_names = ["get", "post", "patch", "delete", "head", "trace", "put"]

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        length = request.META.get("CONTENT_LENGTH") or "0"
        if length.isdigit() and int(length) > settings.CONFIG.api_max_body_bytes:
            raise too_large()
        super().initial(request, *args, **kwargs)

    def get_exception_handler(self) -> Any:
        return exception_handler

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Response:
        answer: Response = super().finalize_response(request, response, *args, **kwargs)
        # Tokens and private rows: nothing between us and the caller may keep a copy.
        answer.headers.setdefault("Cache-Control", "no-store")
        return answer


class UnknownAddressView(ApiView):
    """Everything below `/api/` that nothing else answers."""

    schema = None
    http_method_names = [*ApiView.http_method_names, "options"]

    def _not_found(self, request: Request, **kwargs: Any) -> Response:
        raise Http404

    get = post = put = patch = delete = head = options = trace = _not_found  # type: ignore[assignment]


def user_of(request: Request) -> User:
    """The signed-in caller."""
    user = request.user
    assert isinstance(user, User)  # noqa: S101 - IsAuthenticated let the call through
    return user


def address_of(request: Request) -> str | None:
    return client_address(request._request)
