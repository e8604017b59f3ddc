"""What the pages of the operators' desk share: read-only model pages, badges, and how times and sizes are said.

Decides nothing and writes nothing.
"""

from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from django.contrib import admin
from django.contrib.auth.models import User
from django.db.models import Model
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from workspaces import moments
from workspaces.access import client_address
from workspaces.phases import AttemptState, Operation, Phase
from workspaces.templatetags.codehub import icon

_M = TypeVar("_M", bound=Model)

if TYPE_CHECKING:

    class TypedAdmin(admin.ModelAdmin[_M]):
        """Django's ModelAdmin, which takes its type argument only in the stubs."""
else:

    class TypedAdmin(admin.ModelAdmin):
        def __class_getitem__(cls, item):
            return cls


# A sign beside each word: no meaning is carried by colour alone. (tone, icon of the sprite)
_TONES: dict[str, tuple[str, str]] = {
    Phase.RUNNING: ("good", "running"),
    Phase.STANDBY: ("calm", "standby"),
    Phase.ARCHIVED: ("warn", "archived"),
    Phase.PENDING: ("quiet", "new"),
    Phase.ERROR: ("bad", "error"),
    Phase.DELETING: ("quiet", "deleting"),
    Phase.DELETED: ("quiet", "deleting"),
    AttemptState.QUEUED: ("quiet", "clock"),
    AttemptState.SUCCEEDED: ("good", "check"),
    AttemptState.FAILED: ("bad", "error"),
    AttemptState.LOST: ("warn", "info"),
    "closed": ("good", "check"),
    "half-open": ("warn", "clock"),
    "half_open": ("warn", "clock"),
    "open": ("bad", "error"),
}


def badge(word: str, *, tone: str | None = None, sign: str | None = None, title: str = "") -> SafeString:
    """A word of the vocabulary, with a tone and a sign."""
    found_tone, found_sign = _TONES.get(word, ("calm", "info"))
    return format_html(
        '<span class="ch-badge ch-badge--{}"{}>{}{}</span>',
        tone or found_tone,
        format_html(' title="{}"', title) if title else "",
        icon(sign or found_sign),
        word,
    )


def operation_badge(operation: str) -> SafeString | str:
    return "—" if operation == Operation.NONE else badge(operation, tone="busy", sign="busy")


def reason_badge(reason: str | None, *, message: str = "") -> SafeString | str:
    return badge(reason, tone="bad", sign="error", title=message) if reason else "—"


def ago(at: datetime | None, *, now: datetime) -> SafeString | str:
    """How long something has lasted, with the exact moment on hover."""
    if at is None:
        return "—"
    return format_html(
        '<time datetime="{}" title="{}">{}</time>',
        at.isoformat(),
        at.strftime("%Y-%m-%d %H:%M:%S %Z"),
        moments.span((now - at).total_seconds()),
    )


def size(count: int | None) -> str:
    return "—" if count is None else moments.size(count)


def workspace_link(workspace_id: UUID | None, label: str) -> SafeString | str:
    if workspace_id is None:
        return "—"
    return format_html('<a href="{}">{}</a>', reverse("admin:workspaces_workspace_change", args=[workspace_id]), label)


def operator_of(request: HttpRequest) -> User:
    """The acting operator. The admin's pages let nobody else in."""
    assert isinstance(request.user, User)  # noqa: S101 - narrows the type for the services
    return request.user


def address_of(request: HttpRequest) -> str | None:
    """Where the operator acts from."""
    return client_address(request)


class OperatorsReadMixin:
    """Every operator may look; nobody adds, changes or removes a row here."""

    def has_module_permission(self, request: HttpRequest) -> bool:
        return _is_operator(request)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return _is_operator(request)

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


def _is_operator(request: HttpRequest) -> bool:
    return bool(request.user.is_active and request.user.is_staff)
