"""The service layer on real PostgreSQL: what may be asked for when, exact limits, the audit trail."""

import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.db.models.functions import Now

from workspaces import services
from workspaces.errors import (
    IdempotencyConflictError,
    InvalidRequestError,
    LimitExceededError,
    NotAllowedError,
    NotFoundError,
    NotInErrorError,
    OperationInProgressError,
    RecoverFirstError,
    RecoveryRefusedError,
    RequestError,
    StaleError,
)
from workspaces.models import AuditEvent, UserProfile, Workspace

pytestmark = pytest.mark.django_db


@pytest.fixture
def owner() -> User:
    return User.objects.create_user("owner", password="correct horse battery")


@pytest.fixture
def operator() -> User:
    return User.objects.create_user("operator", password="correct horse battery", is_staff=True)


def made(owner: User, **observed: Any) -> Workspace:
    """A workspace as the controller would have left it: observed columns are set behind the service's back."""
    desired = observed.pop("desired_state", "STANDBY")
    workspace, _ = services.request_create(user=owner, name="a workspace", desired_state=desired)
    if observed:
        Workspace.objects.filter(pk=workspace.pk).update(**observed)
        workspace.refresh_from_db()
    return workspace


def test_create_writes_the_wish_and_an_audit_row(owner: User) -> None:
    workspace, created = services.request_create(user=owner, name="  spaced  ", address="10.1.2.3")
    assert created
    assert (workspace.name, workspace.desired_state, workspace.phase, workspace.operation) == ("spaced", "RUNNING", "PENDING", "NONE")
    event = AuditEvent.objects.get()
    assert (event.action, event.actor, event.workspace_id, event.address) == ("create", owner, workspace.pk, "10.1.2.3")


@pytest.mark.parametrize("name", ["", "   ", "a\x00b", "a\nb", "a\u202eb", "x" * 101, 5, None])
def test_create_refuses_names_that_hide_or_break(owner: User, name: Any) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        services.request_create(user=owner, name=name)
    assert "name" in refused.value.facts["fields"]
    assert not Workspace.objects.exists()


@pytest.mark.parametrize("ttl", [-1, 1, 10**9, "60", True, 1.5])
def test_ttls_outside_the_operators_bounds_are_refused(owner: User, ttl: Any) -> None:
    with pytest.raises(InvalidRequestError):
        services.request_create(user=owner, name="x", standby_ttl_seconds=ttl)


def test_the_same_idempotency_key_gives_the_same_workspace_and_another_body_a_conflict(owner: User) -> None:
    first, created_first = services.request_create(user=owner, name="one", idempotency_key="k")
    again, created_again = services.request_create(user=owner, name="one", idempotency_key="k")
    assert (first.pk, created_first, created_again) == (again.pk, True, False)
    with pytest.raises(IdempotencyConflictError):
        services.request_create(user=owner, name="two", idempotency_key="k")
    assert Workspace.objects.count() == 1


def test_create_counts_against_the_running_limit(owner: User) -> None:
    for _ in range(2):
        services.request_create(user=owner, name="x")
    with pytest.raises(LimitExceededError) as refused:
        services.request_create(user=owner, name="x")
    assert len(refused.value.facts["running"]) == 2
    services.request_create(user=owner, name="not running", desired_state="STANDBY")


def test_an_operator_may_set_a_users_own_limit(owner: User) -> None:
    UserProfile.objects.create(user=owner, max_running=0)
    with pytest.raises(LimitExceededError):
        services.request_create(user=owner, name="x")


def test_workspaces_in_error_do_not_count(owner: User) -> None:
    for _ in range(3):
        made(owner, desired_state="RUNNING", phase="ERROR")
    assert Workspace.objects.counted_as_running().count() == 0


def test_somebody_elses_workspace_is_unknown(owner: User) -> None:
    workspace = made(owner)
    stranger = User.objects.create_user("stranger")
    calls: list[Callable[[UUID], Workspace]] = [
        lambda pk: services.request_state(pk, user=stranger, desired_state="RUNNING"),
        lambda pk: services.request_delete(pk, user=stranger),
        lambda pk: services.request_describe(pk, user=stranger, fields={"name": "mine"}),
        lambda pk: services.request_keep_awake(pk, user=stranger, seconds=60),
    ]
    for call in calls:
        answers = []
        for pk in (workspace.pk, uuid4()):
            with pytest.raises(NotFoundError) as refused:
                call(pk)
            answers.append(refused.value.message)
        assert answers[0] == answers[1]


def test_another_state_while_an_operation_runs_is_refused_unless_queued(owner: User) -> None:
    workspace = made(owner, operation="PROVISIONING")
    with pytest.raises(OperationInProgressError):
        services.request_state(workspace.pk, user=owner, desired_state="ARCHIVED")
    assert services.request_state(workspace.pk, user=owner, desired_state="STANDBY").desired_state == "STANDBY"
    assert services.request_state(workspace.pk, user=owner, desired_state="ARCHIVED", queue=True).desired_state == "ARCHIVED"


def test_delete_while_an_operation_runs_is_refused_unless_queued(owner: User) -> None:
    workspace = made(owner, operation="ARCHIVING")
    with pytest.raises(OperationInProgressError):
        services.request_delete(workspace.pk, user=owner)
    deleted = services.request_delete(workspace.pk, user=owner, queue=True)
    assert deleted.deleted_at is not None
    assert deleted.desired_state == "DELETED"
    assert services.request_delete(workspace.pk, user=owner).deleted_at == deleted.deleted_at


def test_error_must_be_recovered_before_another_state_but_may_be_deleted(owner: User) -> None:
    workspace = made(owner, phase="ERROR")
    with pytest.raises(RecoverFirstError):
        services.request_state(workspace.pk, user=owner, desired_state="RUNNING")
    assert services.request_delete(workspace.pk, user=owner).deleted_at is not None


def test_deleted_is_not_a_state_to_ask_for(owner: User) -> None:
    with pytest.raises(InvalidRequestError):
        services.request_state(made(owner).pk, user=owner, desired_state="DELETED")


def test_a_change_based_on_an_old_reading_is_stale(owner: User) -> None:
    workspace = made(owner)
    services.request_describe(workspace.pk, user=owner, fields={"memo": "first"}, if_match=workspace.updated_at)
    with pytest.raises(StaleError):
        services.request_describe(workspace.pk, user=owner, fields={"memo": "second"}, if_match=workspace.updated_at)
    workspace.refresh_from_db()
    assert workspace.memo == "first"


def test_describe_and_state_together_happen_both_or_not_at_all(owner: User) -> None:
    workspace = made(owner, operation="PROVISIONING")
    with pytest.raises(OperationInProgressError):
        services.request_change(workspace.pk, user=owner, fields={"name": "new"}, desired_state="RUNNING")
    workspace.refresh_from_db()
    assert workspace.name == "a workspace"


def test_recover_is_for_operators_and_for_error_only(owner: User, operator: User) -> None:
    workspace = made(owner, phase="ERROR", error_reason="Timeout")
    with pytest.raises(NotAllowedError):
        services.request_recover(workspace.pk, user=owner)
    services.request_recover(workspace.pk, user=operator)
    workspace.refresh_from_db()
    assert workspace.recovery_strategy == "reobserve"
    with pytest.raises(NotInErrorError):
        services.request_recover(made(owner).pk, user=operator)


@pytest.mark.parametrize("strategy", ["restore_archive", "start_empty"])
def test_strategies_that_replace_a_home_are_refused_while_it_is_whole(owner: User, operator: User, strategy: str) -> None:
    seen = {"storage.volume_ready": {"status": True}}
    workspace = made(owner, phase="ERROR", error_reason="DataLost", archive_key="k", conditions=seen)
    with pytest.raises(RecoveryRefusedError):
        services.request_recover(workspace.pk, user=operator, strategy=strategy)


def test_restore_archive_without_an_archive_is_refused(owner: User, operator: User) -> None:
    workspace = made(owner, phase="ERROR", error_reason="DataLost")
    with pytest.raises(RecoveryRefusedError):
        services.request_recover(workspace.pk, user=operator, strategy="restore_archive")
    services.request_recover(workspace.pk, user=operator, strategy="start_empty")


def test_recovery_over_the_running_limit_leaves_it_at_standby(owner: User, operator: User) -> None:
    broken = made(owner, desired_state="RUNNING", phase="ERROR", error_reason="Timeout")
    for _ in range(2):
        made(owner, desired_state="RUNNING")
    services.request_recover(broken.pk, user=operator)
    broken.refresh_from_db()
    assert broken.desired_state == "STANDBY"


def test_a_place_granted_to_a_recovery_is_not_granted_again_before_it_is_taken_up(owner: User, operator: User) -> None:
    broken = made(owner, desired_state="RUNNING", phase="ERROR", error_reason="Timeout")
    made(owner, desired_state="RUNNING")
    for _ in range(2):
        # Asked twice, its own place is not in its way.
        services.request_recover(broken.pk, user=operator)
    broken.refresh_from_db()
    assert broken.desired_state == "RUNNING"
    with pytest.raises(LimitExceededError):
        made(owner, desired_state="RUNNING")


@pytest.mark.django_db(transaction=True)
def test_a_change_with_a_state_takes_its_locks_in_the_same_order_as_a_state_alone() -> None:
    owner = User.objects.create_user("racer")
    workspace = made(owner)
    problems: list[BaseException] = []
    barrier = threading.Barrier(4)

    def ask(number: int) -> None:
        try:
            barrier.wait()
            for turn in range(10):
                if number % 2:
                    services.request_change(workspace.pk, user=owner, fields={"name": f"n{turn}"}, desired_state="RUNNING")
                else:
                    services.request_state(workspace.pk, user=owner, desired_state="RUNNING" if turn % 2 else "STANDBY")
        except BaseException as error:
            problems.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


@pytest.mark.django_db(transaction=True)
def test_one_idempotency_key_sent_many_times_at_once_makes_one_workspace() -> None:
    owner = User.objects.create(username="hasty")
    answers: list[tuple[UUID, bool]] = []
    barrier = threading.Barrier(6)

    def ask() -> None:
        barrier.wait()
        workspace, made_here = services.request_create(user=owner, name="once", desired_state="STANDBY", idempotency_key="k")
        answers.append((workspace.pk, made_here))
        connection.close()

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {key for key, _ in answers} == set(Workspace.objects.values_list("pk", flat=True))
    assert sorted(made_here for _, made_here in answers) == [False] * 5 + [True]


def test_expiry_takes_only_what_is_settled_and_idle(owner: User) -> None:
    long_ago = Now() - timedelta(hours=1)
    idle = made(owner, desired_state="RUNNING", phase="RUNNING", last_access_at=long_ago, phase_changed_at=long_ago)
    used = made(owner, desired_state="RUNNING", phase="RUNNING", phase_changed_at=long_ago)
    User.objects.create_user("other")
    other = User.objects.get(username="other")
    wished = made(other, desired_state="RUNNING", phase="STANDBY", phase_changed_at=long_ago)
    never = made(other, desired_state="RUNNING", phase="RUNNING", last_access_at=long_ago, phase_changed_at=long_ago, standby_ttl_seconds=0)
    standing = made(owner, phase="STANDBY", phase_changed_at=long_ago)
    stopping, archiving = services.request_expiry(standby_seconds=600, archive_seconds=1800)
    assert (stopping, archiving) == ([idle.pk], [standing.pk])
    for untouched in (used, wished, never):
        before = untouched.desired_state
        untouched.refresh_from_db()
        assert untouched.desired_state == before


def test_keep_awake_holds_expiry_back(owner: User) -> None:
    long_ago = Now() - timedelta(hours=1)
    workspace = made(owner, desired_state="RUNNING", phase="RUNNING", last_access_at=long_ago, phase_changed_at=long_ago)
    services.request_keep_awake(workspace.pk, user=owner, seconds=3600)
    assert services.request_expiry(standby_seconds=600, archive_seconds=0) == ([], [])


def test_activity_never_moves_backwards_nor_into_the_future(owner: User) -> None:
    workspace = made(owner)
    now = services.database_now()
    services.request_activity({workspace.pk: (now - timedelta(minutes=1), "typing")})
    services.request_activity({workspace.pk: (now - timedelta(minutes=5), "request")})
    workspace.refresh_from_db()
    assert workspace.last_access_at == now - timedelta(minutes=1)
    assert workspace.last_activity is not None
    assert workspace.last_activity["kind"] == "typing"
    services.request_activity({workspace.pk: (now + timedelta(days=1), "typing")})
    workspace.refresh_from_db()
    assert workspace.last_access_at <= services.database_now()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", ["state", "create"])
def test_a_hundred_concurrent_requests_for_running_grant_exactly_the_limit(kind: str) -> None:
    owner = User.objects.create_user("racer")
    ids = [made(owner).pk for _ in range(100)] if kind == "state" else [None] * 100
    outcomes: Counter[str] = Counter()
    lock = threading.Lock()
    barrier = threading.Barrier(20)

    def ask(mine: list[Any]) -> None:
        try:
            barrier.wait()
            for pk in mine:
                try:
                    if pk is None:
                        services.request_create(user=owner, name="x")
                    else:
                        services.request_state(pk, user=owner, desired_state="RUNNING")
                    outcome = "granted"
                except RequestError as error:
                    outcome = error.code
                with lock:
                    outcomes[outcome] += 1
        finally:
            connection.close()

    threads = [threading.Thread(target=ask, args=(ids[index::20],)) for index in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == {"granted": 2, "limit_exceeded": 98}
    assert Workspace.objects.counted_as_running().count() == 2
