"""The dashboard and the pages of one workspace. Thin doors: they read boards and hand wishes to the services.

Every action works as a plain form with a redirect; asked by htmx, the same view answers with the card it changed. Wishes
are always queued behind a running operation, so nobody is stuck without a button.
"""

from typing import cast
from uuid import UUID

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from workspaces import board, services
from workspaces.access import client_address
from workspaces.errors import InvalidRequestError, LimitExceededError, NotFoundError, RequestError
from workspaces.forms import CreateForm, DeleteForm, EditForm
from workspaces.models import Workspace
from workspaces.phases import DesiredState
from workspaces.story import load_story


def signed_in(request: HttpRequest) -> User:
    """The user of a view behind `login_required`, as the services want it."""
    return cast(User, request.user)


def is_htmx(request: HttpRequest) -> bool:
    return request.headers.get("HX-Request") == "true"


@login_required
@require_GET
def dashboard(request: HttpRequest) -> HttpResponse:
    user = signed_in(request)
    now = services.database_now()
    page = board.load_board(user, board.Query.parse(request.GET), now=now)
    context = {
        "board": page,
        "usage": board.load_usage(user),
        "form": CreateForm(images=board.catalogue(), auto_id="create-%s"),
        "process_runtime": board.runtime_name() == "process",
        "state_choices": state_choices(),
        "sort_choices": sort_choices(),
        "section": "workspaces",
    }
    return render(request, "workspaces/dashboard.html", context)


def state_choices() -> list[tuple[str, str]]:
    words = (_("All states"), _("Running"), _("Standby"), _("Archived"), _("Something under way"), _("Needs attention"))
    return list(zip(board.STATES, words, strict=True))


def sort_choices() -> list[tuple[str, str]]:
    return list(zip(board.SORTS, (_("Newest first"), _("By name"), _("Last used first")), strict=True))


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def create(request: HttpRequest) -> HttpResponse:
    images = board.catalogue()
    form = CreateForm(request.POST or None, images=images)
    if request.method == "POST" and form.is_valid():
        try:
            workspace, _created = services.request_create(
                user=signed_in(request),
                name=form.cleaned_data["name"],
                description=form.cleaned_data["description"],
                image=form.cleaned_data["image"],
                desired_state=DesiredState.RUNNING if form.cleaned_data["start"] else DesiredState.STANDBY,
                address=client_address(request),
            )
        except InvalidRequestError as error:
            form.refuse(error)
        except LimitExceededError as error:
            form.add_error(None, _limit_sentence(error))
        else:
            messages.success(request, _("“{name}” was created.").format(name=workspace.name))
            return redirect("dashboard")
    status = 400 if request.method == "POST" else 200
    return render(request, "workspaces/new.html", {"form": form, "section": "workspaces"}, status=status)


@login_required
@require_GET
def workspace_page(request: HttpRequest, workspace_id: UUID) -> HttpResponse:
    workspace = find(request, workspace_id)
    story = load_story(workspace, now=services.database_now())
    context = {"story": story, "card": story.card, "workspace": workspace, "section": "workspaces"}
    context["process_runtime"] = board.runtime_name() == "process"
    return render(request, "workspaces/detail.html", context)


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def edit(request: HttpRequest, workspace_id: UUID) -> HttpResponse:
    workspace = find(request, workspace_id)
    form = EditForm(request.POST or None, workspace=workspace)
    if request.method == "POST" and form.is_valid():
        try:
            services.request_describe(
                workspace_id, user=signed_in(request), fields=dict(form.cleaned_data), address=client_address(request)
            )
        except InvalidRequestError as error:
            form.refuse(error)
        else:
            messages.success(request, _("Saved."))
            return redirect("workspace", workspace_id)
    status = 400 if request.method == "POST" else 200
    return render(request, "workspaces/edit.html", {"form": form, "workspace": workspace, "section": "workspaces"}, status=status)


@login_required
@require_POST
def change_state(request: HttpRequest, workspace_id: UUID) -> HttpResponse:
    try:
        services.request_state(
            workspace_id,
            user=signed_in(request),
            desired_state=request.POST.get("desired_state", ""),
            queue=True,
            address=client_address(request),
        )
    except NotFoundError as error:
        raise Http404 from error
    except LimitExceededError as error:
        messages.error(request, _limit_sentence(error))
    except RequestError as error:
        messages.error(request, error.message)
    return _answer(request, workspace_id)


@login_required
@require_POST
def keep_awake(request: HttpRequest, workspace_id: UUID) -> HttpResponse:
    text = request.POST.get("seconds", "")
    try:
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise InvalidRequestError(_("Must be a whole number of seconds."))
        services.request_keep_awake(workspace_id, user=signed_in(request), seconds=int(text), address=client_address(request))
    except NotFoundError as error:
        raise Http404 from error
    except RequestError as error:
        messages.error(request, error.message)
    return _answer(request, workspace_id)


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def delete(request: HttpRequest, workspace_id: UUID) -> HttpResponse:
    workspace = find(request, workspace_id)
    form = DeleteForm(request.POST or None, workspace=workspace)
    if request.method == "POST" and form.is_valid():
        services.request_delete(workspace_id, user=signed_in(request), queue=True, address=client_address(request))
        messages.success(request, _("“{name}” is being deleted.").format(name=workspace.name))
        return redirect("dashboard")
    story = load_story(workspace, now=services.database_now())
    context = {"form": form, "workspace": workspace, "story": story, "card": story.card, "section": "workspaces"}
    return render(request, "workspaces/delete.html", context, status=400 if request.method == "POST" else 200)


def find(request: HttpRequest, workspace_id: UUID) -> Workspace:
    """The workspace, for its owner and for operators; anything else is as unknown as an unknown id."""
    user = signed_in(request)
    found = Workspace.objects.visible().for_display().filter(pk=workspace_id)
    if not user.is_staff:
        found = found.owned_by(user)
    workspace = found.first()
    if workspace is None:
        raise Http404
    return workspace


def _limit_sentence(error: LimitExceededError) -> str:
    names = ", ".join(f"“{entry['name']}”" for entry in error.facts.get("running") or [])
    return f"{error.message} {_('Running now: {names}.').format(names=names)}" if names else error.message


def _answer(request: HttpRequest, workspace_id: UUID) -> HttpResponse:
    """Back to where the form was; htmx gets the changed card and the messages instead."""
    back = request.POST.get("next", "")
    if not is_htmx(request):
        if not url_has_allowed_host_and_scheme(back, allowed_hosts={request.get_host()}, require_https=request.is_secure()):
            back = reverse("dashboard")
        return redirect(back)
    user = signed_in(request)
    now = services.database_now()
    said = render_to_string("_messages.html", {"messages": messages.get_messages(request), "oob": True})
    if back.startswith("/workspaces/"):
        body: str = render_to_string("workspaces/_story.html", {"story": load_story(find(request, workspace_id), now=now), "user": user})
    else:
        card = board.load_card(user, workspace_id, now=now)
        body = board.render_card(card) if card else ""
    return HttpResponse(body + said)
