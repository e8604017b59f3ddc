"""Times, sizes and browsers in words, the same on the server and in the browser.

Pure: `now` is an argument and nothing here asks a clock. The browser gets the same words and the same rules, so that a
relative time that ticks there never differs from the one first sent.
"""

from datetime import UTC, datetime

from django.template.defaultfilters import filesizeformat
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

_MINUTE = 60
_HOUR = 3600
_DAY = 86400


def span(seconds: float) -> str:
    """A length of time, rounded down to one unit."""
    whole = max(0, int(seconds))
    if whole < _MINUTE:
        return _("{n} s").format(n=whole)
    if whole < 90 * _MINUTE:
        return _("{n} min").format(n=whole // _MINUTE)
    if whole < 36 * _HOUR:
        return _("{n} h").format(n=whole // _HOUR)
    return ngettext("{n} day", "{n} days", whole // _DAY).format(n=whole // _DAY)


def relative(at: datetime, *, now: datetime) -> str:
    """ "in 8 min", "2 min ago", or "now" close to it."""
    seconds = (at - now).total_seconds()
    if abs(seconds) < 1:
        return _("now")
    if seconds > 0:
        return _("in {span}").format(span=span(seconds))
    return _("{span} ago").format(span=span(-seconds))


def clock(at: datetime, *, now: datetime) -> str:
    """The time of day, with the date when it is not near. UTC: the browser shows its own zone instead."""
    at = at.astimezone(UTC)
    if abs((at - now).total_seconds()) < 18 * _HOUR:
        return f"{at:%H:%M} UTC"
    return f"{at:%Y-%m-%d %H:%M} UTC"


def relative_html(at: datetime, *, now: datetime) -> SafeString:
    return format_html('<time datetime="{}" data-relative>{}</time>', at.astimezone(UTC).isoformat(), relative(at, now=now))


def clock_html(at: datetime, *, now: datetime) -> SafeString:
    return format_html('<time datetime="{}" data-clock>{}</time>', at.astimezone(UTC).isoformat(), clock(at, now=now))


def size(count: int) -> str:
    return filesizeformat(count)


# In this order: most browsers also claim to be the ones before them.
_BROWSERS = (("Edg/", "Edge"), ("OPR/", "Opera"), ("Firefox/", "Firefox"), ("Chrome/", "Chrome"), ("Safari/", "Safari"), ("curl/", "curl"))
_SYSTEMS = (("Android", "Android"), ("iPhone", "iPhone"), ("iPad", "iPad"), ("Windows", "Windows"), ("Mac OS", "macOS"), ("Linux", "Linux"))


def browser(agent: str) -> str:
    """ "Firefox, Linux"; what cannot be told is left as it is, shortened."""
    name = next((word for mark, word in _BROWSERS if mark in agent), "")
    system = next((word for mark, word in _SYSTEMS if mark in agent), "")
    return ", ".join(part for part in (name, system) if part) or agent[:40]


def words() -> dict[str, str]:
    """What the browser needs to keep times moving and to tell about its connection, in the reader's language."""
    return {
        "s": _("{n} s"),
        "min": _("{n} min"),
        "h": _("{n} h"),
        "day": ngettext("{n} day", "{n} days", 1),
        "days": ngettext("{n} day", "{n} days", 2),
        "in": _("in {span}"),
        "ago": _("{span} ago"),
        "now": _("now"),
        "soon": _("any moment"),
    }
