"""Counters of workspace traffic in this process, for `/metrics`. No workspace or user is ever a label."""

from prometheus_client import Counter, Gauge

_REQUESTS = Counter("codehub_proxy_requests", "Requests forwarded to workspaces, by class of answer.", ["code"])
_BYTES = Counter("codehub_proxy_bytes", "Bytes of bodies forwarded.", ["direction"])
FAILURES = Counter("codehub_proxy_upstream_failures", "Requests and handshakes that a running workspace did not answer.")
SOCKETS = Gauge("codehub_proxy_websockets_open", "WebSockets that are relayed now.")

# Looked up once: a label lookup for each request would cost more than the count.
_BY_CLASS = {number: _REQUESTS.labels(f"{number}xx") for number in range(2, 6)}
_TO_CLIENT = _BYTES.labels("to_client")
_TO_WORKSPACE = _BYTES.labels("to_workspace")


def count_exchange(*, status: int, sent: int, received: int) -> None:
    """One forwarded request that was answered, in whole or in part."""
    counter = _BY_CLASS.get(status // 100)
    if counter is not None:
        counter.inc()
    _TO_CLIENT.inc(sent)
    if received:
        _TO_WORKSPACE.inc(received)
