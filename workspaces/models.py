"""The schema. A Workspace is two blocks of columns with one writer each: *asked for* (the service layer) and *observed*
(the controller). Reads are methods of a QuerySet; nothing here decides anything.
"""

import uuid
from typing import Any, ClassVar, Self

import pgtrigger
from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser
from django.contrib.postgres.fields import ArrayField
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.db.models import F, OuterRef, Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from workspaces.catalogue_rules import check_command, check_entry, check_env, check_ref
from workspaces.phases import Action, AttemptState, DesiredState, ErrorReason, Operation, Phase, RecoveryStrategy


def _choices(enum: Any) -> list[tuple[str, str]]:
    return [(member.value, member.value) for member in enum]


def _one_of(field: str, enum: Any, *, null: bool = False) -> Q:
    condition = Q(**{f"{field}__in": [member.value for member in enum]})
    return condition | Q(**{f"{field}__isnull": True}) if null else condition


def default_home_ctx() -> dict[str, Any]:
    """No generation yet, nothing whole, nothing expected on disk."""
    return {"generation": 0, "whole": False, "expected": False, "restore_marker": None}


class Installation(models.Model):
    """The one row that names this installation and remembers which engine its homes live on."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    singleton = models.BooleanField(default=True, unique=True, editable=False)
    runtime = models.CharField(max_length=20, blank=True, default="")
    engine_identity = models.CharField(max_length=200, blank=True, default="")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        verbose_name = _("installation")
        verbose_name_plural = _("installation")
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.CheckConstraint(condition=Q(singleton=True), name="installation_is_one")
        ]

    def __str__(self) -> str:
        return str(self.id)


class Image(models.Model):
    """One entry of the catalogue: what a workspace may run. Only these are ever started."""

    name = models.SlugField(max_length=60, unique=True, help_text=_("Short name used in the API."))
    title = models.CharField(max_length=100)
    description = models.CharField(max_length=300, blank=True, default="")
    ref = models.CharField(
        max_length=255,
        blank=True,
        default="",
        validators=[check_ref],
        help_text=_("Image reference, for Docker."),
    )
    command = models.JSONField(
        default=list,
        blank=True,
        validators=[check_command],
        help_text=_("List of words. May use {port}, {home}, {base_url}, {socket}, {id}."),
    )
    port = models.PositiveIntegerField(default=8080, validators=[MinValueValidator(1), MaxValueValidator(65535)])
    env = models.JSONField(default=dict, blank=True, validators=[check_env])
    home = models.CharField(max_length=200, default="/home/coder", validators=[RegexValidator(r"^/[A-Za-z0-9._/-]+\Z")])
    uid = models.PositiveIntegerField(default=1000, validators=[MinValueValidator(1)])
    gid = models.PositiveIntegerField(default=1000, validators=[MinValueValidator(1)])
    memory_mb = models.PositiveIntegerField(default=2048, validators=[MinValueValidator(64), MaxValueValidator(1_048_576)])
    cpus = models.DecimalField(max_digits=5, decimal_places=2, default=2, validators=[MinValueValidator(0.1), MaxValueValidator(256)])
    pids_limit = models.PositiveIntegerField(default=1024, validators=[MinValueValidator(16), MaxValueValidator(1_000_000)])
    strip_prefix = models.BooleanField(
        default=True, help_text=_("In path form, remove /w/{id} before forwarding (code-server) or keep it (JupyterLab).")
    )
    health_path = models.CharField(max_length=200, default="/", validators=[RegexValidator(r"^/[\x21-\x7e]*\Z")])
    runtimes = ArrayField(models.CharField(max_length=20, choices=[("docker", "docker"), ("process", "process")]), default=list)
    enabled = models.BooleanField(default=True)
    position = models.PositiveIntegerField(default=100, help_text=_("Smaller comes first; the first enabled one is the default."))

    class Meta:
        verbose_name = _("image")
        verbose_name_plural = _("images")
        ordering: ClassVar[list[str]] = ["position", "name"]

    def __str__(self) -> str:
        return self.title

    def clean(self) -> None:
        check_entry(runtimes=self.runtimes or [], ref=self.ref, command=self.command or [], home=self.home or "")


class UserProfile(models.Model):
    """What CodeHub knows of a user beyond Django: limits an operator set, and tastes the user chose."""

    user = models.OneToOneField(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="profile")
    max_running = models.PositiveIntegerField(null=True, blank=True, help_text=_("Running workspaces; empty: the site's limit."))
    max_workspaces = models.PositiveIntegerField(null=True, blank=True, help_text=_("Workspaces owned; empty: the site's limit."))
    language = models.CharField(max_length=10, blank=True, default="", choices=[("", _("Browser's")), ("en", "English"), ("ko", "한국어")])
    theme = models.CharField(max_length=10, default="system", choices=[("system", _("System")), ("light", _("Light")), ("dark", _("Dark"))])

    class Meta:
        verbose_name = _("profile")
        verbose_name_plural = _("profiles")

    def __str__(self) -> str:
        return str(self.user)


class WorkspaceQuerySet(models.QuerySet["Workspace"]):
    """Reads. Writers are the service layer and the controller's recorder."""

    def visible(self) -> Self:
        """What still exists for people: DELETING is shown, DELETED is not."""
        return self.exclude(phase=Phase.DELETED)

    def owned_by(self, user: AbstractBaseUser) -> Self:
        return self.filter(owner_id=user.pk)

    def counted_as_running(self) -> Self:
        """What a running limit counts. An operator's recovery was granted its place when it was asked for."""
        wanted = self.filter(desired_state=DesiredState.RUNNING, deleted_at__isnull=True)
        return wanted.exclude(phase=Phase.ERROR, recovery_strategy__isnull=True)

    def to_reconcile(self) -> Self:
        """Everything the controller still has to look at."""
        return self.exclude(phase=Phase.DELETED)

    def for_display(self) -> Self:
        return self.select_related("owner", "image")


class Workspace(models.Model):
    """A person's development environment: a home, and sometimes an IDE running on it."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)

    # --- asked for: written by workspaces.services alone -------------------------------------------------------------
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="workspaces")
    image = models.ForeignKey(Image, on_delete=models.PROTECT, related_name="workspaces")
    name = models.CharField(max_length=100)
    description = models.CharField(max_length=500, blank=True, default="")
    memo = models.TextField(max_length=10_000, blank=True, default="")
    desired_state = models.CharField(max_length=10, choices=_choices(DesiredState), default=DesiredState.RUNNING)
    deleted_at = models.DateTimeField(null=True, blank=True)
    last_access_at = models.DateTimeField(null=True, blank=True)
    last_activity = models.JSONField(null=True, blank=True)
    keep_awake_until = models.DateTimeField(null=True, blank=True)
    recovery_strategy = models.CharField(max_length=20, null=True, blank=True, choices=_choices(RecoveryStrategy))
    standby_ttl_seconds = models.PositiveIntegerField(null=True, blank=True)
    archive_ttl_seconds = models.PositiveIntegerField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(db_default=Now(), editable=False)

    # --- observed: written by coordinator.status alone ---------------------------------------------------------------
    conditions = models.JSONField(default=dict, blank=True)
    observed_at = models.DateTimeField(null=True, blank=True)
    phase = models.CharField(max_length=10, choices=_choices(Phase), default=Phase.PENDING)
    phase_changed_at = models.DateTimeField(db_default=Now())
    operation = models.CharField(max_length=20, choices=_choices(Operation), default=Operation.NONE)
    op_started_at = models.DateTimeField(null=True, blank=True)
    archive_op_id = models.UUIDField(null=True, blank=True)
    archive_key = models.CharField(max_length=300, null=True, blank=True)
    archive_sha256 = models.CharField(max_length=64, null=True, blank=True)
    archive_size = models.BigIntegerField(null=True, blank=True)
    archived_at = models.DateTimeField(null=True, blank=True)
    error_reason = models.CharField(max_length=30, null=True, blank=True, choices=_choices(ErrorReason))
    error_info = models.JSONField(null=True, blank=True)
    error_count = models.PositiveIntegerField(default=0)
    previous_phase = models.CharField(max_length=10, null=True, blank=True, choices=_choices(Phase))
    home_ctx = models.JSONField(default=default_home_ctx, blank=True)
    endpoint = models.CharField(max_length=300, blank=True, default="")

    objects = WorkspaceQuerySet.as_manager()

    class Meta:
        verbose_name = _("workspace")
        verbose_name_plural = _("workspaces")
        ordering: ClassVar[list[str]] = ["-created_at", "id"]
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.CheckConstraint(condition=_one_of("phase", Phase), name="workspace_phase_known"),
            models.CheckConstraint(condition=_one_of("operation", Operation), name="workspace_operation_known"),
            models.CheckConstraint(condition=_one_of("desired_state", DesiredState), name="workspace_desired_state_known"),
            models.CheckConstraint(condition=_one_of("error_reason", ErrorReason, null=True), name="workspace_error_reason_known"),
            models.CheckConstraint(condition=_one_of("previous_phase", Phase, null=True), name="workspace_previous_phase_known"),
            models.CheckConstraint(condition=_one_of("recovery_strategy", RecoveryStrategy, null=True), name="workspace_recovery_known"),
            models.CheckConstraint(condition=~Q(phase=Phase.ERROR) | Q(operation=Operation.NONE), name="workspace_error_has_no_operation"),
            models.CheckConstraint(
                condition=Q(deleted_at__isnull=True, desired_state__in=["RUNNING", "STANDBY", "ARCHIVED"])
                | Q(deleted_at__isnull=False, desired_state="DELETED"),
                name="workspace_deleted_together",
            ),
        ]
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["owner", "-created_at", "id"], name="workspace_owner_list", condition=~Q(phase=Phase.DELETED)),
            models.Index(fields=["id"], name="workspace_operating", condition=~Q(operation=Operation.NONE)),
            models.Index(fields=["id"], name="workspace_wanting", condition=~Q(desired_state=F("phase"))),
            models.Index(
                fields=["last_access_at"], name="workspace_ttl_standby", condition=Q(phase=Phase.RUNNING, operation=Operation.NONE)
            ),
            models.Index(
                fields=["phase_changed_at"], name="workspace_ttl_archive", condition=Q(phase=Phase.STANDBY, operation=Operation.NONE)
            ),
            models.Index(
                fields=["owner"], name="workspace_limits", condition=Q(desired_state=DesiredState.RUNNING, deleted_at__isnull=True)
            ),
            models.Index(fields=["error_reason"], name="workspace_errors", condition=Q(phase=Phase.ERROR)),
        ]
        triggers: ClassVar[list[pgtrigger.Trigger]] = [
            pgtrigger.Trigger(
                name="notify_sse_insert",
                when=pgtrigger.After,
                operation=pgtrigger.Insert,
                func="PERFORM pg_notify('ws_sse', json_build_object('id', NEW.id, 'user', NEW.owner_id)::text); RETURN NULL;",
            ),
            pgtrigger.Trigger(
                name="notify_sse_update",
                when=pgtrigger.After,
                operation=pgtrigger.Update,
                condition=pgtrigger.AnyChange(
                    "phase",
                    "operation",
                    "desired_state",
                    "error_reason",
                    "name",
                    "description",
                    "memo",
                    "standby_ttl_seconds",
                    "archive_ttl_seconds",
                    "keep_awake_until",
                ),
                func="PERFORM pg_notify('ws_sse', json_build_object('id', NEW.id, 'user', NEW.owner_id)::text); RETURN NULL;",
            ),
            pgtrigger.Trigger(
                name="notify_wake_insert",
                when=pgtrigger.After,
                operation=pgtrigger.Insert,
                func="PERFORM pg_notify('ws_wake', json_build_object('id', NEW.id, 'user', NEW.owner_id)::text); RETURN NULL;",
            ),
            pgtrigger.Trigger(
                name="notify_wake_update",
                when=pgtrigger.After,
                operation=pgtrigger.Update,
                condition=pgtrigger.AnyChange("desired_state", "recovery_strategy"),
                func="PERFORM pg_notify('ws_wake', json_build_object('id', NEW.id, 'user', NEW.owner_id)::text); RETURN NULL;",
            ),
            pgtrigger.Trigger(
                name="notify_deleted",
                when=pgtrigger.After,
                operation=pgtrigger.Update,
                condition=pgtrigger.Q(old__deleted_at__isnull=True, new__deleted_at__isnull=False),
                func="PERFORM pg_notify('ws_deleted', json_build_object('id', NEW.id, 'user', NEW.owner_id)::text); RETURN NULL;",
            ),
        ]

    def __str__(self) -> str:
        return self.name


class AttemptQuerySet(models.QuerySet["Attempt"]):
    def counted(self) -> Self:
        """With `tries`: how often this step of its operation had been tried by then. `number` counts all steps together."""
        same = Attempt.objects.filter(op_id=OuterRef("op_id"), action=OuterRef("action"), number__lte=OuterRef("number"))
        count = same.order_by().values("op_id").annotate(count=models.Count("pk")).values("count")
        return self.annotate(tries=models.Subquery(count))


class Attempt(models.Model):
    """One actuator run. The controller queues it, an executor takes it, and it ends exactly once.

    A row without `finished_at` owns its workspace: the partial unique constraint keeps runs from overlapping.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    workspace = models.ForeignKey(Workspace, on_delete=models.CASCADE, related_name="attempts")
    operation = models.CharField(max_length=20, choices=_choices(Operation))
    op_id = models.UUIDField(help_text="The claim this run belongs to.")
    action = models.CharField(max_length=20, choices=_choices(Action))
    number = models.PositiveIntegerField(default=1)
    state = models.CharField(max_length=10, choices=_choices(AttemptState), default=AttemptState.QUEUED)
    executor = models.CharField(max_length=200, blank=True, default="")
    backend_pid = models.IntegerField(null=True, blank=True)
    params = models.JSONField(default=dict, blank=True)
    result = models.JSONField(default=dict, blank=True)
    error = models.JSONField(null=True, blank=True)
    log = models.TextField(blank=True, default="")
    step = models.CharField(max_length=40, blank=True, default="")
    bytes_done = models.BigIntegerField(default=0)
    bytes_total = models.BigIntegerField(null=True, blank=True)
    queued_at = models.DateTimeField(db_default=Now())
    started_at = models.DateTimeField(null=True, blank=True)
    heartbeat_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    objects = AttemptQuerySet.as_manager()

    class Meta:
        verbose_name = _("attempt")
        verbose_name_plural = _("attempts")
        ordering: ClassVar[list[str]] = ["-queued_at", "-id"]
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["workspace"], condition=Q(finished_at__isnull=True), name="attempt_never_overlaps"),
            models.CheckConstraint(condition=_one_of("state", AttemptState), name="attempt_state_known"),
            models.CheckConstraint(
                condition=Q(finished_at__isnull=True, state__in=["QUEUED", "RUNNING"])
                | Q(finished_at__isnull=False, state__in=["SUCCEEDED", "FAILED", "LOST"]),
                name="attempt_ends_once",
            ),
        ]
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["workspace", "-queued_at"], name="attempt_history"),
            models.Index(fields=["op_id", "number"], name="attempt_of_operation"),
        ]
        triggers: ClassVar[list[pgtrigger.Trigger]] = [
            pgtrigger.Trigger(
                name="notify_progress",
                when=pgtrigger.After,
                operation=pgtrigger.Update,
                condition=pgtrigger.AnyChange("bytes_done", "bytes_total", "step"),
                func="""
                    PERFORM pg_notify('ws_progress', json_build_object('id', NEW.workspace_id, 'user', w.owner_id)::text)
                        FROM workspaces_workspace w WHERE w.id = NEW.workspace_id;
                    RETURN NULL;
                """,
            ),
        ]

    def __str__(self) -> str:
        return f"{self.action} {self.number} {self.state}"


class Transition(models.Model):
    """One change of phase or operation, for the timeline and the savings report."""

    workspace = models.ForeignKey(Workspace, on_delete=models.CASCADE, related_name="transitions")
    at = models.DateTimeField(db_default=Now())
    from_phase = models.CharField(max_length=10)
    to_phase = models.CharField(max_length=10)
    from_operation = models.CharField(max_length=20)
    to_operation = models.CharField(max_length=20)
    reason = models.CharField(max_length=60, blank=True, default="")
    message = models.TextField(blank=True, default="")

    class Meta:
        verbose_name = _("transition")
        verbose_name_plural = _("transitions")
        ordering: ClassVar[list[str]] = ["-at", "-id"]
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["workspace", "-at"], name="transition_history"),
            models.Index(fields=["at"], name="transition_time"),
        ]

    def __str__(self) -> str:
        return f"{self.from_phase} -> {self.to_phase}"


class AuditEvent(models.Model):
    """Who asked for what, when and from where. Kept when the workspace or the user is gone."""

    at = models.DateTimeField(db_default=Now())
    actor = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    actor_name = models.CharField(max_length=150, blank=True, default="")
    action = models.CharField(max_length=60)
    workspace_id = models.UUIDField(null=True, blank=True)
    workspace_name = models.CharField(max_length=100, blank=True, default="")
    address = models.GenericIPAddressField(null=True, blank=True)
    detail = models.JSONField(default=dict, blank=True)

    class Meta:
        verbose_name = _("audit event")
        verbose_name_plural = _("audit events")
        ordering: ClassVar[list[str]] = ["-at", "-id"]
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["workspace_id", "-at"], name="audit_workspace"),
            models.Index(fields=["-at"], name="audit_time"),
        ]

    def __str__(self) -> str:
        return f"{self.actor_name} {self.action}"


class IdempotencyKey(models.Model):
    """A create that was already answered: the same key and body give the same workspace."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    key = models.CharField(max_length=255)
    body_sha256 = models.CharField(max_length=64)
    workspace = models.ForeignKey(Workspace, on_delete=models.CASCADE, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [models.UniqueConstraint(fields=["user", "key"], name="idempotency_key_once")]

    def __str__(self) -> str:
        return self.key


class ApiToken(models.Model):
    """The name an owner gave to a knox token. The token itself is only kept hashed, by knox."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    auth_token = models.OneToOneField("knox.AuthToken", on_delete=models.CASCADE, related_name="label")
    name = models.CharField(max_length=100)
    last_used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = _("API token")
        verbose_name_plural = _("API tokens")

    def __str__(self) -> str:
        return self.name


class UserSession(models.Model):
    """Where a user is signed in, for the account page. The session itself is Django's; this row may outlive it unseen."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="sessions")
    session_key = models.CharField(max_length=40, unique=True)
    address = models.GenericIPAddressField(null=True, blank=True)
    agent = models.CharField(max_length=300, blank=True, default="")
    created_at = models.DateTimeField(db_default=models.functions.Now())
    last_seen_at = models.DateTimeField(db_default=models.functions.Now())

    class Meta:
        ordering: ClassVar[list[str]] = ["-last_seen_at", "-id"]

    def __str__(self) -> str:
        return f"{self.user_id} {self.last_seen_at}"


class LogTail(models.Model):
    """The last lines an IDE printed, as the coordinator saw them. The web reads them here: it has no engine to ask."""

    workspace = models.OneToOneField(Workspace, on_delete=models.CASCADE, related_name="log_tail")
    text = models.TextField(blank=True, default="")
    taken_at = models.DateTimeField(db_default=Now())

    def __str__(self) -> str:
        return f"{self.workspace_id} {self.taken_at}"


class LoopLease(models.Model):
    """Who leads which loop since when, its heartbeat, and how its last tick went. The lock itself is PostgreSQL's."""

    loop = models.CharField(max_length=30)
    shard = models.PositiveIntegerField(default=0)
    holder = models.CharField(max_length=200, blank=True, default="")
    backend_pid = models.IntegerField(null=True, blank=True)
    term = models.BigIntegerField(default=0)
    acquired_at = models.DateTimeField(null=True, blank=True)
    heartbeat_at = models.DateTimeField(null=True, blank=True)
    last_tick_at = models.DateTimeField(null=True, blank=True)
    last_tick_ms = models.FloatField(null=True, blank=True)
    ticks = models.BigIntegerField(default=0)
    failures = models.BigIntegerField(default=0)
    last_error = models.CharField(max_length=500, blank=True, default="")

    class Meta:
        verbose_name = _("loop")
        verbose_name_plural = _("loops")
        ordering: ClassVar[list[str]] = ["loop", "shard"]
        constraints: ClassVar[list[models.BaseConstraint]] = [models.UniqueConstraint(fields=["loop", "shard"], name="lease_once")]

    def __str__(self) -> str:
        return f"{self.loop}/{self.shard}"


class Breaker(models.Model):
    """A circuit breaker as its coordinator last reported it, for operators and metrics."""

    name = models.CharField(max_length=30, unique=True)
    state = models.CharField(max_length=10, default="closed")
    failures = models.PositiveIntegerField(default=0)
    opened_at = models.DateTimeField(null=True, blank=True)
    changed_at = models.DateTimeField(db_default=Now())
    last_error = models.CharField(max_length=500, blank=True, default="")

    class Meta:
        verbose_name = _("circuit breaker")
        verbose_name_plural = _("circuit breakers")

    def __str__(self) -> str:
        return f"{self.name} {self.state}"


class Orphan(models.Model):
    """Something outside that no row accounts for, and since when. What belongs to no workspace at all waits for an operator."""

    kind = models.CharField(max_length=10, choices=[("container", "container"), ("volume", "volume"), ("archive", "archive")])
    name = models.CharField(max_length=400)
    workspace_id = models.UUIDField(null=True, blank=True)
    known = models.BooleanField(default=True, help_text=_("Its workspace has, or had, a row here."))
    size = models.BigIntegerField(null=True, blank=True)
    first_seen_at = models.DateTimeField(db_default=Now())
    last_seen_at = models.DateTimeField(db_default=Now())
    confirmed_at = models.DateTimeField(null=True, blank=True)
    confirmed_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")

    class Meta:
        verbose_name = _("orphan")
        verbose_name_plural = _("orphans")
        ordering: ClassVar[list[str]] = ["first_seen_at", "id"]
        constraints: ClassVar[list[models.BaseConstraint]] = [models.UniqueConstraint(fields=["kind", "name"], name="orphan_once")]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class Alert(models.Model):
    """Operators were told, once for each transition to ERROR."""

    at = models.DateTimeField(db_default=Now())
    workspace = models.ForeignKey(Workspace, null=True, blank=True, on_delete=models.SET_NULL, related_name="alerts")
    reason = models.CharField(max_length=60)
    message = models.TextField(blank=True, default="")
    delivered = models.JSONField(default=dict, blank=True, help_text=_("How each way of telling went."))

    class Meta:
        verbose_name = _("alert")
        verbose_name_plural = _("alerts")
        ordering: ClassVar[list[str]] = ["-at", "-id"]

    def __str__(self) -> str:
        return f"{self.reason} {self.at}"
