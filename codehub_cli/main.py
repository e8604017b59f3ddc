"""The words of the command line: which commands and options there are, shell completion, and exit codes.

0 done; 1 failed; 2 wrong usage or a refused value; 3 not found; 4 not signed in or not allowed; 5 conflict (something else is
going on); 6 a limit or too many requests; 7 the workspace went to ERROR or did not get there in time.
"""

import argparse
import sys
from collections.abc import Callable, Sequence

from codehub_cli import commands
from codehub_cli.client import FAILED, OK, Client, CliError, client_for
from codehub_cli.completion import script

EXIT_CODES = __doc__.split("\n\n")[1].strip()


def _seconds(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return value


def parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("-o", "--output", choices=["table", "json"], default="table", help="for people, or for scripts")
    common.add_argument("--url", help="the server; else CODEHUB_URL, else where you signed in, else http://127.0.0.1:8000")
    waiting = argparse.ArgumentParser(add_help=False)
    waiting.add_argument("--wait", action="store_true", help="come back when it is done")
    waiting.add_argument("--timeout", type=_seconds, default=600, metavar="SECONDS", help="how long to wait (600)")
    queueing = argparse.ArgumentParser(add_help=False)
    queueing.add_argument("--queue", action="store_true", help="store the wish although something else is going on")
    root = argparse.ArgumentParser(
        prog="codehub",
        description="Workspaces from the command line.",
        epilog=f"Exit codes: {EXIT_CODES}",
    )
    sub = root.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(
        name: str, run: Callable[[argparse.Namespace, Client], int], text: str, *parents: argparse.ArgumentParser
    ) -> argparse.ArgumentParser:
        made = sub.add_parser(name, help=text, description=text, parents=[common, *parents])
        made.set_defaults(run=run)
        return made

    def add_one(
        name: str, run: Callable[[argparse.Namespace, Client], int], text: str, *parents: argparse.ArgumentParser
    ) -> argparse.ArgumentParser:
        made = add(name, run, text, *parents)
        made.add_argument("workspace", metavar="WORKSPACE", help="name or id")
        return made

    _account(add)
    listing = add("ls", commands.ls, "List your workspaces.")
    listing.add_argument("--phase", action="append", help="only this phase; may be repeated")
    listing.add_argument("--search", help="found in name, description or memo")
    listing.add_argument("--all", action="store_true", help="everybody's (operators)")
    making = add("create", commands.create, "Make a workspace.", waiting)
    making.add_argument("name", metavar="NAME")
    making.add_argument("--image", help="name in the catalogue; see `codehub images`")
    making.add_argument("--description")
    making.add_argument("--memo")
    making.add_argument("--state", choices=["RUNNING", "STANDBY", "ARCHIVED"])
    making.add_argument("--standby-ttl", type=_seconds, metavar="SECONDS", help="idle time before it stops; 0 = never")
    making.add_argument("--archive-ttl", type=_seconds, metavar="SECONDS", help="standby time before it is archived; 0 = never")
    making.add_argument("--idempotency-key", help="the same key and wishes give the same workspace")
    for name, text in (
        ("start", "Start a workspace."),
        ("stop", "Stop a workspace; its home stays on disk."),
        ("archive", "Stop a workspace and pack its home away."),
        ("restore", "Bring a home back from its archive, without starting it."),
    ):
        add_one(name, commands.change_state, text, waiting, queueing)
    removing = add_one("rm", commands.rm, "Delete a workspace with its home and archives.", waiting, queueing)
    removing.add_argument("--yes", action="store_true", help="do not ask")
    add_one("show", commands.show_one, "Show a workspace.")
    add_one("why", commands.why, "Say in sentences why a workspace is as it is, and what happens next.")
    add_one("logs", commands.logs, "The last lines of its IDE and of failed runs.")
    add_one("history", commands.history, "What happened to a workspace.")
    opening = add_one("open", commands.open_ide, "Open a workspace in the browser.")
    opening.add_argument("--print", action="store_true", help="only print the address")
    add("images", commands.images, "What a workspace may run.")
    completing = sub.add_parser("completion", help="Print a script for shell completion.")
    completing.add_argument("shell", choices=["bash", "zsh"])
    # Without a help text it is not listed: it serves the completion script.
    sub.add_parser("_names", parents=[common]).set_defaults(run=commands.names)
    return root


def _account(add: Callable[..., argparse.ArgumentParser]) -> None:
    signing = add("login", commands.login, "Sign in; the token is kept for later calls.")
    signing.add_argument("--username")
    signing.add_argument("--password-file", metavar="FILE", help="read the password from here; - is standard input")
    add("logout", commands.logout, "End the token and forget it.")
    add("whoami", commands.whoami, "Who you are, and how much you use of what you may.")
    held = add("tokens", commands.tokens, "List, make and revoke tokens.")
    held.add_argument("action", nargs="?", choices=["ls", "create", "revoke"], default="ls")
    held.add_argument("value", nargs="?", metavar="NAME|ID")
    held.add_argument("--days", type=_seconds, help="how long a new token lives")


def main(words: Sequence[str] | None = None) -> int:
    root = parser()
    args = root.parse_args(words)
    if args.command == "completion":
        sys.stdout.write(script(root, args.shell))
        return OK
    try:
        run: Callable[[argparse.Namespace, Client], int] = args.run
        return run(args, client_for(args.url))
    except CliError as error:
        sys.stderr.write(f"codehub: {error}\n")
        return error.exit_code
    except (KeyboardInterrupt, EOFError):
        sys.stderr.write("\n")
        return 130
    except BrokenPipeError:
        # Whoever read our output has seen enough.
        sys.stderr.close()
        return FAILED
