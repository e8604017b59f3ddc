"""Template tags of our pages: icons, times and sizes. Nothing here reads the database."""

from datetime import datetime

from django import template
from django.templatetags.static import static
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from workspaces import moments

register = template.Library()


@register.simple_tag
def icon(name: str) -> SafeString:
    """An icon of the sprite. Always beside words, so it is hidden from screen readers."""
    return format_html('<svg class="icon" aria-hidden="true" focusable="false"><use href="{}#{}"></use></svg>', static("icons.svg"), name)


@register.simple_tag
def live_words() -> dict[str, str]:
    return moments.words()


@register.filter
def ago(at: datetime | None) -> str:
    """A moment relative to now, which the browser keeps up to date."""
    return moments.relative_html(at, now=timezone.now()) if at else ""


@register.filter
def at_clock(at: datetime | None) -> str:
    return moments.clock_html(at, now=timezone.now()) if at else ""


@register.filter
def lasting(seconds: float | None) -> str:
    return "" if seconds is None else moments.span(seconds)


@register.filter
def size(count: int | None) -> str:
    return "" if count is None else moments.size(count)


@register.filter
def browser(agent: str) -> str:
    """A browser in a few words. Only for its owner to recognise; nothing depends on it."""
    return moments.browser(agent)
