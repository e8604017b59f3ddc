"""The image catalogue: what workspaces may run. Every change is checked, logged and put into the audit trail.

Changing it means deciding what runs on the engine, so it needs Django's permission for it, not merely being an operator.
"""

from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from workspaces import services
from workspaces.admin.base import TypedAdmin, address_of, operator_of
from workspaces.models import Image
from workspaces.phases import Phase

if TYPE_CHECKING:
    _ImageForm = forms.ModelForm[Image]
else:
    _ImageForm = forms.ModelForm

_RUNTIMES = [("docker", "docker"), ("process", "process")]


class LinesField(forms.CharField):
    """A list of words, one a line. Lines are kept as they are: blanks inside a word are part of it."""

    widget = forms.Textarea

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(
            required=False, strip=False, widget=forms.Textarea(attrs={"rows": 6, "spellcheck": "false", "class": "ch-code"}), **kwargs
        )

    def prepare_value(self, value: Any) -> Any:
        return "\n".join(str(word) for word in value) if isinstance(value, list) else value

    def to_python(self, value: Any) -> Any:
        return [line for line in (super().to_python(value) or "").splitlines() if line.strip()]

    def has_changed(self, initial: Any, data: Any) -> bool:
        return bool(self.to_python(data) != (initial or []))


class AssignmentsField(LinesField):
    """`NAME=value`, one a line."""

    def prepare_value(self, value: Any) -> Any:
        return "\n".join(f"{name}={text}" for name, text in value.items()) if isinstance(value, dict) else value

    def to_python(self, value: Any) -> Any:
        found: dict[str, str] = {}
        for line in super().to_python(value):
            name, sign, text = line.partition("=")
            if not sign:
                raise forms.ValidationError(_("Write NAME=value, one a line. This line has no “=”: %(line)s"), params={"line": line[:80]})
            if name in found:
                raise forms.ValidationError(_("%(name)s is there twice."), params={"name": name})
            found[name] = text
        return found

    def has_changed(self, initial: Any, data: Any) -> bool:
        try:
            return bool(self.to_python(data) != (initial or {}))
        except forms.ValidationError:
            return True


class ImageForm(_ImageForm):
    command = LinesField(
        label=_("Command"),
        help_text=_("One word a line; no shell reads it. May use {port}, {home}, {base_url}, {socket}, {id}. Empty: the image's own."),
    )
    env = AssignmentsField(
        label=_("Environment"), help_text=_("NAME=value, one a line. Not a place for secrets: whoever uses the workspace can read them.")
    )
    runtimes = forms.MultipleChoiceField(label=_("Runtimes"), choices=_RUNTIMES, widget=forms.CheckboxSelectMultiple)

    class Meta:
        model = Image
        fields = "__all__"
        labels = {
            "name": _("Short name"),
            "title": _("Title"),
            "description": _("Description"),
            "ref": _("Image reference"),
            "port": _("Port"),
            "home": _("Home directory"),
            "uid": _("User id"),
            "gid": _("Group id"),
            "memory_mb": _("Memory (MB)"),
            "cpus": _("CPUs"),
            "pids_limit": _("Processes"),
            "strip_prefix": _("Strip the prefix"),
            "health_path": _("Health path"),
            "enabled": _("Enabled"),
            "position": _("Position"),
        }


@admin.register(Image)
class ImageAdmin(TypedAdmin[Image]):
    form = ImageForm
    list_display = ("title", "name", "ref", "runtimes", "port", "memory_mb", "cpus", "enabled", "position", "in_use")
    list_filter = ("enabled",)
    search_fields = ("name", "title", "ref")
    fieldsets = (
        (None, {"fields": ("name", "title", "description", "enabled", "position")}),
        (_("What runs"), {"fields": ("runtimes", "ref", "command", "env", "home", ("uid", "gid"))}),
        (_("How it is reached"), {"fields": ("port", "health_path", "strip_prefix")}),
        (_("Limits of each workspace"), {"fields": (("memory_mb", "cpus", "pids_limit"),)}),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Image]:
        return super().get_queryset(request).annotate(workspace_count=Count("workspaces", filter=~Q(workspaces__phase=Phase.DELETED)))

    @admin.display(description=_("workspaces"), ordering="workspace_count")
    def in_use(self, image: Any) -> int:
        return int(image.workspace_count)

    def save_model(self, request: HttpRequest, obj: Image, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        services.record_operator_act(
            user=operator_of(request),
            action="change_image" if change else "add_image",
            address=address_of(request),
            image=obj.name,
            fields=sorted(form.changed_data),
        )

    def delete_model(self, request: HttpRequest, obj: Image) -> None:
        name = obj.name
        super().delete_model(request, obj)
        services.record_operator_act(user=operator_of(request), action="delete_image", address=address_of(request), image=name)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Image]) -> None:
        names = sorted(queryset.values_list("name", flat=True))
        super().delete_queryset(request, queryset)
        services.record_operator_act(user=operator_of(request), action="delete_image", address=address_of(request), images=names)
