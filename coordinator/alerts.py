"""Tells operators: e-mail to `ADMINS` and a webhook, from a thread of its own with short time-outs.

Owns delivery and its outcome in the Alert row. Nothing that goes wrong here reaches a loop.
"""

import json
import queue
import threading
import urllib.request
from collections.abc import Collection
from typing import Any

import structlog
from django.core.mail import mail_admins
from django.db import connection

from codehub.config import Config
from workspaces.models import Alert

log = structlog.get_logger(__name__)

WEBHOOK_SECONDS = 10
UNSENT_SECONDS = 60.0
"""An alert nobody was told of for so long is told again: rather twice than never."""

_waiting: queue.SimpleQueue[tuple[int, Config]] = queue.SimpleQueue()
_start = threading.Lock()
_threads: list[threading.Thread] = []


def deliver_alerts(alert_ids: Collection[int], config: Config) -> None:
    """Hand alerts over for delivery and return at once."""
    if not alert_ids:
        return
    for alert_id in alert_ids:
        _waiting.put((alert_id, config))
    with _start:
        if not _threads:
            thread = threading.Thread(target=_serve, name="alerts", daemon=True)
            _threads.append(thread)
            thread.start()


def unsent_alerts() -> list[int]:
    """Written by a coordinator that ended before it could tell anybody. Those it may be telling right now are left to it."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT id FROM workspaces_alert WHERE delivered = '{}'::jsonb AND at < now() - make_interval(secs => %s) ORDER BY id LIMIT 100",
            [UNSENT_SECONDS],
        )
        return [row[0] for row in cursor.fetchall()]


def _serve() -> None:
    while True:
        alert_id, config = _waiting.get()
        try:
            deliver_alert(alert_id, config)
        except Exception:
            log.exception("alert could not be delivered", alert=alert_id)
        finally:
            # Alerts are rare: a session kept for the next one would only be in the way.
            connection.close()


def deliver_alert(alert_id: int, config: Config) -> None:
    """Try each way of telling once and write down how it went."""
    alert = Alert.objects.select_related("workspace").filter(pk=alert_id).first()
    if alert is None or alert.delivered:
        return
    name = alert.workspace.name if alert.workspace else ""
    message = {
        "reason": alert.reason,
        "message": alert.message,
        "workspace": str(alert.workspace_id or ""),
        "name": name,
        "at": alert.at.isoformat(),
        "url": f"{config.public_url}/admin/workspaces/workspace/{alert.workspace_id}/change/",
    }
    outcome = {"email": _email(message, config), "webhook": _webhook(message, config)}
    Alert.objects.filter(pk=alert_id).update(delivered=outcome)


def _email(message: dict[str, Any], config: Config) -> str:
    if not config.admins:
        return "off"
    text = f"{message['reason']}: {message['message']}\n\nWorkspace: {message['name']} ({message['workspace']})\nSince: {message['at']}\n{message['url']}\n"
    try:
        mail_admins(f"[CodeHub] {message['reason']}: {message['name']}".replace("\n", " "), text)
    except Exception as error:
        log.warning("alert e-mail failed", error=repr(error))
        return f"failed: {type(error).__name__}"
    return "sent"


def _webhook(message: dict[str, Any], config: Config) -> str:
    if not config.codehub_alert_webhook_url:
        return "off"
    request = urllib.request.Request(  # noqa: S310 - the scheme was checked when the setting was read
        config.codehub_alert_webhook_url, data=json.dumps(message).encode(), headers={"Content-Type": "application/json"}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=WEBHOOK_SECONDS) as answer:  # noqa: S310
            return f"sent: {answer.status}"
    except Exception as error:
        log.warning("alert webhook failed", error=repr(error))
        return f"failed: {type(error).__name__}"
