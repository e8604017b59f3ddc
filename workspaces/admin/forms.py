"""What an operator may type about a workspace. Validation is the service layer's; these forms only carry it to the page."""

from datetime import datetime
from typing import TYPE_CHECKING, Any

from django import forms
from django.utils.translation import gettext_lazy as _

from workspaces.errors import InvalidRequestError
from workspaces.fields import DESCRIPTIVE_FIELDS, clean_fields
from workspaces.models import Workspace
from workspaces.phases import DesiredState, Phase, RecoveryStrategy

if TYPE_CHECKING:
    _WorkspaceForm = forms.ModelForm[Workspace]
else:
    _WorkspaceForm = forms.ModelForm

WISHES = [(state.value, state.value) for state in (DesiredState.RUNNING, DesiredState.STANDBY, DesiredState.ARCHIVED)]


class WorkspaceForm(_WorkspaceForm):
    """The descriptive fields, and a wish. No other column is a field here, whatever is posted."""

    wish = forms.ChoiceField(
        label=_("Ask for"),
        choices=[("", _("(no change)")), *WISHES],
        required=False,
        help_text=_("Taken up when the running operation, if there is one, has ended."),
    )
    # What the operator was looking at: a change made meanwhile by the owner is not overwritten unseen.
    seen_at = forms.CharField(widget=forms.HiddenInput, required=False)

    class Meta:
        model = Workspace
        fields = DESCRIPTIVE_FIELDS
        labels = {
            "name": _("Name"),
            "description": _("Description"),
            "memo": _("Memo"),
            "standby_ttl_seconds": _("Stops after (seconds)"),
            "archive_ttl_seconds": _("Archived after (seconds)"),
        }
        help_texts = {"standby_ttl_seconds": _("Empty: the site's; 0: never."), "archive_ttl_seconds": _("Empty: the site's; 0: never.")}
        widgets = {"memo": forms.Textarea(attrs={"rows": 4}), "description": forms.TextInput(attrs={"class": "vTextField"})}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk and "seen_at" in self.fields:
            self.fields["seen_at"].initial = self.instance.updated_at.isoformat()
        if "wish" in self.fields and self.instance.phase == Phase.ERROR:
            self.fields["wish"].disabled = True
            self.fields["wish"].help_text = _("In ERROR: recover it first.")

    def clean_seen_at(self) -> datetime | None:
        value = self.cleaned_data["seen_at"]
        try:
            return datetime.fromisoformat(value) if value else None
        except ValueError:
            raise forms.ValidationError(_("Load the page again.")) from None

    def clean(self) -> dict[str, Any]:
        data = super().clean() or self.cleaned_data
        for field in DESCRIPTIVE_FIELDS:
            if field in data:
                try:
                    data.update(clean_fields({field: data[field]}))
                except InvalidRequestError as error:
                    self.add_error(field, error.facts["fields"][field])
        return data


class BulkForm(forms.Form):
    """The operator's answer on a confirmation page. `ids` is one field, however many were chosen."""

    ids = forms.CharField(widget=forms.HiddenInput)
    strategy = forms.ChoiceField(
        choices=[(strategy.value, strategy.value) for strategy in RecoveryStrategy], required=False, initial=RecoveryStrategy.REOBSERVE
    )
    queue = forms.BooleanField(required=False)
    understood = forms.BooleanField(required=False)

    def clean_ids(self) -> list[Any]:
        field = forms.UUIDField()
        return [field.clean(word) for word in self.cleaned_data["ids"].split()]
