"""How the operators' pages say states, times and sizes. Presentation only."""

from datetime import datetime
from typing import Any

from django import template
from django.utils.safestring import SafeString

from workspaces.admin import base

register = template.Library()

register.filter("badge", base.badge)
register.filter("operation_badge", base.operation_badge)
register.filter("reason_badge", base.reason_badge)
register.filter("size", base.size)


@register.filter
def ago(at: datetime | None, now: datetime) -> SafeString | str:
    return base.ago(at, now=now)


@register.filter
def key(mapping: dict[str, Any], name: str) -> Any:
    return mapping.get(str(name), "")


@register.filter
def percent(done: int, total: int | None) -> int | None:
    return min(100, done * 100 // total) if total else None
