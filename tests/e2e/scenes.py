"""Realistic rows for screens: every state a card can be in, with history, as the controller would have left them."""

from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from django.contrib.auth.models import User

from workspaces.models import Attempt, Image, Workspace
from workspaces.phases import DesiredState, Operation, Phase

MIB = 1024**2
DIGEST = "9f2c1c2a4d5e6f708192a3b4c5d6e7f8090a1b2c3d4e5f60718293a4b5c6d7e8"


def conditions(
    now: datetime, *, volume: bool = False, archive: bool = False, container: bool = False, healthy: bool = True
) -> dict[str, Any]:
    def one(status: bool, yes: str, no: str, message: str = "") -> dict[str, Any]:
        return {
            "status": status,
            "reason": yes if status else no,
            "message": message,
            "last_transition_time": (now - timedelta(minutes=41)).isoformat(),
        }

    return {
        "storage.volume_ready": one(volume, "VolumeReady", "NoVolume"),
        "storage.archive_ready": one(archive, "ArchiveReady", "NoArchive"),
        "infra.container_ready": one(container, "ContainerReady", "NoContainer"),
        "policy.healthy": one(healthy, "Healthy", "RetryExceeded"),
    }


def fill(owner: User, *, now: datetime) -> dict[str, Workspace]:
    """One workspace for each kind of card."""
    image = Image.objects.all()[0]

    def make(name: str, description: str, age: timedelta, **columns: Any) -> Workspace:
        columns.setdefault("desired_state", columns["phase"])
        return Workspace.objects.create(
            owner=owner,
            image=image,
            name=name,
            description=description,
            created_at=now - age,
            observed_at=now - timedelta(seconds=4),
            **columns,
        )

    day = timedelta(days=1)
    made = {
        "running": make(
            "payments-api",
            "Django service, feature branch",
            12 * day,
            phase=Phase.RUNNING,
            phase_changed_at=now - timedelta(minutes=47),
            last_access_at=now - timedelta(minutes=2),
            last_activity={"kind": "typing", "at": (now - timedelta(minutes=2)).isoformat()},
            conditions=conditions(now, volume=True, container=True),
            endpoint="tcp://127.0.0.1:1",
        ),
        "starting": make(
            "data-notebooks",
            "Quarterly figures",
            9 * day,
            phase=Phase.STANDBY,
            desired_state=DesiredState.RUNNING,
            operation=Operation.STARTING,
            op_started_at=now - timedelta(seconds=6),
            conditions=conditions(now, volume=True),
        ),
        "archiving": make(
            "legacy-import",
            "",
            30 * day,
            phase=Phase.STANDBY,
            desired_state=DesiredState.ARCHIVED,
            operation=Operation.ARCHIVING,
            op_started_at=now - timedelta(seconds=34),
            conditions=conditions(now, volume=True),
        ),
        "standby": make(
            "docs-site",
            "Handbook and release notes",
            5 * day,
            phase=Phase.STANDBY,
            phase_changed_at=now - timedelta(minutes=9),
            last_access_at=now - timedelta(minutes=22),
            conditions=conditions(now, volume=True),
        ),
        "archived": make(
            "mobile-prototype",
            "Spike from spring",
            80 * day,
            phase=Phase.ARCHIVED,
            phase_changed_at=now - 6 * day,
            archive_key="k",
            archive_size=413 * MIB,
            archive_sha256=DIGEST,
            archived_at=now - 6 * day,
            last_access_at=now - 7 * day,
            conditions=conditions(now, archive=True),
        ),
        "error": make(
            "ml-training",
            "",
            20 * day,
            phase=Phase.ERROR,
            desired_state=DesiredState.RUNNING,
            phase_changed_at=now - timedelta(minutes=11),
            error_reason="RetryExceeded",
            error_info={
                "reason": "RetryExceeded",
                "message": "start failed three times: the IDE's port never answered",
                "is_terminal": True,
                "operation": "STARTING",
                "error_count": 3,
                "context": {"max_retries": 3, "last_error": "port 8080 never answered", "last_reason": "ActionFailed"},
            },
            previous_phase=Phase.STANDBY,
            conditions=conditions(now, volume=True, healthy=False),
        ),
    }
    _runs(made, now=now)
    _history(made, now=now)
    return made


def _runs(made: dict[str, Workspace], *, now: datetime) -> None:
    Attempt.objects.create(
        workspace=made["archiving"],
        operation=Operation.ARCHIVING,
        op_id=uuid4(),
        action="archive",
        state="RUNNING",
        step="upload",
        bytes_done=612 * MIB,
        bytes_total=1480 * MIB,
        result={"step_seconds": 33.0},
        queued_at=now - timedelta(seconds=34),
        started_at=now - timedelta(seconds=33),
    )
    Attempt.objects.create(
        workspace=made["starting"],
        operation=Operation.STARTING,
        op_id=uuid4(),
        action="start",
        state="RUNNING",
        queued_at=now - timedelta(seconds=6),
        started_at=now - timedelta(seconds=6),
    )
    op_id = uuid4()
    for number in (1, 2, 3):
        began = now - timedelta(minutes=22 - 3 * number)
        Attempt.objects.create(
            workspace=made["error"],
            operation=Operation.STARTING,
            op_id=op_id,
            action="start",
            number=number,
            state="FAILED",
            error={"message": "port 8080 never answered within 60 s"},
            log="[info] code-server 4.139.1\n[error] listen EADDRINUSE: address already in use 0.0.0.0:8080\n",
            queued_at=began,
            started_at=began,
            finished_at=began + timedelta(seconds=61),
        )


def _history(made: dict[str, Workspace], *, now: datetime) -> None:
    """Two weeks of working days: mornings awake, nights in the archive."""
    for index, workspace in enumerate(made.values()):
        for days_ago in range(13, 0, -1):
            start = (now - timedelta(days=days_ago)).replace(hour=1, minute=9 * index, second=0)
            if start < workspace.created_at:
                continue
            steps = [(Phase.ARCHIVED, Phase.STANDBY, 0), (Phase.STANDBY, Phase.RUNNING, 0.02)]
            hours = 3 + (days_ago * 7 + index * 5) % 6
            steps += [(Phase.RUNNING, Phase.STANDBY, hours), (Phase.STANDBY, Phase.ARCHIVED, hours + 4)]
            for before, after, offset in steps:
                workspace.transitions.create(
                    at=start + timedelta(hours=offset), from_phase=before, to_phase=after, from_operation="NONE", to_operation="NONE"
                )
    running = made["running"]
    running.transitions.create(
        at=running.phase_changed_at, from_phase="STANDBY", to_phase="RUNNING", from_operation="STARTING", to_operation="NONE"
    )
    error = made["error"]
    error.transitions.create(
        at=error.phase_changed_at,
        from_phase="STANDBY",
        to_phase="ERROR",
        from_operation="STARTING",
        to_operation="NONE",
        reason="RetryExceeded",
        message="start failed three times",
    )
