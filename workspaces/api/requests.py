"""What may be sent: strict JSON bodies, query parameters and conditional headers, refused in whole when wrong.

Checks shapes and types only; whether a wish can be granted is for the services.
"""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import IO, Any, NoReturn
from uuid import UUID

from django.conf import settings
from django.utils.translation import gettext as _
from rest_framework.parsers import BaseParser
from rest_framework.request import Request

from workspaces.api.errors import ApiError, invalid, too_large
from workspaces.errors import NotFoundError

_CANONICAL_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\Z")
_ENTITY_TAG = re.compile(r'\s*(?:W/)?"([^"]*)"\s*')


class StrictJSONParser(BaseParser):
    """JSON without its loose ends: no duplicate keys, no NaN, no NUL, no half surrogates, bounded."""

    media_type = "application/json"

    def parse(self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None) -> Any:
        limit = settings.CONFIG.api_max_body_bytes
        raw = stream.read(limit + 1)
        if len(raw) > limit:
            raise too_large()
        try:
            text = raw.decode("utf-8")
            value = json.loads(text, object_pairs_hook=_object_without_duplicates, parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            raise invalid(_("The body is not valid JSON.")) from None
        if "\\u" in text or "\x00" in text:
            _refuse_unstorable(value)
        return value


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("duplicate key")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _refuse_unstorable(value: Any) -> None:
    if isinstance(value, str):
        if "\x00" in value or any("\ud800" <= char <= "\udfff" for char in value):
            raise invalid(_("Text must not hold NUL or half characters."))
    elif isinstance(value, dict):
        for key, item in value.items():
            _refuse_unstorable(key)
            _refuse_unstorable(item)
    elif isinstance(value, list):
        for item in value:
            _refuse_unstorable(item)


def body_of(request: Request, *, allowed: tuple[str, ...], required: tuple[str, ...] = ()) -> dict[str, Any]:
    """The body as an object that holds only allowed fields and all required ones. No body at all is an empty object."""
    body = request.data
    if not isinstance(body, dict):
        raise invalid(_("The body must be a JSON object."))
    unknown = {name: _("This field cannot be set.") for name in body if name not in allowed}
    missing = {name: _("This field is required.") for name in required if name not in body}
    problems = {**unknown, **missing}
    if problems:
        detail = " ".join(f"{name}: {sentence}" for name, sentence in problems.items())
        raise ApiError("invalid", detail[:500], fields={name[:100]: [sentence] for name, sentence in [*problems.items()][:50]})
    return dict(body)


def text_of(body: Mapping[str, Any], field: str, *, max_length: int, default: str | None = None) -> str:
    """A field that must be text, not empty."""
    value = body.get(field, default)
    if not isinstance(value, str) or not value.strip() or len(value) > max_length:
        raise invalid(
            _("%(field)s: Must be text of 1 to %(max)d characters.") % {"field": field, "max": max_length}, **{field: _("Wrong text.")}
        )
    return value


def whole_number(value: Any) -> Any:
    """JSON knows no integers: 60.0 is 60. Everything else is left for the services to refuse."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def flag_of(request: Request, name: str) -> bool:
    value = request.query_params.get(name)
    if value is None:
        return False
    if value.lower() not in {"true", "false", "1", "0"}:
        raise invalid(_("%(name)s must be true or false.") % {"name": name}, **{name: _("Choose true or false.")})
    return value.lower() in {"true", "1"}


def query_text(request: Request, name: str, *, max_length: int = 200) -> str | None:
    value = request.query_params.get(name)
    if value is not None and (len(value) > max_length or "\x00" in value):
        sentence = _("Must be at most %(max)d characters without NUL.") % {"max": max_length}
        raise invalid(f"{name}: {sentence}", **{name: sentence})
    return value


def query_number(request: Request, name: str, *, default: int, largest: int) -> int:
    value = request.query_params.get(name)
    if value is None:
        return default
    if not re.fullmatch(r"[0-9]{1,6}", value) or not 1 <= int(value) <= largest:
        sentence = _("Must be a number from 1 to %(max)d.") % {"max": largest}
        raise invalid(f"{name}: {sentence}", **{name: sentence})
    return int(value)


def workspace_id_of(text: str) -> UUID:
    """An id from the path. What is no id is answered like an id that does not exist."""
    if not _CANONICAL_UUID.match(text):
        raise NotFoundError(_("There is no such workspace."))
    return UUID(text)


def etag_of(updated_at: datetime) -> str:
    return f'"{updated_at.astimezone(UTC).isoformat().replace("+00:00", "Z")}"'


def if_match_of(request: Request) -> datetime | None:
    """The `updated_at` the caller saw last, from `If-Match`. A tag that no version of ours can have is already stale."""
    header = request.headers.get("If-Match")
    if header is None or header.strip() == "*":
        return None
    tag = _ENTITY_TAG.fullmatch(header)
    if tag is None:
        raise ApiError("stale", _("If-Match must be one entity tag, in double quotes, or *."))
    try:
        seen = datetime.fromisoformat(tag[1])
    except ValueError:
        seen = None
    if seen is None or seen.tzinfo is None:
        raise ApiError("stale", _("The workspace was changed in the meantime. Load it again before you change it."))
    return seen
