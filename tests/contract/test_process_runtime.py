"""What only processes can show: outliving us, pids that are used again, groups that scatter, homes that cannot be read."""

import contextlib
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import psutil
import pytest

from coordinator.providers import process_group
from coordinator.providers.base import ActionFailedError, Container, ContainerSpec, ContainerState, UnreachableError
from coordinator.providers.probe import answers
from coordinator.providers.process import ProcessRuntime
from coordinator.providers.process_stop import end_processes
from tests.contract.conftest import Harness, with_command
from tests.contract.trees import HOME, Node, home_of, read_nodes, tar_of

ROOT = Path(__file__).resolve().parents[2]


def state_of(data_dir: Path, workspace_id: UUID) -> Path:
    return data_dir / "process" / "state" / f"ws-{workspace_id}.json"


def wait_for(condition: object) -> None:
    deadline = time.monotonic() + 20
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_an_ide_outlives_the_process_that_started_it_and_is_found_again(on_process: Harness, tmp_path: Path) -> None:
    workspace = on_process.workspace()
    program = (
        "from uuid import UUID; from pathlib import Path; from coordinator.providers.process import ProcessRuntime;"
        "from coordinator.providers.base import ContainerSpec;"
        f"r = ProcessRuntime('contract', data_dir=Path({str(tmp_path / 'data')!r})); w = UUID('{workspace}');"
        f"s = ContainerSpec(image='x', command=('sleep', '300')); r.provision(w, 1, s); r.start(w, 1, s)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, timeout=60)
    found = on_process.runtime.get_container(workspace)
    assert found
    assert found.state is ContainerState.RUNNING
    on_process.runtime.delete(workspace)
    assert on_process.runtime.get_container(workspace) is None


def test_every_ide_ends_with_codehub_itself_and_is_known_to_have_ended_in_order(on_process: Harness, tmp_path: Path) -> None:
    workspace, runtime = on_process.workspace(), on_process.runtime
    runtime.provision(workspace, 1, on_process.spec)
    runtime.start(workspace, 1, with_command(on_process.spec, "sleep", "300"))
    instance = json.loads(state_of(tmp_path / "data", workspace).read_text())["instance"]
    assert end_processes(tmp_path / "data") == 1
    assert process_group.members(instance) == []
    found = runtime.get_container(workspace)
    assert found
    assert (found.state, found.is_ended_in_order) == (ContainerState.STOPPED, True)
    assert end_processes(tmp_path / "data") == 0
    again = runtime.start(workspace, 1, with_command(on_process.spec, "sleep", "300"))
    assert (again.state, again.is_ended_in_order) == (ContainerState.RUNNING, False)


def test_a_pid_that_was_used_again_is_neither_taken_for_ours_nor_killed(on_process: Harness, tmp_path: Path) -> None:
    workspace = on_process.workspace()
    on_process.runtime.provision(workspace, 1, on_process.spec)
    on_process.runtime.start(workspace, 1, with_command(on_process.spec, "sleep", "300"))
    with subprocess.Popen(["sleep", "300"], start_new_session=True) as stranger:
        path = state_of(tmp_path / "data", workspace)
        state = json.loads(path.read_text())
        # As it would be written down of a process that was born earlier and had the same pid.
        path.write_text(json.dumps(state | {"pid": stranger.pid, "mark": process_group.birth_mark(stranger.pid) + "0"}))
        found = on_process.runtime.get_container(workspace)
        assert found
        assert found.state is ContainerState.STOPPED
        on_process.runtime.delete(workspace)
        assert stranger.poll() is None
        stranger.kill()
    assert not process_group.members(state["instance"])


def test_processes_that_left_the_group_are_ended_with_it(on_process: Harness, tmp_path: Path) -> None:
    workspace = on_process.workspace()
    on_process.runtime.provision(workspace, 1, on_process.spec)
    script = "trap '' TERM; setsid sleep 300 & (setsid sh -c 'sleep 301 & sleep 302' &) ; sleep 303"
    on_process.runtime.start(workspace, 1, with_command(on_process.spec, "sh", "-c", script))
    instance = json.loads(state_of(tmp_path / "data", workspace).read_text())["instance"]
    wait_for(lambda: len(process_group.members(instance)) >= 5)
    on_process.runtime.delete(workspace)
    assert process_group.members(instance) == []


def test_a_process_that_was_started_but_not_written_down_is_found_by_its_marker(on_process: Harness, tmp_path: Path) -> None:
    workspace = on_process.workspace()
    on_process.runtime.provision(workspace, 1, on_process.spec)
    on_process.runtime.start(workspace, 1, with_command(on_process.spec, "sleep", "300"))
    path = state_of(tmp_path / "data", workspace)
    state = json.loads(path.read_text())
    path.write_text(json.dumps(state | {"pid": 0, "mark": ""}))
    on_process.runtime.start(workspace, 1, on_process.spec)
    assert process_group.members(state["instance"]) == []
    assert len([found for found in on_process.runtime.list_containers() if found.workspace_id == workspace]) == 1


def test_an_ide_on_a_socket_in_a_private_directory_answers(on_process: Harness) -> None:
    workspace = on_process.workspace()
    server = (
        "import http.server as h, socketserver as s, sys\n"
        "class U(s.UnixStreamServer):\n    def get_request(self): r, _ = super().get_request(); return r, ('local', 0)\n"
        "U(sys.argv[1], h.SimpleHTTPRequestHandler).serve_forever()"
    )
    spec = ContainerSpec(image="x", command=(sys.executable, "-c", server, "{socket}"))
    on_process.runtime.provision(workspace, 1, spec)
    container = on_process.ready(on_process.runtime.start(workspace, 1, spec))
    path = Path(container.endpoint.removeprefix("unix:"))
    assert len(str(path)) < 104
    assert path.parent.stat().st_mode & 0o077 == 0
    on_process.runtime.delete(workspace)
    assert not path.exists()


def test_a_long_data_directory_still_gives_a_short_socket(tmp_path: Path) -> None:
    runtime = ProcessRuntime("x", data_dir=tmp_path / ("long" * 40))
    runtime.identity()
    path = runtime._socket(uuid4())
    assert len(str(path)) < 104
    assert path.parent.stat().st_mode & 0o077 == 0
    shutil.rmtree(path.parent)


def test_secrets_in_our_environment_do_not_reach_the_ide(on_process: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret")
    workspace = on_process.workspace()
    on_process.runtime.provision(workspace, 1, on_process.spec)
    on_process.runtime.start(workspace, 1, with_command(on_process.spec, "sh", "-c", "env; echo done; sleep 300"))
    wait_for(lambda: "done" in on_process.runtime.logs(workspace))
    printed = on_process.runtime.logs(workspace)
    assert "very-secret" not in printed
    assert f"HOME={on_process.runtime._homes}" in printed  # type: ignore[attr-defined]


def test_logs_are_bounded_while_the_ide_goes_on_printing(on_process: Harness, tmp_path: Path) -> None:
    workspace = on_process.workspace()
    on_process.runtime.provision(workspace, 1, on_process.spec)
    script = "i=0; while [ $i -lt 30 ]; do head -c 200000 /dev/zero | tr '\\0' x; echo; i=$((i+1)); done; echo end; sleep 300"
    on_process.runtime.start(workspace, 1, with_command(on_process.spec, "sh", "-c", script))
    wait_for(lambda: "end" in on_process.runtime.logs(workspace))
    on_process.runtime.list_containers()
    assert (tmp_path / "data/process/logs" / f"ws-{workspace}.log").stat().st_size <= 512 * 1024
    assert "end" in on_process.runtime.logs(workspace)


def test_homes_that_went_missing_are_unreachable_not_empty(tmp_path: Path) -> None:
    runtime = ProcessRuntime("x", data_dir=tmp_path)
    runtime.provision(uuid4(), 1, ContainerSpec(image="x"))
    (tmp_path / "homes").rename(tmp_path / "unmounted")
    with pytest.raises(UnreachableError):
        runtime.list_volumes()
    (tmp_path / "homes").mkdir()
    with pytest.raises(UnreachableError):
        runtime.list_volumes()


def test_another_installation_s_homes_are_refused(tmp_path: Path) -> None:
    ProcessRuntime("x", data_dir=tmp_path).identity()
    with pytest.raises(UnreachableError):
        ProcessRuntime("y", data_dir=tmp_path).list_volumes()


def test_half_removed_and_half_made_homes_are_leftovers(on_process: Harness, tmp_path: Path) -> None:
    on_process.runtime.identity()
    for name in (".trash-x", ".new-y"):
        (tmp_path / "data/homes" / name / "below").mkdir(parents=True)
    assert on_process.runtime.list_volumes() == []
    assert on_process.runtime.remove_leftovers(older_than=datetime.now(UTC) - timedelta(hours=1)) == 0
    assert on_process.runtime.remove_leftovers(older_than=datetime.now(UTC) + timedelta(hours=1)) == 2


def test_symlinks_are_archived_and_removed_never_followed(on_process: Harness, tmp_path: Path) -> None:
    workspace = on_process.workspace()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("p")
    on_process.runtime.provision(workspace, 1, on_process.spec)
    home = tmp_path / "data/homes" / f"ws-{workspace}-home-1"
    (home / "way-out").symlink_to(outside)
    nodes = read_nodes(home_of(on_process.runtime, workspace, 1))
    assert set(nodes) == {b"", b"way-out"}
    on_process.runtime.delete_volume(workspace, 1)
    assert (outside / "precious").read_text() == "p"


def test_times_are_kept_to_the_nanosecond(on_process: Harness, tmp_path: Path) -> None:
    workspace = on_process.workspace()
    on_process.runtime.provision(workspace, 1, on_process.spec)
    when = 1_234_567_890_123_456_789
    on_process.runtime.write_volume(workspace, 1, [tar_of([HOME, Node(b"x", mtime_ns=when), Node(b"old", mtime_ns=-1_500_000_001)])])
    home = tmp_path / "data/homes" / f"ws-{workspace}-home-1"
    assert (home / "x").stat().st_mtime_ns == when
    assert (home / "old").stat().st_mtime_ns == -1_500_000_001
    content = home_of(on_process.runtime, workspace, 1)
    on_process.runtime.provision(workspace, 2, on_process.spec)
    on_process.runtime.write_volume(workspace, 2, [content])
    assert home_of(on_process.runtime, workspace, 2) == content


def test_a_write_that_took_only_some_of_the_bytes_is_a_failure_not_a_shorter_file(on_process: Harness) -> None:
    """As on a disk that fills up: the write that meets the end is short without an error."""
    workspace = on_process.workspace()
    on_process.runtime.provision(workspace, 1, on_process.spec)
    content = tar_of([HOME, Node(b"last", data=bytes(100_000))])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, hard))
    try:
        with pytest.raises(ActionFailedError, match="cannot be unpacked"):
            on_process.runtime.write_volume(workspace, 1, [content])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_an_ide_that_answers_byte_by_byte_does_not_hold_who_asks(tmp_path: Path) -> None:
    path = tmp_path / "drip.sock"
    sent: list[int] = []
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def drip() -> None:
            peer, _ = server.accept()
            with peer, contextlib.suppress(OSError):
                for byte in b"HTTP/1.1 200 OK":
                    peer.sendall(bytes([byte]))
                    sent.append(byte)
                    time.sleep(0.1)

        thread = threading.Thread(target=drip)
        thread.start()
        assert not answers(f"unix:{path}", "/", timeout=0.25)
        thread.join()
    assert len(sent) < 12


def test_a_look_at_an_ended_ide_never_hides_the_one_started_meanwhile(on_process: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace, runtime = on_process.workspace(), on_process.runtime
    runtime.provision(workspace, 1, on_process.spec)
    runtime.start(workspace, 1, with_command(on_process.spec, "sleep", "300"))
    (ended,) = process_group.members(json.loads(runtime._state_file(workspace).read_text())["instance"])  # type: ignore[attr-defined]
    ended.kill()
    birth_mark = process_group.birth_mark
    wait_for(lambda: not birth_mark(ended.pid))
    overtaken: list[int] = []
    started: list[Container] = []

    def mark_and_be_overtaken(pid: int) -> str:
        if pid == ended.pid and not overtaken:
            overtaken.append(pid)
            started.append(runtime.start(workspace, 1, with_command(on_process.spec, "sleep", "301")))
        return birth_mark(pid)

    monkeypatch.setattr(process_group, "birth_mark", mark_and_be_overtaken)
    assert runtime.get_container(workspace)
    found = runtime.get_container(workspace)
    assert found
    assert (found.state, found.instance_id) == (ContainerState.RUNNING, started[0].instance_id)


def test_without_root_homes_with_closed_files_are_read_written_and_removed(tmp_path: Path) -> None:
    """Runs as another user where this one is root; otherwise as ourselves."""
    place = Path("/tmp") / f"codehub-{uuid4().hex[:8]}"
    place.mkdir()
    place.chmod(0o777)
    program = (
        "import os\nfrom uuid import uuid4\nfrom pathlib import Path\n"
        "from coordinator.providers.process import ProcessRuntime\nfrom coordinator.providers.base import ContainerSpec\n"
        "from tests.contract.trees import *\n"
        "if os.geteuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        f"r = ProcessRuntime('x', data_dir=Path({str(place / 'data')!r})); w = uuid4(); s = ContainerSpec(image='x')\n"
        "tree = [HOME, Node(b'd', DIRECTORY, mode=0o000), Node(b'd/f', data=b'1', mode=0o000), Node(b'd/e', DIRECTORY, mode=0o100)]\n"
        "r.provision(w, 1, s); r.write_volume(w, 1, [tar_of(tree)])\n"
        "found = read_nodes(home_of(r, w, 1))\n"
        "assert {n: (x.mode, x.data) for n, x in found.items()} == {x.name: (x.mode, x.data) for x in tree}, found\n"
        "assert found[b'd'].uid == os.geteuid()\n"
        "r.delete_volume(w, 1); assert r.list_volumes() == []; assert os.listdir(r._homes) == ['.codehub-installation']\n"
    )
    try:
        done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
    finally:
        shutil.rmtree(place)


def test_zombies_count_as_dead() -> None:
    pid = os.posix_spawn("/bin/true", ["true"], {})
    wait_for(lambda: psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    assert process_group.birth_mark(pid) == ""
    assert process_group.reap(pid) == 0
