"""What an entry of the image catalogue may hold. Pure checks that raise ValidationError; the catalogue decides what runs.

Everything here ends up in an engine's API or in a process's arguments, so nothing that could be taken for an option, a
path or a second line is let in.
"""

import re
from typing import Any

from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _

_HOST = r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?(?::[0-9]{1,5})?"
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REF = re.compile(rf"(?:{_HOST}/)?{_COMPONENT}(?:/{_COMPONENT})*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

PLACEHOLDERS = frozenset({"port", "home", "base_url", "socket", "id"})
_MOST_WORDS = 100
_LONGEST_WORD = 4096
# Set for every workspace by CodeHub itself; a catalogue entry that could change them would break the isolation of homes.
_RESERVED_ENV = frozenset({"HOME", "LD_PRELOAD", "LD_LIBRARY_PATH"})


def check_ref(ref: str) -> None:
    """`[host[:port]/]name[/name...][:tag][@sha256:digest]`, and nothing else."""
    if not _REF.fullmatch(ref):
        raise ValidationError(
            _("Not an image reference. Write it like registry.example.org/team/image:tag, without spaces, options or paths.")
        )


def check_command(command: Any) -> None:
    """A list of words that go to the program as they are: no shell reads them."""
    if not isinstance(command, list) or not all(isinstance(word, str) for word in command):
        raise ValidationError(_("The command must be a list of words."))
    if len(command) > _MOST_WORDS:
        raise ValidationError(_("The command may have at most %(most)d words."), params={"most": _MOST_WORDS})
    for number, word in enumerate(command, start=1):
        if number == 1 and (not word.strip() or word.startswith("-")):
            raise ValidationError(_("The first word is the program to run: it can't be empty or an option."))
        if len(word) > _LONGEST_WORD or _CONTROL.search(word):
            raise ValidationError(_("Word %(number)d is too long or holds control characters."), params={"number": number})
        for name in _PLACEHOLDER.findall(word):
            if name not in PLACEHOLDERS:
                raise ValidationError(
                    _("Word %(number)d: {%(name)s} is not known. Use {port}, {home}, {base_url}, {socket} or {id}."),
                    params={"number": number, "name": name},
                )


def check_env(env: Any) -> None:
    """Names to text. No numbers, no nesting: an environment knows only text."""
    if not isinstance(env, dict):
        raise ValidationError(_("The environment must map names to text."))
    if len(env) > _MOST_WORDS:
        raise ValidationError(_("The environment may have at most %(most)d names."), params={"most": _MOST_WORDS})
    for name, value in env.items():
        if not isinstance(name, str) or not _ENV_NAME.fullmatch(name):
            raise ValidationError(_("%(name)s is not a name of an environment variable."), params={"name": repr(name)})
        if name in _RESERVED_ENV:
            raise ValidationError(_("%(name)s is set by CodeHub and can't be changed here."), params={"name": name})
        if not isinstance(value, str) or len(value) > _LONGEST_WORD or _CONTROL.search(value):
            raise ValidationError(_("The value of %(name)s must be one line of text."), params={"name": name})


def check_entry(*, runtimes: list[str], ref: str, command: list[str], home: str) -> None:
    """What must fit together. Raises with a dict of field to problem."""
    problems: dict[str, Any] = {}
    if not runtimes:
        problems["runtimes"] = _("Choose at least one runtime.")
    if "docker" in runtimes and not ref:
        problems["ref"] = _("Docker needs an image reference.")
    if "process" in runtimes and not command:
        problems["command"] = _("The process runtime needs a command: there is no image to take one from.")
    if ".." in home.split("/") or "//" in home or (len(home) > 1 and home.endswith("/")):
        problems["home"] = _("The home must be a plain absolute path.")
    if problems:
        raise ValidationError(problems)
