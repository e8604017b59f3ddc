"""The commands operators type: recovery under a name, arguments that are refused, log lines on demand."""

import io
import threading
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command

from coordinator.logtail import LogTaker
from coordinator.providers.base import UnreachableError
from coordinator.wiring import build_store
from workspaces import services
from workspaces.models import AuditEvent, Installation, LogTail, Workspace

pytestmark = pytest.mark.django_db


def broken(user: User) -> Workspace:
    workspace, _ = services.request_create(user=user, name="one", desired_state="STANDBY")
    Workspace.objects.filter(pk=workspace.pk).update(phase="ERROR", error_reason="ActionFailed", error_info={"reason": "ActionFailed"})
    return workspace


def test_recover_workspace_asks_in_the_operators_name() -> None:
    User.objects.create_user("op", is_staff=True)
    workspace = broken(User.objects.create_user("ann"))
    out = io.StringIO()
    call_command("recover_workspace", str(workspace.pk), "--user", "op", stdout=out)
    workspace.refresh_from_db()
    assert workspace.recovery_strategy == "reobserve"
    assert AuditEvent.objects.filter(action="recover", actor_name="op", workspace_id=workspace.pk).exists()
    assert str(workspace.pk) in out.getvalue()


def test_create_bucket_makes_it_once(s3: dict[str, str], settings: Any) -> None:
    settings.CONFIG = settings.CONFIG.model_copy(update={"s3_bucket": f"made-{uuid4().hex}"})
    store = build_store(settings.CONFIG, Installation.objects.get())
    with pytest.raises(UnreachableError):
        store.head("anything")
    for _ in range(2):
        out = io.StringIO()
        call_command("create_bucket", stdout=out)
        assert settings.CONFIG.s3_bucket in out.getvalue()
    assert store.head("anything") is None


def test_recover_workspace_says_why_it_refuses() -> None:
    owner = User.objects.create_user("ann")
    User.objects.create_user("op", is_staff=True)
    workspace = broken(owner)
    with pytest.raises(CommandError, match="no user nobody"):
        call_command("recover_workspace", str(workspace.pk), "--user", "nobody")
    with pytest.raises(CommandError, match="permission_denied"):
        call_command("recover_workspace", str(workspace.pk), "--user", "ann")
    with pytest.raises(CommandError, match="not_found"):
        call_command("recover_workspace", str(uuid4()), "--user", "op")
    with pytest.raises(CommandError, match="recovery_refused"):
        call_command("recover_workspace", str(workspace.pk), "--user", "op", "--strategy", "restore_archive")


@pytest.mark.parametrize("arguments", [["--loops", "events,nonsense"], ["--loops", ","], ["--shards", "0"]])
def test_run_coordinator_refuses_arguments_it_does_not_know(arguments: list[str]) -> None:
    with pytest.raises(CommandError, match=r"--loops|--shards"):
        call_command("run_coordinator", *arguments)


class Printing:
    def __init__(self, text: str) -> None:
        self.text = text
        self.asked: list[UUID] = []

    def logs(self, workspace_id: UUID, lines: int = 200) -> str:
        self.asked.append(workspace_id)
        return self.text


def test_log_lines_are_kept_for_the_web_and_the_owner_is_told() -> None:
    user = User.objects.create_user("ann")
    workspace, _ = services.request_create(user=user, name="one", desired_state="STANDBY")
    told: list[tuple[UUID, int]] = []
    printing = Printing("one\x00\ntwo\n")
    taker = LogTaker(printing, leading=threading.Event(), stop=threading.Event(), told=lambda *what: told.append(what))
    taker.take(workspace.pk)
    assert LogTail.objects.get().text == "one\ntwo\n"
    printing.text = "three\n"
    taker.take(workspace.pk)
    taker.take(uuid4())
    assert LogTail.objects.get().text == "three\n"
    assert told == [(workspace.pk, user.pk)] * 2
