"""What garbage collection protects, remembers and removes, on real PostgreSQL with runtime and store in memory."""

import io
import threading
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import Mock
from uuid import UUID, uuid4

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from coordinator import gc
from coordinator.gc import Collector, GcWork, Report
from coordinator.leader import LeadershipLostError
from coordinator.providers.base import ActionFailedError, ContainerSpec, UnreachableError
from tests.fakes.runtime import FakeRuntime
from tests.fakes.store import FakeStore
from workspaces import services
from workspaces.models import Attempt, Orphan, Workspace

pytestmark = pytest.mark.django_db(transaction=True)

SPEC = ContainerSpec(image="any")


class Site:
    """Two doubles, one owner, and shorthand for what is in them."""

    def __init__(self) -> None:
        self.runtime, self.store = FakeRuntime(), FakeStore()
        self.user = User.objects.create_user("ann")

    def workspace(self, *, generation: int = 1, **observed: Any) -> UUID:
        workspace, _ = services.request_create(user=self.user, name="one", desired_state="STANDBY")
        Workspace.objects.filter(pk=workspace.pk).update(**{"home_ctx": {"generation": generation, "whole": True}, **observed})
        return workspace.pk

    def archive(self, workspace: UUID, op_id: UUID | None = None, *, meta: bool = True) -> str:
        key = f"{workspace}/{op_id or uuid4()}/home.tar.zst"
        self.store.put(key, b"x" * 100)
        if meta:
            self.store.put(f"{key}.meta", b"sha256:00")
        return key

    def volume(self, workspace: UUID, generation: int) -> None:
        self.runtime.provision(workspace, generation, SPEC)

    def collect(self, *, grace: int = 0, **options: Any) -> Report:
        return Collector(runtime=self.runtime, store=self.store, grace_seconds=grace, **options).collect()


@pytest.fixture
def site() -> Site:
    return Site()


def test_the_archive_the_one_being_written_and_all_of_a_workspace_in_error_are_protected(site: Site) -> None:
    op_id = uuid4()
    settled, writing = site.workspace(), site.workspace(archive_op_id=op_id)
    broken = site.workspace(phase="ERROR", error_reason="DataLost")
    Workspace.objects.filter(pk=settled).update(archive_key=site.archive(settled))
    kept = {site.archive(writing, op_id, meta=False), site.archive(broken), site.archive(broken)}
    site.volume(broken, 0)
    old = site.archive(settled)
    report = site.collect()
    assert [entry.thing.keys for entry in report.entries] == [(old, f"{old}.meta")]
    assert kept <= set(site.store.objects)
    assert (report.removed, report.bytes_freed, old in site.store.objects) == (1, 109, False)


def test_archive_and_meta_go_together_the_marker_first(site: Site) -> None:
    key = site.archive(site.workspace())
    site.collect()
    assert not site.store.objects
    deleted = [list(arguments[0]) for name, arguments in site.store.calls if name == "delete"]
    assert deleted == [[f"{key}.meta", key]]


def test_deletion_by_the_owner_lifts_every_protection(site: Site) -> None:
    workspace = site.workspace(generation=3)
    Workspace.objects.filter(pk=workspace).update(archive_key=site.archive(workspace), archive_op_id=uuid4())
    site.volume(workspace, 3)
    site.runtime.start(workspace, 3, SPEC)
    assert site.collect().removed == 0
    services.request_delete(workspace, user=site.user)
    Workspace.objects.filter(pk=workspace).update(phase="DELETED")
    assert site.collect().removed == 3
    assert (site.store.objects, site.runtime.homes, site.runtime.containers) == ({}, {}, {})
    assert Workspace.objects.filter(pk=workspace).exists()


def test_old_generations_go_and_the_current_one_stays_running_or_not(site: Site) -> None:
    workspace = site.workspace(generation=2)
    for generation in (1, 2):
        site.volume(workspace, generation)
    site.runtime.start(workspace, 2, SPEC)
    site.collect()
    assert list(site.runtime.homes) == [(workspace, 2)]
    assert workspace in site.runtime.containers


def test_what_is_left_of_a_home_that_was_archived_goes_and_a_home_in_standby_stays(site: Site) -> None:
    packed = {"storage.archive_ready": {"status": True}}
    given_up = {"generation": 2, "whole": False, "expected": False}
    left = site.workspace(home_ctx=given_up, phase="ARCHIVED", conditions=packed)
    kept = [
        site.workspace(home_ctx=given_up, phase="ARCHIVED", conditions=packed, operation="RESTORING"),
        site.workspace(home_ctx=given_up, phase="ARCHIVED", conditions={}),
        site.workspace(home_ctx=given_up | {"whole": True}, phase="STANDBY", conditions=packed),
        site.workspace(home_ctx=given_up, phase="PENDING", operation="PROVISIONING"),
    ]
    for workspace in (left, *kept):
        site.volume(workspace, 2)
    site.collect()
    assert set(site.runtime.homes) == {(workspace, 2) for workspace in kept}


def test_a_term_that_ended_removes_nothing_more(site: Site) -> None:
    workspace = site.workspace(generation=9)
    for generation in range(1, 6):
        site.volume(workspace, generation)
    removing, lost = threading.Event(), threading.Event()

    def first_is_slow(*_arguments: object) -> None:
        removing.set()
        assert lost.wait(20)

    def beat() -> None:
        if removing.is_set():
            raise LeadershipLostError("the session is gone")

    site.runtime.hook("delete_volume", first_is_slow)
    before = set(threading.enumerate())
    with pytest.raises(LeadershipLostError):
        site.collect(beat=beat, every=0.02)
    left_behind = set(threading.enumerate()) - before
    lost.set()
    for thread in left_behind:
        thread.join(20)
    assert site.runtime.count("delete_volume") == 1


def test_an_orphan_waits_for_its_grace_on_the_databases_clock(site: Site) -> None:
    site.archive(site.workspace())
    for _ in range(2):
        assert site.collect(grace=7200).removed == 0
    assert Orphan.objects.count() == 1
    Orphan.objects.update(first_seen_at=F("first_seen_at") - timedelta(seconds=7199))
    assert site.collect(grace=7200).removed == 0
    Orphan.objects.update(first_seen_at=F("first_seen_at") - timedelta(seconds=1))
    assert site.collect(grace=7200).removed == 1
    assert Orphan.objects.count() == 0


def test_what_becomes_protected_again_is_forgotten_and_starts_anew(site: Site) -> None:
    workspace = site.workspace()
    key = site.archive(workspace)
    site.collect(grace=7200)
    Orphan.objects.update(first_seen_at=F("first_seen_at") - timedelta(days=1))
    Workspace.objects.filter(pk=workspace).update(archive_key=key)
    site.collect(grace=7200)
    assert Orphan.objects.count() == 0
    Workspace.objects.filter(pk=workspace).update(archive_key=None)
    assert site.collect(grace=7200).removed == 0
    assert key in site.store.objects


def test_what_belongs_to_no_row_is_shown_and_removed_only_when_an_operator_confirms(site: Site) -> None:
    unknown = uuid4()
    site.archive(unknown)
    site.store.put("something else", b"?")
    site.volume(unknown, 1)
    site.runtime.start(unknown, 1, SPEC)
    assert site.collect().removed == 0
    assert site.collect().removed == 0
    assert set(Orphan.objects.values_list("kind", "known")) == {("archive", False), ("volume", False), ("container", False)}
    assert Orphan.objects.count() == 4
    Orphan.objects.filter(workspace_id=unknown).update(confirmed_at=services.database_now())
    assert site.collect().removed == 3
    assert list(site.store.objects) == ["something else"]


def test_a_generation_from_a_future_this_database_does_not_know_waits_for_an_operator(site: Site) -> None:
    site.volume(site.workspace(generation=3), 5)
    assert site.collect().removed == 0
    assert Orphan.objects.get().known is False


@pytest.mark.parametrize("method", ["list_containers", "list_volumes"])
def test_a_failed_listing_of_the_engine_skips_the_whole_cycle(site: Site, method: str) -> None:
    site.archive(site.workspace())
    site.runtime.fail(method, UnreachableError("down", endpoint="docker"))
    with pytest.raises(UnreachableError):
        site.collect()
    assert Orphan.objects.count() == 0
    assert len(site.store.objects) == 2


def test_a_failed_listing_of_the_store_forgets_and_removes_nothing(site: Site) -> None:
    workspace = site.workspace(generation=2)
    site.volume(workspace, 1)
    site.collect(grace=7200)
    site.store.fail("list", UnreachableError("down", endpoint="s3"))
    with pytest.raises(UnreachableError):
        site.collect()
    assert Orphan.objects.count() == 1
    assert (workspace, 1) in site.runtime.homes


def test_nothing_of_a_workspace_with_an_unfinished_run_is_removed(site: Site) -> None:
    workspace = site.workspace(generation=2)
    site.volume(workspace, 1)
    site.archive(workspace)
    run = Attempt.objects.create(workspace_id=workspace, operation="RESTORING", op_id=uuid4(), action="restore")
    assert site.collect().removed == 0
    Attempt.objects.filter(pk=run.pk).update(finished_at=services.database_now(), state="SUCCEEDED")
    assert site.collect().removed == 2


def test_an_archive_that_became_somebodys_between_two_looks_is_spared(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = site.workspace()
    key = site.archive(workspace)
    real = gc.unprotected

    def change_meanwhile(things: Any, *, idle: bool = False) -> Any:
        if idle:
            Workspace.objects.filter(pk=workspace).update(archive_key=key)
        return real(things, idle=idle)

    monkeypatch.setattr(gc, "unprotected", change_meanwhile)
    assert site.collect().removed == 0
    assert key in site.store.objects


def test_an_archive_begun_while_the_cycle_listed_is_no_orphan(site: Site) -> None:
    workspace, op_id = site.workspace(), uuid4()

    def begin_archiving(*_args: Any) -> None:
        Workspace.objects.filter(pk=workspace).update(archive_op_id=op_id)
        site.archive(workspace, op_id, meta=False)

    site.store.hook("list", begin_archiving)
    assert site.collect().removed == 0


def test_one_orphan_that_cannot_be_removed_does_not_keep_the_others(site: Site) -> None:
    workspace = site.workspace(generation=9)
    for generation in range(1, 4):
        site.volume(workspace, generation)
    site.runtime.fail("delete_volume", ActionFailedError("in use"))
    report = site.collect()
    assert (report.removed, report.failed) == (2, 1)
    assert site.collect().removed == 1


def test_a_cycle_is_bounded_and_the_rest_comes_soon_after(site: Site) -> None:
    workspace = site.workspace(generation=9)
    for generation in range(1, 6):
        site.volume(workspace, generation)
    work = GcWork(Collector(runtime=site.runtime, store=site.store, grace_seconds=0, max_removed=3), interval=14400)
    work.begin(Mock())
    work.tick(Mock(), full=True)
    assert len(site.runtime.homes) == 2
    assert work.interval() < 14400
    work.tick(Mock(), full=True)
    assert not site.runtime.homes
    assert work.interval() == 14400


@pytest.mark.parametrize(
    "error", [UnreachableError("listing uploads is refused", endpoint="s3", status_code=403), OSError(28, "no space left")]
)
@pytest.mark.parametrize("method", ["remove_leftovers", "abort_stale_uploads"])
def test_leftovers_that_cannot_be_removed_do_not_stop_the_cycle(site: Site, method: str, error: Exception) -> None:
    double = site.runtime if method == "remove_leftovers" else site.store
    double.fail(method, error)
    site.store.half_uploads["other"] = datetime.now(UTC) - timedelta(days=1)
    site.archive(site.workspace())
    assert site.collect().removed == 1
    assert not site.store.objects
    assert bool(site.store.half_uploads) == (method == "abort_stale_uploads")


def test_leftovers_go_after_the_grace_unless_an_older_run_may_still_use_them(site: Site) -> None:
    workspace = site.workspace()
    begun = datetime.now(UTC) - timedelta(hours=3)
    site.store.half_uploads |= {"old": begun, "young": datetime.now(UTC)}
    run = Attempt.objects.create(
        workspace_id=workspace, operation="ARCHIVING", op_id=uuid4(), action="archive", number=1, state="RUNNING", started_at=begun
    )
    site.collect(grace=7200)
    assert set(site.store.half_uploads) == {"old", "young"}
    Attempt.objects.filter(pk=run.pk).update(finished_at=begun, state="LOST")
    site.collect(grace=7200)
    assert set(site.store.half_uploads) == {"young"}


def test_two_containers_of_one_workspace_are_one_orphan(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = site.workspace(deleted_at=datetime.now(UTC), desired_state="DELETED", phase="DELETED")
    site.volume(workspace, 1)
    site.runtime.start(workspace, 1, SPEC)
    twice = site.runtime.list_containers() * 2
    monkeypatch.setattr(site.runtime, "list_containers", lambda: twice)
    assert site.collect().removed == 2
    assert not site.runtime.containers


def test_the_number_of_statements_does_not_grow_with_the_number_of_things(site: Site) -> None:
    def statements() -> int:
        with CaptureQueriesContext(connection) as queries:
            site.collect(grace=7200)
        return len(queries)

    for _ in range(3):
        site.archive(site.workspace())
    few = statements()
    for _ in range(30):
        site.archive(site.workspace())
    assert statements() == few


def test_a_dry_run_prints_what_would_go_and_changes_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.management.commands.gc.build_runtime", lambda *_args: site.runtime)
    monkeypatch.setattr("coordinator.management.commands.gc.build_store", lambda *_args: site.store)
    key = site.archive(site.workspace())
    out = io.StringIO()
    call_command("gc", "--dry-run", stdout=out)
    assert "not seen before" in out.getvalue()
    assert "1 orphans, 0 would be removed, 0 bytes freed" in out.getvalue()
    assert Orphan.objects.count() == 0
    call_command("gc", stdout=io.StringIO())
    Orphan.objects.update(first_seen_at=F("first_seen_at") - timedelta(days=1))
    out = io.StringIO()
    call_command("gc", "--dry-run", stdout=out)
    assert "1 orphans, 1 would be removed, 109 bytes freed" in out.getvalue()
    assert key in site.store.objects
    out = io.StringIO()
    call_command("gc", stdout=out)
    assert "1 removed, 109 bytes freed, 0 failed" in out.getvalue()
    assert not site.store.objects
