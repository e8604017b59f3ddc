"""Scripts for shell completion, made from the parser itself: a new command or option completes without being listed here."""

import argparse
from typing import Any

_BASH = """\
_codehub() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" command="${{COMP_WORDS[1]}}"
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=( $(compgen -W "{commands}" -- "$current") )
        return
    fi
    local IFS=$'\\n'
    case "$command" in
{cases}
    esac
}}
complete -F _codehub codehub
"""


def script(root: argparse.ArgumentParser, shell: str) -> str:
    found = {name: made for name, made in _subparsers(root).items() if not name.startswith("_")}
    cases = "\n".join(_case(name, made) for name, made in found.items())
    made = _BASH.format(commands=" ".join(found), cases=cases)
    return f"#compdef codehub\nautoload -Uz bashcompinit && bashcompinit\n{made}" if shell == "zsh" else made


def _case(name: str, made: argparse.ArgumentParser) -> str:
    words = [option for action in made._actions for option in action.option_strings]
    workspaces = False
    for action in made._actions:
        if action.option_strings:
            continue
        words += [str(choice) for choice in action.choices or []]
        workspaces = workspaces or action.dest == "workspace"
    offered = "\\n".join(words)
    lookup = "; codehub _names 2>/dev/null" if workspaces else ""
    return f'        {name}) COMPREPLY=( $(compgen -W "$(printf -- \'{offered}\\n\'{lookup})" -- "$current") ) ;;'


def _subparsers(root: argparse.ArgumentParser) -> dict[str, Any]:
    for action in root._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}
