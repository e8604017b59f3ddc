"""What a visitor sees where a workspace takes no traffic: what is happening, what can be done, and when it moves on.

Ordinary synchronous Django views on the dashboard's origin, reached only for what the proxy does not forward. They wake a sleeping
workspace on a deliberate visit and change nothing else; buttons post to the dashboard's own forms. Every page has a JSON twin.
"""

from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.contrib.auth.models import User
from django.contrib.auth.views import redirect_to_login
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt

from workspaces import board, services
from workspaces.access import client_address, user_of_request
from workspaces.errors import LimitExceededError, RequestError
from workspaces.models import Workspace
from workspaces.phases import DesiredState, Operation, Phase
from workspaces.proxy.routes import WAIT_PARAMETER, route_path
from workspaces.proxy.visit import Visit
from workspaces.words import error_words, phase_words

_RETRY_SECONDS = 2


@never_cache
@csrf_exempt
def gate(request: HttpRequest, workspace_id: UUID, rest: str = "") -> HttpResponse:
    """Any request to a workspace that could not be forwarded. Reads no body and, but for a wake, changes nothing."""
    if route_path(request.META.get("RAW_URI", request.path).encode("latin-1")) is None:
        # Another spelling that only decoding made look like this address.
        raise Http404
    found = user_of_request(request)
    if found is None:
        if visit_of(request).is_navigation:
            return redirect_to_login(request.get_full_path())
        return _json(401, "not_authenticated", _("Sign in first."))
    user = found[0]
    workspace = Workspace.objects.visible().owned_by(user).for_display().filter(pk=workspace_id, deleted_at__isnull=True).first()
    if workspace is None:
        if wants_html(request):
            raise Http404
        return _json(404, "not_found", _("There is no such workspace."))
    if rest == "/_codehub/status":
        return _status(workspace, user)
    return _page_for(request, workspace, user)


def is_pending(workspace: Workspace) -> bool:
    """An operation runs or a wish is open. A new workspace that nobody asked to run just waits."""
    if workspace.operation != Operation.NONE:
        return True
    if workspace.phase == Phase.ERROR:
        return False
    if workspace.phase == Phase.PENDING:
        return workspace.desired_state == DesiredState.RUNNING
    return workspace.desired_state != workspace.phase


def visit_of(request: HttpRequest) -> Visit:
    fields = {name.lower().encode("latin-1"): value.encode("latin-1", "replace") for name, value in request.headers.items()}
    return Visit(fields, request.method or "GET", request.scheme or "http", fields.get(b"host", b""))


def wants_html(request: HttpRequest) -> bool:
    return "text/html" in request.headers.get("Accept", "")


def _status(workspace: Workspace, user: Any) -> JsonResponse:
    """For the waiting page: whether to move on, and what to say until then."""
    card = board.load_card(user, workspace.pk, now=services.database_now())
    still = not is_pending(workspace)
    ready = still and workspace.phase == Phase.RUNNING and bool(workspace.endpoint)
    body: dict[str, Any] = {
        "ready": ready,
        "settled": still and (ready or workspace.phase != Phase.RUNNING),
        "phase": workspace.phase,
        "operation": workspace.operation,
        "desired_state": workspace.desired_state,
    }
    if card is not None:
        body["label"] = card.label
        body["progress"] = (
            {"done": card.progress.done, "total": card.progress.total, "detail": card.progress.detail} if card.progress else None
        )
    return JsonResponse(body)


def _page_for(request: HttpRequest, workspace: Workspace, user: Any) -> HttpResponse:
    if is_pending(workspace):
        return _waiting(request, workspace, user)
    if workspace.phase == Phase.RUNNING:
        # It became ready between the proxy's look and this one, or does not answer yet: the next reload goes through.
        return _waiting(request, workspace, user)
    if workspace.phase == Phase.STANDBY:
        if WAIT_PARAMETER in request.GET or not visit_of(request).is_deliberate:
            return _offer(
                request,
                workspace,
                status=503,
                code="not_running",
                button=_("Start"),
                sentence=_("The workspace is stopped. Its home is on disk."),
            )
        return _wake(request, workspace, user)
    if workspace.phase == Phase.ARCHIVED:
        sentence = _("The workspace is archived. Restoring brings its home back as it was.")
        return _offer(request, workspace, status=502, code="archived", button=_("Restore"), sentence=sentence)
    if workspace.phase == Phase.PENDING:
        sentence = _("The workspace is new and has not been started yet.")
        return _offer(request, workspace, status=502, code="pending", button=_("Start"), sentence=sentence)
    return _broken(request, workspace)


def _wake(request: HttpRequest, workspace: Workspace, user: User) -> HttpResponse:
    try:
        services.request_wake(workspace.pk, user=user, address=client_address(request))
    except LimitExceededError as error:
        return _limit(request, workspace, error)
    except RequestError as error:
        return _json(502, error.code, error.message)
    workspace.refresh_from_db()
    return _waiting(request, workspace, user)


def _waiting(request: HttpRequest, workspace: Workspace, user: Any) -> HttpResponse:
    """503: a page that moves on by itself, with a script or without."""
    card = board.load_card(user, workspace.pk, now=services.database_now())
    if not wants_html(request):
        facts = {"phase": workspace.phase, "operation": workspace.operation, "desired_state": workspace.desired_state}
        answer = _json(503, "not_running", _("The workspace is on its way. Try again in a moment."), **facts)
    else:
        heads_for_running = workspace.desired_state == DesiredState.RUNNING
        context = {
            "workspace": workspace,
            "card": card,
            "heads_for_running": heads_for_running,
            "status_url": f"/w/{workspace.pk}/_codehub/status",
            "next_url": _again(request),
            "seconds": _RETRY_SECONDS,
        }
        answer = render(request, "proxy/waiting.html", context, status=503)
    answer.headers["Retry-After"] = str(_RETRY_SECONDS)
    return answer


def _again(request: HttpRequest) -> str:
    """This address, marked as a reload that nobody asked for: it shows, and never wakes."""
    query = request.GET.copy()
    query[WAIT_PARAMETER] = "1"
    return f"{request.path}?{urlencode(list(query.items()))}"


def _clean(request: HttpRequest) -> str:
    query = request.GET.copy()
    query.pop(WAIT_PARAMETER, None)
    return f"{request.path}?{query.urlencode()}" if query else request.path


def _offer(request: HttpRequest, workspace: Workspace, *, status: int, code: str, button: str, sentence: str) -> HttpResponse:
    """What a person must decide: a button, and nothing happens by itself."""
    if not wants_html(request):
        answer = _json(status, code, sentence, phase=workspace.phase)
    else:
        title = phase_words(workspace.phase)[0]
        context = {"workspace": workspace, "title": title, "sentence": sentence, "button": button, "next_url": _clean(request)}
        answer = render(request, "proxy/offer.html", context, status=status)
    if status == 503:
        answer.headers["Retry-After"] = str(_RETRY_SECONDS)
    return answer


def _limit(request: HttpRequest, workspace: Workspace, error: LimitExceededError) -> HttpResponse:
    running = error.facts.get("running") or []
    if not wants_html(request):
        return _json(502, "limit_exceeded", error.message, running=running)
    context = {"workspace": workspace, "sentence": error.message, "running": running, "next_url": _clean(request)}
    return render(request, "proxy/limit.html", context, status=502)


def _broken(request: HttpRequest, workspace: Workspace) -> HttpResponse:
    reason = workspace.error_reason or ""
    if reason == "RetryExceeded":
        reason = ((workspace.error_info or {}).get("context") or {}).get("last_reason") or reason
    sentence = error_words(reason)
    if not wants_html(request):
        return _json(502, "error", sentence, error_reason=workspace.error_reason, phase=workspace.phase)
    context = {"workspace": workspace, "sentence": sentence, "error": workspace.error_info or {}, "reason": workspace.error_reason}
    return render(request, "proxy/broken.html", context, status=502)


def _json(status: int, code: str, detail: str, **facts: Any) -> HttpResponse:
    return JsonResponse({"detail": detail, "code": code, **facts}, status=status)
