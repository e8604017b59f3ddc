"""What counts as use: pure rules, on the shapes measured on real code-server 4.139."""

import uuid

import pytest

from workspaces.proxy import activity
from workspaces.proxy.activity import Meter, Recorder, counts, listener
from workspaces.proxy.vscode import Watch

WORKSPACE = uuid.UUID("3b1f8a52-0d6f-4f33-9f0e-2f8f2f3f4f5f")
QUERY = b"reconnectionToken=84975ea2-1ef3-4499-a1f8-bb9cb8def618&reconnection=false"


class Heard(Recorder):
    """Keeps every signal."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: list[str] = []

    def record(self, workspace_id: uuid.UUID, kind: str) -> None:
        self.kinds.append(kind)


def message(body: bytes, kind: int = 1) -> bytes:
    return bytes([kind]) + bytes(8) + len(body).to_bytes(4, "big") + body


# As seen on the wire: [204, 240], then an object of 51 bytes.
FIRES = b"\x04\x02\x06\xcc\x01\x06\xf0\x01"
KEEP_ALIVE = message(b"", kind=9)
ACKNOWLEDGE = message(b"", kind=3)
OUTPUT = message(FIRES + b'\x053{"id":1,"event":"Mon Nov 16 04:46:22 UTC 2026\\r\\n"}')
LONG_OUTPUT = message(FIRES + b'\x05\x90\x4e{"id":12,"event":"' + b"x" * 10_000 + b'"}')
FILES_CHANGED = message(b"\x04\x02\x06\xcc\x01\x06\x34\x05\x5a" + b'{"resource":{"$mid":1},"type":1}')
PROPERTY = message(FIRES + b'\x05\x40{"id":1,"property":{"type":"hasChildProcesses","value":true}}')
READY = message(FIRES + b'\x05\x40{"id":1,"event":{"pid":12,"cwd":"/home/coder","windowsPty":null}}')
FRAME = message(b'\x04\x02\x06\xcc\x01\x064\x01&{"jsonrpc":"2.0","id":5,"result":null}')
ANSWER = message(b"\x04\x02\x06\xc9\x01\x06\x9b\x08\x00")
CHATTER = [KEEP_ALIVE, ACKNOWLEDGE, FILES_CHANGED, PROPERTY, READY, FRAME, ANSWER, b"", b"nonsense", message(b"\xff" * 50)]


@pytest.mark.parametrize("chatter", CHATTER)
def test_terminal_output_is_told_from_lock_files_watchers_and_keep_alives(chatter: bytes) -> None:
    watch = Watch()
    assert not watch.hears_output(chatter)
    assert Watch().hears_output(OUTPUT)
    assert Watch().hears_output(ANSWER + FILES_CHANGED + OUTPUT + ACKNOWLEDGE)


def test_output_is_heard_wherever_the_frames_end() -> None:
    stream = ANSWER + LONG_OUTPUT + FILES_CHANGED + KEEP_ALIVE
    watch = Watch()
    at = len(ANSWER) + 500
    assert [watch.hears_output(stream[:at]), watch.hears_output(stream[at:9000]), watch.hears_output(stream[9000:])] == [True, False, False]
    assert watch.hears_output(OUTPUT)


def test_connection_that_comes_back_after_a_restart_is_understood() -> None:
    again = QUERY.replace(b"=false", b"=true")
    heard = Heard()
    listener(heard.record, WORKSPACE, is_tab=True, path=b"/stable-53c2", query=again)(OUTPUT, True)
    assert heard.kinds == [activity.TERMINAL]


def test_forgotten_tab_is_not_use_and_a_line_a_second_is() -> None:
    heard = Heard()
    listen = listener(heard.record, WORKSPACE, is_tab=True, path=b"/stable-53c2", query=QUERY)
    for _ in range(200):
        listen(KEEP_ALIVE, False)
        # What the client says is never a terminal's output, whatever it looks like.
        listen(OUTPUT[:20], False)
        listen(FILES_CHANGED[:40], True)
    assert heard.kinds == []
    listen = listener(heard.record, WORKSPACE, is_tab=True, path=b"/stable-53c2", query=QUERY)
    listen(OUTPUT, True)
    assert heard.kinds == [activity.TERMINAL]


def test_everything_counts_for_a_client_that_is_not_a_tab() -> None:
    heard = Heard()
    listen = listener(heard.record, WORKSPACE, is_tab=False, path=b"/stable-53c2", query=QUERY)
    listen(KEEP_ALIVE, False)
    assert heard.kinds == [activity.CLIENT]


@pytest.mark.parametrize(("path", "kind"), [(b"/terminals/websocket/1", "terminal"), (b"/w/x/api/kernels/abc/channels", "output")])
def test_jupyter_terminals_and_kernels_count_when_they_answer(path: bytes, kind: str) -> None:
    heard = Heard()
    listen = listener(heard.record, WORKSPACE, is_tab=True, path=path, query=b"")
    listen("ping", False)
    assert heard.kinds == []
    listen('["stdout", "x"]', True)
    assert heard.kinds == [kind]


@pytest.mark.parametrize(("bytes_per_window", "used"), [(2_500, False), (8_500, False), (12_000, False), (24_000, True), (300_000, True)])
def test_traffic_counts_only_clearly_above_the_idle_floor(bytes_per_window: int, used: bool) -> None:
    meter = Meter()
    assert any(meter.add(bytes_per_window // 50, tick / 10) for tick in range(300)) is used


def test_one_burst_is_not_use() -> None:
    meter = Meter()
    assert not meter.add(1_000_000, 0.0)
    assert not any(meter.add(100, second) for second in range(6, 60))
    assert not meter.add(1_000_000, 100.0)


@pytest.mark.parametrize(
    ("is_tab", "is_navigation", "kind"), [(True, True, "request"), (True, False, None), (False, False, "script"), (False, True, "script")]
)
def test_requests_count_when_a_person_visits_or_a_script_calls(is_tab: bool, is_navigation: bool, kind: str | None) -> None:
    assert counts(is_tab=is_tab, is_navigation=is_navigation) == kind
