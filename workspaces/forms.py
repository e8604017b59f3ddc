"""Forms of our pages: what people type, turned into arguments of the services.

They check shape only; rules about names, notes and idle times belong to the services, whose complaints are shown at the
same fields.
"""

from typing import Any

from django import forms
from django.conf import settings
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from workspaces import moments
from workspaces.errors import InvalidRequestError
from workspaces.models import Image, UserProfile, Workspace

_TTL_PRESETS = (300, 600, 1800, 3600, 3 * 3600, 8 * 3600, 24 * 3600, 7 * 86400)


def ttl_choices(*, default: int, current: int | None) -> list[tuple[str, str]]:
    """The site's default, the usual lengths within the operator's bounds, never where allowed, and what is set now."""
    config = settings.CONFIG
    seconds = {value for value in _TTL_PRESETS if config.ttl_min_seconds <= value <= config.ttl_max_seconds}
    if current:
        seconds.add(current)
    usual = _("never") if default == 0 else moments.span(default)
    choices = [("", _("The site's default ({span})").format(span=usual))]
    choices += [(str(value), moments.span(value)) for value in sorted(seconds)]
    if config.ttl_allow_never or current == 0:
        choices.append(("0", _("Never")))
    return choices


class _AccessibleForm(forms.Form):
    """Fields that say to screen readers what is wrong with them."""

    def refuse(self, error: InvalidRequestError) -> None:
        """Show what a service complained about, at its fields where it named them."""
        named = error.facts.get("fields") or {}
        for field, sentences in named.items():
            self.add_error(field if field in self.fields else None, sentences)
        if not named:
            self.add_error(None, error.message)


class CreateForm(_AccessibleForm):
    name = forms.CharField(max_length=100, label=gettext_lazy("Name"), strip=True)
    description = forms.CharField(max_length=500, required=False, label=gettext_lazy("Description"))
    image = forms.ChoiceField(widget=forms.RadioSelect, label=gettext_lazy("Image"))
    start = forms.BooleanField(required=False, initial=True, label=gettext_lazy("Start it right away"))

    def __init__(self, *args: Any, images: list[Image], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.images = images
        field = self.fields["image"]
        assert isinstance(field, forms.ChoiceField)  # noqa: S101 - declared so above
        field.choices = [(image.name, image.title) for image in images]
        if images:
            self.initial.setdefault("image", images[0].name)


class EditForm(_AccessibleForm):
    name = forms.CharField(max_length=100, label=gettext_lazy("Name"))
    description = forms.CharField(max_length=500, required=False, label=gettext_lazy("Description"))
    memo = forms.CharField(max_length=10_000, required=False, widget=forms.Textarea(attrs={"rows": 6}), label=gettext_lazy("Notes"))
    standby_ttl_seconds = forms.TypedChoiceField(required=False, coerce=int, empty_value=None, label=gettext_lazy("Stop when unused for"))
    archive_ttl_seconds = forms.TypedChoiceField(
        required=False, coerce=int, empty_value=None, label=gettext_lazy("Archive after standing by for")
    )

    def __init__(self, *args: Any, workspace: Workspace, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initial = {field: getattr(workspace, field) for field in self.fields}
        config = settings.CONFIG
        for name, default in (("standby_ttl_seconds", config.ttl_standby_seconds), ("archive_ttl_seconds", config.ttl_archive_seconds)):
            field = self.fields[name]
            assert isinstance(field, forms.TypedChoiceField)  # noqa: S101 - declared so above
            field.choices = ttl_choices(default=default, current=getattr(workspace, name))


class DeleteForm(forms.Form):
    confirm = forms.CharField(max_length=100, label=gettext_lazy("Type the workspace's name to confirm"))

    def __init__(self, *args: Any, workspace: Workspace, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._name = workspace.name

    def clean_confirm(self) -> str:
        typed: str = self.cleaned_data["confirm"]
        if typed.strip() != self._name.strip():
            raise ValidationError(_("This is not the workspace's name."))
        return typed


class PreferencesForm(forms.ModelForm):  # type: ignore[type-arg]
    class Meta:
        model = UserProfile
        fields = ("language", "theme")
        labels = {"language": gettext_lazy("Language"), "theme": gettext_lazy("Theme")}


class TokenForm(forms.Form):
    name = forms.CharField(max_length=100, label=gettext_lazy("Name"))
    days = forms.TypedChoiceField(coerce=int, label=gettext_lazy("Expires after"))

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        usual = settings.CONFIG.token_ttl_days
        field = self.fields["days"]
        assert isinstance(field, forms.TypedChoiceField)  # noqa: S101 - declared so above
        field.choices = [(days, moments.span(days * 86400)) for days in sorted({7, usual, 90, 365})]
        self.initial.setdefault("days", usual)


class WelcomeForm(forms.Form):
    """The first administrator, for an installation that has none."""

    setup_token = forms.CharField(
        max_length=200, label=gettext_lazy("Setup token"), widget=forms.PasswordInput(attrs={"autocomplete": "off"})
    )
    username = forms.CharField(max_length=150, initial="admin", label=gettext_lazy("User name"))
    password = forms.CharField(
        max_length=4096, label=gettext_lazy("Password"), strip=False, widget=forms.PasswordInput(attrs={"autocomplete": "new-password"})
    )

    def clean_password(self) -> str:
        password: str = self.cleaned_data["password"]
        validate_password(password)
        return password
