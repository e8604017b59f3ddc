"""Celery's side of the executor: a task carries an attempt's id and nothing else.

Owns the two queues' task. The Attempt row decides whether a delivery runs anything: late, double and lost deliveries are harmless.
"""

from uuid import UUID

from django.conf import settings
from django.db import close_old_connections

from codehub.celery import app
from coordinator.actuators import run_attempt
from coordinator.wiring import publish_wake, worker_tools


@app.task(name="coordinator.run_attempt", acks_late=True, ignore_result=True)  # type: ignore[untyped-decorator]
def run_queued_attempt(attempt_id: str) -> None:
    """Run a queued attempt, and wake the loop for its workspace."""
    close_old_connections()
    workspace_id = run_attempt(UUID(attempt_id), worker_tools())
    if workspace_id is not None:
        publish_wake(workspace_id, settings.CONFIG)


def send_attempt(attempt_id: UUID, queue: str) -> None:
    """Put an attempt on a queue. Raises when the broker does not take it."""
    run_queued_attempt.apply_async(args=[str(attempt_id)], queue=queue, retry=False)
