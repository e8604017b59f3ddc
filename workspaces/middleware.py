"""What every page of ours gets: the reader's language and theme, a strict content policy, and a note of the session's use.

Runs for pages only; the API and static files pass through untouched. It decides nothing about workspaces.
"""

from collections.abc import Callable
from datetime import timedelta

from django.conf import settings
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.utils import timezone, translation

from workspaces.access import client_address
from workspaces.models import UserProfile, UserSession

Handler = Callable[[HttpRequest], HttpResponse]

THEME_COOKIE = "codehub_theme"
THEMES = ("system", "light", "dark")
_NOT_PAGES = ("/api/", "/static/", "/healthz", "/readyz", "/metrics")
_SEEN_STEP = timedelta(minutes=1)
_SEEN_KEY = "seen_at"


def is_page(request: HttpRequest) -> bool:
    return not request.path.startswith(_NOT_PAGES)


class PreferencesMiddleware:
    """Speaks the language and wears the theme the signed-in user chose; else the browser's language and a cookie's theme."""

    def __init__(self, get_response: Handler) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if not is_page(request):
            return self.get_response(request)
        theme = request.COOKIES.get(THEME_COOKIE, "system")
        if request.user.is_authenticated:
            chosen = UserProfile.objects.filter(user_id=request.user.pk).values_list("language", "theme").first()
            if chosen is not None:
                language, theme = chosen
                if language:
                    translation.activate(language)
                    request.LANGUAGE_CODE = language
        request.theme = theme if theme in THEMES else "system"  # type: ignore[attr-defined]
        return self.get_response(request)


class SessionSeenMiddleware:
    """Keeps the list of a user's sessions that the account page shows; a write at most once a minute."""

    def __init__(self, get_response: Handler) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        user = request.user
        if is_page(request) and isinstance(user, User) and request.session.session_key:
            self._note(request, user)
        return response

    def _note(self, request: HttpRequest, user: User) -> None:
        now = timezone.now()
        key = str(request.session.session_key)
        seen = request.session.get(_SEEN_KEY)
        # The key is kept with the time: it changes at login and with the password.
        if isinstance(seen, list) and seen[0] == key[:8] and now.timestamp() - float(seen[1]) < _SEEN_STEP.total_seconds():
            return
        request.session[_SEEN_KEY] = [key[:8], now.timestamp()]
        UserSession.objects.update_or_create(
            session_key=key,
            defaults={
                "user_id": user.pk,
                "address": client_address(request),
                "agent": request.headers.get("User-Agent", "")[:300],
                "last_seen_at": now,
            },
        )


class ContentPolicyMiddleware:
    """Our pages run our scripts and styles from our own files, and nothing else. A view may set a policy of its own."""

    def __init__(self, get_response: Handler) -> None:
        self.get_response = get_response
        # Signing in may lead on to a workspace on its own origin, and browsers hold a form's redirects to this list too.
        domain = settings.CONFIG.workspace_domain
        own_origins = f" https://*.{domain} http://*.{domain}:*" if domain else " http://*.localhost:* https://*.localhost:*"
        self._policy = "; ".join(
            (
                "default-src 'self'",
                "img-src 'self' data:",
                "object-src 'none'",
                "base-uri 'none'",
                "frame-ancestors 'none'",
                "form-action 'self'" + ("" if settings.CONFIG.path_form_only else own_origins),
            )
        )

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        if is_page(request) and response.get("Content-Type", "").startswith("text/html"):
            response.headers.setdefault("Content-Security-Policy", self._policy)
        return response


def page_context(request: HttpRequest) -> dict[str, str]:
    """Context processor: what the base template wears."""
    return {"theme": getattr(request, "theme", "system")}
