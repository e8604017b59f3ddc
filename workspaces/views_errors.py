"""Answers to what went wrong with a request before or outside a view: a page, or the API's JSON below `/api/`.

They need no database and never show a traceback or an internal name.
"""

from typing import Final

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template.loader import render_to_string
from django.utils.translation import gettext as _

_API_CODES: Final = {400: "invalid", 403: "permission_denied", 404: "not_found", 500: "server_error"}


def bad_request(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return _page(
        request, 400, _("This request makes no sense"), _("The browser sent something CodeHub cannot read. Go back and try again.")
    )


def permission_denied(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return _page(request, 403, _("You may not do this"), _("Your account does not have this right. An operator can give it to you."))


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    return _page(
        request,
        403,
        _("This form is too old"),
        _("The page was open for too long or came from elsewhere. Load it again and repeat the step."),
    )


def not_found(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return _page(request, 404, _("There is nothing here"), _("The address is wrong, or what was here is deleted or not yours."))


def server_error(request: HttpRequest) -> HttpResponse:
    return _page(
        request,
        500,
        _("Something broke on our side"),
        _("The error is recorded and your workspaces are not touched by it. Try again in a moment."),
    )


def _page(request: HttpRequest, code: int, title: str, sentence: str) -> HttpResponse:
    if request.path.startswith("/api/"):
        return JsonResponse({"detail": sentence, "code": _API_CODES[code]}, status=code)
    # Without the request: no session or database is asked, because either may be what is broken.
    theme = getattr(request, "theme", "system")
    return HttpResponse(render_to_string("error.html", {"code": code, "title": title, "sentence": sentence, "theme": theme}), status=code)
