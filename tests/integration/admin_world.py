"""A small world for the tests of the operators' desk: people, workspaces as a controller would have left them."""

from datetime import timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db.models.functions import Now

from workspaces import services
from workspaces.models import Alert, Attempt, Breaker, LogTail, LoopLease, Orphan, Transition, Workspace


def operator(name: str = "operator") -> User:
    return User.objects.create_user(name, is_staff=True)


def workspace(owner: User, name: str = "a workspace", **observed: Any) -> Workspace:
    """Observed columns are set behind the service's back, as the controller would."""
    made, _ = services.request_create(user=owner, name=name, desired_state=observed.pop("desired_state", "STANDBY"))
    if observed:
        Workspace.objects.filter(pk=made.pk).update(**observed)
        made.refresh_from_db()
    return made


def broken(owner: User, name: str = "broken", reason: str = "DataLost", **observed: Any) -> Workspace:
    info = {
        "reason": reason,
        "message": "The home volume is gone.",
        "is_terminal": True,
        "operation": "STARTING",
        "error_count": 1,
        "context": {"archive_key": None, "detail": "volume not found"},
        "occurred_at": "2026-01-01T00:00:00Z",
    }
    return workspace(owner, name, **{"phase": "ERROR", "error_reason": reason, "error_info": info, "error_count": 1, **observed})


def realistic(owner: User, *, copies: int = 1) -> list[Workspace]:
    """Every phase, an operation with progress, and the records around them, `copies` times."""
    made = []
    for number in range(copies):
        running = workspace(owner, f"api {number}", phase="RUNNING", desired_state="STANDBY", last_access_at=Now())
        archiving = workspace(owner, f"thesis {number}", phase="STANDBY", operation="ARCHIVING", op_started_at=Now() - timedelta(minutes=3))
        Attempt.objects.create(
            workspace=archiving,
            operation="ARCHIVING",
            op_id=archiving.pk,
            action="archive",
            state="RUNNING",
            executor="host-1/threads",
            step="upload",
            bytes_done=700 * 1024**2,
            bytes_total=1024**3,
            started_at=Now(),
        )
        lost = broken(
            owner, f"lost {number}", archive_key="a/b/home.tar.zst", archive_size=5 * 1024**2, archived_at=Now() - timedelta(days=2)
        )
        failed = broken(owner, f"no image {number}", "ImagePullFailed", phase_changed_at=Now() - timedelta(hours=5))
        Attempt.objects.create(
            workspace=failed,
            operation="STARTING",
            op_id=failed.pk,
            action="start",
            state="FAILED",
            error={"reason": "ImagePullFailed", "message": "no such image"},
            log="pulling\nno such image",
            started_at=Now() - timedelta(seconds=4),
            finished_at=Now(),
        )
        Transition.objects.create(
            workspace=failed,
            from_phase="STANDBY",
            to_phase="ERROR",
            from_operation="STARTING",
            to_operation="NONE",
            reason="ImagePullFailed",
        )
        Alert.objects.create(
            workspace=failed, reason="ImagePullFailed", message="no such image", delivered={"mail": "sent", "webhook": "failed"}
        )
        LogTail.objects.create(workspace=failed, text="listening\nkilled")
        stuck = workspace(owner, f"stuck {number}", phase="STANDBY", desired_state="ARCHIVED", updated_at=Now() - timedelta(hours=1))
        Orphan.objects.create(kind="archive", name=f"gone/{owner.pk}-{number}/home.tar.zst", known=False, size=3 * 1024**2)
        Orphan.objects.create(kind="volume", name=f"ws-old-{owner.pk}-{number}-home-1", known=True, size=1024**2)
        made += [running, archiving, lost, failed, stuck]
    for loop in ("events", "reconcile", "ttl"):
        LoopLease.objects.get_or_create(
            loop=loop,
            defaults={
                "holder": "host-1:4711",
                "heartbeat_at": Now(),
                "acquired_at": Now(),
                "last_tick_at": Now(),
                "last_tick_ms": 12.5,
                "ticks": 9,
            },
        )
    Breaker.objects.get_or_create(name="docker", defaults={"state": "closed"})
    Breaker.objects.get_or_create(name="s3", defaults={"state": "open", "failures": 5, "last_error": "connection refused"})
    return made
