"""The few addresses of ours below a workspace's own origin or prefix: the activity script and where it reports to.

Answers only those who may enter the workspace. Reports are believed only from a page of this very origin.
"""

import json

from workspaces.proxy.access import Grant
from workspaces.proxy.activity import INPUT_KINDS, Recorder
from workspaces.proxy.answers import Send
from workspaces.proxy.call import Call
from workspaces.proxy.headers import same_origin

SCRIPT = b"""(function () {
  "use strict";
  var here = document.currentScript && document.currentScript.src;
  if (!here || window.__codehubActivity) return;
  window.__codehubActivity = true;
  var report = here.replace(/activity\\.js.*$/, "activity");
  var last = 0;
  function tell(kind) {
    var now = Date.now();
    if (now - last < 10000) return;
    last = now;
    try { navigator.sendBeacon(report, kind); } catch (error) { last = 0; }
  }
  function on(name, kind) {
    window.addEventListener(name, function (event) { if (event.isTrusted) tell(kind); }, { capture: true, passive: true });
  }
  on("keydown", "typing"); on("beforeinput", "typing"); on("compositionend", "typing"); on("paste", "typing");
  on("pointerdown", "pointer"); on("wheel", "pointer"); on("drop", "pointer"); on("touchstart", "touch");
  window.addEventListener("blur", function () {
    // A click into a frame of the page takes the focus there and is not heard here.
    setTimeout(function () { if (document.hasFocus() && document.activeElement instanceof HTMLIFrameElement) tell("pointer"); }, 0);
  });
})();
"""
_MAX_REPORT = 64


async def respond(recorder: Recorder, call: Call, grant: Grant) -> None:
    """One of our own addresses."""
    name, method = call.scope["raw_path"].rpartition(b"/")[2], call.visit.method
    if name == b"activity.js" and method in ("GET", "HEAD"):
        headers = [(b"content-type", b"text/javascript; charset=utf-8"), (b"cache-control", b"private, max-age=3600")]
        await _send(call.send, 200, headers, SCRIPT)
    elif name == b"activity" and method == "POST":
        await _take_report(recorder, call, grant)
    else:
        body = json.dumps({"detail": "Nothing here.", "code": "not_found"}).encode()
        await _send(call.send, 404, [(b"content-type", b"application/json")], body)


async def _take_report(recorder: Recorder, call: Call, grant: Grant) -> None:
    visit = call.visit
    if not same_origin(visit.fields.get(b"origin", b""), scheme=visit.scheme, host=visit.host):
        await _send(call.send, 403, [], b"")
        return
    body = b""
    while len(body) <= _MAX_REPORT:
        message = await call.receive()
        body += message.get("body", b"")
        if not message.get("more_body", False):
            break
    kind = body[:_MAX_REPORT].decode("latin-1")
    if kind in INPUT_KINDS and grant.takes_traffic:
        recorder.record(grant.workspace_id, kind)
    await _send(call.send, 204, [], b"")


async def _send(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    framed = headers if status == 204 else [*headers, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": framed})
    await send({"type": "http.response.body", "body": body, "more_body": False})
