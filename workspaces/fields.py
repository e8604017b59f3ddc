"""What an owner may write into the descriptive fields: lengths, characters and TTL bounds. Reads and writes no row."""

import unicodedata
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.utils.translation import gettext as _

from workspaces.errors import InvalidRequestError

DESCRIPTIVE_FIELDS = ("name", "description", "memo", "standby_ttl_seconds", "archive_ttl_seconds")
_MAX_LENGTH = {"name": 100, "description": 500, "memo": 10_000}
# Invisible characters that reorder or hide text: a name must look like what it is.
_BIDI_CONTROLS = frozenset("\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def clean_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The descriptive fields, validated. Raises InvalidRequestError that names each wrong field."""
    problems: dict[str, list[str]] = {}
    cleaned: dict[str, Any] = {}
    for field, value in fields.items():
        try:
            cleaned[field] = _clean_ttl(value) if field.endswith("_ttl_seconds") else _clean_text(field, value)
        except ValueError as error:
            problems[field] = [str(error)]
    if problems:
        raise InvalidRequestError(" ".join(f"{field}: {sentences[0]}" for field, sentences in problems.items()), fields=problems)
    return cleaned


def _clean_text(field: str, value: Any) -> str:
    if field not in _MAX_LENGTH:
        raise ValueError(_("This field cannot be changed."))
    if not isinstance(value, str):
        raise ValueError(_("Must be text."))
    text = value.strip()
    allowed = "\n\t\r" if field == "memo" else ""
    if any((unicodedata.category(char) in {"Cc", "Cs"} and char not in allowed) or char in _BIDI_CONTROLS for char in text):
        raise ValueError(_("Must not hold control characters."))
    if field == "name" and not text:
        raise ValueError(_("Must not be empty."))
    if len(text) > _MAX_LENGTH[field]:
        raise ValueError(_("Must be at most %(max)d characters.") % {"max": _MAX_LENGTH[field]})
    return text


def _clean_ttl(value: Any) -> int | None:
    config = settings.CONFIG
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(_("Must be a whole number of seconds, or null for the default."))
    if value == 0 and config.ttl_allow_never:
        return 0
    if not config.ttl_min_seconds <= value <= config.ttl_max_seconds:
        bounds = {"min": config.ttl_min_seconds, "max": config.ttl_max_seconds}
        if config.ttl_allow_never:
            raise ValueError(_("Must be 0 (never) or between %(min)d and %(max)d seconds.") % bounds)
        raise ValueError(_("Must be between %(min)d and %(max)d seconds.") % bounds)
    return value
