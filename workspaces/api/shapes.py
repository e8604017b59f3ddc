"""The shapes of bodies and answers, as the OpenAPI schema shows them.

Serializers serve as descriptions only: bodies are checked by strict parsing and the services, answers are built from rows.
That answers have these shapes is checked against a live server.
"""

from typing import Any, Final

from django.conf import settings
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from workspaces.api.errors import CODES
from workspaces.phases import Action, AttemptState, ConditionKey, DesiredState, ErrorReason, Operation, Phase, RecoveryStrategy

_HIDDEN: Final = r"\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_ONE_LINE: Final = f"^[^{_HIDDEN}]*$"
_NAME: Final = f"^[^{_HIDDEN}]*[^{_HIDDEN}\\s][^{_HIDDEN}]*$"


def _choices(enum: Any) -> list[str]:
    return [member.value for member in enum]


PHASES: Final = _choices(Phase)
OPERATIONS: Final = _choices(Operation)
DESIRED_STATES: Final = _choices(DesiredState)
WISHES: Final = [state for state in DESIRED_STATES if state != DesiredState.DELETED]
REASONS: Final = _choices(ErrorReason)


def _ttl(default: str) -> dict[str, Any]:
    config = settings.CONFIG
    span = {"type": "integer", "minimum": config.ttl_min_seconds, "maximum": config.ttl_max_seconds}
    allowed: list[dict[str, Any]] = [span, {"type": "integer", "enum": [0]}] if config.ttl_allow_never else [span]
    return {
        "anyOf": allowed,
        "nullable": True,
        "description": f"Seconds; 0 = never; null = the site's default ({default}).",
        "example": 3600,
    }


@extend_schema_field(_ttl("TTL_STANDBY_SECONDS"))
class StandbyTtlField(serializers.IntegerField):
    pass


@extend_schema_field(_ttl("TTL_ARCHIVE_SECONDS"))
class ArchiveTtlField(serializers.IntegerField):
    pass


def _text_field(description: str, *, max_length: int, pattern: str | None = None, min_length: int = 0, example: str = "") -> type:
    schema: dict[str, Any] = {"type": "string", "maxLength": max_length, "description": description}
    if pattern:
        schema["pattern"] = pattern
    if min_length:
        schema["minLength"] = min_length
    if example:
        schema["example"] = example
    return extend_schema_field(schema)(type("TextField", (serializers.CharField,), {}))


NameField = _text_field("What people call it.", max_length=100, pattern=_NAME, min_length=1, example="thesis")
DescriptionField = _text_field("One line.", max_length=500, pattern=_ONE_LINE, example="numbers for chapter 3")
MemoField = _text_field(
    "Notes, several lines.", max_length=10_000, pattern=_ONE_LINE.replace(r"\x00-\x1f", r"\x00-\x08\x0b\x0c\x0e-\x1f"), example="port 5000"
)
ImageField = _text_field("Name of an image of the catalogue; the first one when left out.", max_length=60, example="code-server")
TokenNameField = _text_field("What the token is for.", max_length=100, pattern=_NAME, min_length=1, example="nightly backup")
UsernameField = _text_field("", max_length=150, pattern=f"^[^{_HIDDEN}]*[^{_HIDDEN}\\s][^{_HIDDEN}]*$", min_length=1, example="ada")
PasswordField = _text_field("", max_length=4096, pattern=r"^[^\x00]*$", example="correct horse battery staple")


class WorkspaceCreate(serializers.Serializer[Any]):
    name = NameField()
    description = DescriptionField(required=False)
    memo = MemoField(required=False)
    image = ImageField(required=False)
    desired_state = serializers.ChoiceField(WISHES, required=False, default="RUNNING")
    standby_ttl_seconds = StandbyTtlField(required=False, allow_null=True)
    archive_ttl_seconds = ArchiveTtlField(required=False, allow_null=True)


class WorkspaceChange(serializers.Serializer[Any]):
    name = NameField(required=False)
    description = DescriptionField(required=False)
    memo = MemoField(required=False)
    desired_state = serializers.ChoiceField(WISHES, required=False)
    standby_ttl_seconds = StandbyTtlField(required=False, allow_null=True)
    archive_ttl_seconds = ArchiveTtlField(required=False, allow_null=True)


class Recover(serializers.Serializer[Any]):
    strategy = serializers.ChoiceField(_choices(RecoveryStrategy), required=False, default="reobserve")


class Login(serializers.Serializer[Any]):
    username = UsernameField()
    password = PasswordField()


class TokenCreate(serializers.Serializer[Any]):
    name = TokenNameField()
    expires_in_days = serializers.IntegerField(required=False, allow_null=True, min_value=1, max_value=3650)


class Condition(serializers.Serializer[Any]):
    status = serializers.BooleanField()
    reason = serializers.CharField()
    message = serializers.CharField()
    last_transition_time = serializers.DateTimeField()


Conditions = type("Conditions", (serializers.Serializer,), {key.value: Condition() for key in ConditionKey})


class ErrorInfo(serializers.Serializer[Any]):
    reason = serializers.ChoiceField(REASONS)
    message = serializers.CharField()
    is_terminal = serializers.BooleanField()
    operation = serializers.ChoiceField(OPERATIONS, allow_null=True)
    error_count = serializers.IntegerField()
    context = serializers.DictField()  # type: ignore[assignment]
    occurred_at = serializers.DateTimeField()


class Activity(serializers.Serializer[Any]):
    kind = serializers.CharField()
    at = serializers.DateTimeField()


class Progress(serializers.Serializer[Any]):
    action = serializers.ChoiceField(_choices(Action))
    step = serializers.CharField()
    bytes_done = serializers.IntegerField()
    bytes_total = serializers.IntegerField(allow_null=True)
    started_at = serializers.DateTimeField(allow_null=True)


class Workspace(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    name = serializers.CharField()
    description = serializers.CharField()
    memo = serializers.CharField()
    owner = serializers.CharField(help_text="The owner's user name.")
    image = serializers.CharField(help_text="Name in the catalogue.")
    phase = serializers.ChoiceField(PHASES)
    operation = serializers.ChoiceField(OPERATIONS)
    desired_state = serializers.ChoiceField(DESIRED_STATES)
    conditions = Conditions()
    has_archive = serializers.BooleanField()
    archive_key = serializers.CharField(allow_null=True)
    error_reason = serializers.ChoiceField(REASONS, allow_null=True)
    error_info = ErrorInfo(allow_null=True)
    error_count = serializers.IntegerField()
    previous_phase = serializers.ChoiceField(PHASES, allow_null=True)
    standby_ttl_seconds = serializers.IntegerField(allow_null=True)
    archive_ttl_seconds = serializers.IntegerField(allow_null=True)
    stops_at = serializers.DateTimeField(allow_null=True, help_text="When it will stop by itself, if nobody uses it until then.")
    archives_at = serializers.DateTimeField(allow_null=True, help_text="When its home will be archived by itself.")
    last_access_at = serializers.DateTimeField(allow_null=True)
    last_activity = Activity(allow_null=True)
    phase_changed_at = serializers.DateTimeField()
    op_started_at = serializers.DateTimeField(allow_null=True)
    progress = Progress(allow_null=True)
    archive_size = serializers.IntegerField(allow_null=True)
    archived_at = serializers.DateTimeField(allow_null=True)
    observed_at = serializers.DateTimeField(allow_null=True)
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField(help_text="Moves when somebody asks for something; the ETag holds it.")
    url = serializers.URLField(help_text="Where the IDE opens.")


class WorkspacePage(serializers.Serializer[Any]):
    next = serializers.URLField(allow_null=True)
    previous = serializers.URLField(allow_null=True)
    results = Workspace(many=True)


class HistoryEntry(serializers.Serializer[Any]):
    """An actuator's run (`attempt`) or a change of phase or operation (`transition`); the other kind's fields are absent."""

    type = serializers.ChoiceField(["attempt", "transition"])
    at = serializers.DateTimeField()
    id = serializers.CharField()
    operation = serializers.ChoiceField(OPERATIONS, required=False)
    action = serializers.ChoiceField(_choices(Action), required=False)
    number = serializers.IntegerField(required=False)
    state = serializers.ChoiceField(_choices(AttemptState), required=False)
    step = serializers.CharField(required=False)
    bytes_done = serializers.IntegerField(required=False)
    bytes_total = serializers.IntegerField(required=False, allow_null=True)
    started_at = serializers.DateTimeField(required=False, allow_null=True)
    finished_at = serializers.DateTimeField(required=False, allow_null=True)
    error = serializers.DictField(required=False, allow_null=True)
    from_phase = serializers.CharField(required=False)
    to_phase = serializers.CharField(required=False)
    from_operation = serializers.CharField(required=False)
    to_operation = serializers.CharField(required=False)
    reason = serializers.CharField(required=False)
    message = serializers.CharField(required=False)


class HistoryPage(serializers.Serializer[Any]):
    next = serializers.URLField(allow_null=True)
    previous = serializers.URLField(allow_null=True)
    results = HistoryEntry(many=True)


class IdeLog(serializers.Serializer[Any]):
    text = serializers.CharField()
    taken_at = serializers.DateTimeField()


class FailedRun(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    operation = serializers.ChoiceField(OPERATIONS)
    action = serializers.ChoiceField(_choices(Action))
    number = serializers.IntegerField()
    state = serializers.ChoiceField(_choices(AttemptState))
    finished_at = serializers.DateTimeField(allow_null=True)
    error = serializers.DictField(allow_null=True)
    log = serializers.CharField()


class Logs(serializers.Serializer[Any]):
    ide = IdeLog(allow_null=True)
    failed_runs = FailedRun(many=True)


class NewLogin(serializers.Serializer[Any]):
    token = serializers.CharField()
    expiry = serializers.DateTimeField()


class Token(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    name = serializers.CharField()
    prefix = serializers.CharField(help_text="How the token begins, to recognise it by.")
    created_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField()
    last_used_at = serializers.DateTimeField(allow_null=True)
    current = serializers.BooleanField(help_text="Whether this very call was made with it.")


class NewToken(Token):
    token = serializers.CharField(help_text="Shown this once.")


class TokenPage(serializers.Serializer[Any]):
    next = serializers.URLField(allow_null=True)
    previous = serializers.URLField(allow_null=True)
    results = Token(many=True)


class Limits(serializers.Serializer[Any]):
    max_running = serializers.IntegerField()
    max_running_global = serializers.IntegerField()
    max_workspaces = serializers.IntegerField()


class Usage(serializers.Serializer[Any]):
    workspaces = serializers.IntegerField()
    running = serializers.IntegerField(help_text="What the running limit counts.")
    in_error = serializers.IntegerField()


class Me(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    username = serializers.CharField()
    email = serializers.CharField()
    is_staff = serializers.BooleanField()
    limits = Limits()
    usage = Usage()


class Image(serializers.Serializer[Any]):
    name = serializers.CharField()
    title = serializers.CharField()
    description = serializers.CharField()
    memory_mb = serializers.IntegerField()
    cpus = serializers.FloatField()
    runtimes = serializers.ListField(child=serializers.CharField())
    default = serializers.BooleanField()


class ImagePage(serializers.Serializer[Any]):
    next = serializers.URLField(allow_null=True)
    previous = serializers.URLField(allow_null=True)
    results = Image(many=True)


class Running(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    name = serializers.CharField()
    phase = serializers.ChoiceField(PHASES)


class Error(serializers.Serializer[Any]):
    """Every failure. Branch on `code`; show `detail`."""

    detail = serializers.CharField(help_text="For people; translated.")
    code = serializers.ChoiceField([*CODES])
    fields = serializers.DictField(child=serializers.ListField(child=serializers.CharField()), required=False)  # type: ignore[assignment]
    running = Running(many=True, required=False)
    operation = serializers.ChoiceField(OPERATIONS, required=False)
