"""The Celery application of `CODEHUB_EXECUTOR=celery`: Redis is the broker, PostgreSQL holds the truth.

Owns the delivery rules. Results are never read: an actuator's outcome is its durable row, not a task's result.
"""

import os

from celery import Celery

from codehub.config import load

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "codehub.settings")

# Two lanes, so that a start never waits behind somebody's archive.
LIGHT_QUEUE = "codehub.light"
HEAVY_QUEUE = "codehub.heavy"

config = load()
app = Celery("codehub", broker=config.redis_url)
app.conf.update(
    # A task that dies with its worker is delivered again: actuators are idempotent and fenced by their row.
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_ignore_result=True,
    task_serializer="json",
    accept_content=["json"],
    task_default_queue=LIGHT_QUEUE,
    task_create_missing_queues=True,
    worker_prefetch_multiplier=1,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"visibility_timeout": 3600, "socket_timeout": 10, "socket_connect_timeout": 5},
    timezone="UTC",
)
app.autodiscover_tasks(["coordinator"])
