"""What each command does: one function a command, given the parsed words and a client. Returns the exit code."""

import argparse
import getpass
import json
import re
import sys
import time
import uuid
import webbrowser
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from codehub_cli import show
from codehub_cli.client import AUTH, CONFLICT, NOT_FOUND, NOT_REACHED, OK, USAGE, Client, CliError, address, path_of, store, stored

_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\Z")
_SHELL_SAFE: Final = re.compile(r"[A-Za-z0-9_.@+-]+\Z")
STATES: Final = {"start": "RUNNING", "stop": "STANDBY", "archive": "ARCHIVED", "restore": "STANDBY"}


def _now() -> datetime:
    return datetime.now(UTC)


def _say(text: str) -> None:
    print(text)  # noqa: T201 - this is what a command line client is for


def _print(args: argparse.Namespace, body: Any, text: str) -> None:
    _say(json.dumps(body, indent=2, ensure_ascii=False) if args.output == "json" else text)


def find(client: Client, wanted: str) -> dict[str, Any]:
    """The workspace with this id or this exact name."""
    if _UUID.match(wanted):
        found: dict[str, Any] = client.get(path_of("workspaces", wanted))
        return found
    named = [row for row in client.all("workspaces", search=wanted[:200], page_size=200) if row["name"] == wanted]
    if not named:
        raise CliError(f"There is no workspace called {wanted}.", exit_code=NOT_FOUND)
    if len(named) > 1:
        ids = ", ".join(row["id"] for row in named)
        raise CliError(f"{len(named)} workspaces are called {wanted}; use an id: {ids}", exit_code=CONFLICT)
    return named[0]


def login(args: argparse.Namespace, client: Client) -> int:
    username = args.username or input("User name: ")
    if args.password_file == "-":  # noqa: S105 - the name of standard input
        password = sys.stdin.readline().rstrip("\n")
    elif args.password_file:
        try:
            password = Path(args.password_file).read_text().strip()
        except OSError as error:
            raise CliError(f"Cannot read the password: {error}", exit_code=USAGE) from None
    else:
        password = getpass.getpass("Password: ")
    url = address(args.url)
    answer = Client(url=url).post("auth/login", {"username": username, "password": password})
    store({"url": url, "token": answer["token"]})
    _print(args, {"url": url, "username": username, "expiry": answer["expiry"]}, f"Signed in to {url} as {username}.")
    return OK


def logout(args: argparse.Namespace, client: Client) -> int:
    if client.token:
        try:
            client.post("auth/logout")
        except CliError as error:
            # A token that opens nothing any more is ended already, and still to be forgotten.
            if error.exit_code != AUTH:
                raise
    kept = stored()
    if kept.get("token") == client.token:
        store({"url": kept.get("url", client.url)})
    _print(args, {}, "Signed out.")
    return OK


def ls(args: argparse.Namespace, client: Client) -> int:
    rows = client.all("workspaces", phase=args.phase, search=args.search, all="true" if args.all else None, page_size=200)
    _print(args, rows, show.workspaces(rows, now=_now(), owners=args.all) if rows else "No workspaces. Make one: codehub create NAME")
    return OK


def create(args: argparse.Namespace, client: Client) -> int:
    wishes = {
        "name": args.name,
        "description": args.description,
        "memo": args.memo,
        "image": args.image,
        "desired_state": args.state,
        "standby_ttl_seconds": args.standby_ttl,
        "archive_ttl_seconds": args.archive_ttl,
    }
    body = {name: value for name, value in wishes.items() if value is not None}
    # A key of its own for each call of the command: a lost answer is asked for again without making a second workspace.
    row = client.post("workspaces", body, headers={"Idempotency-Key": args.idempotency_key or str(uuid.uuid4())})
    if args.wait:
        row = _wait(client, row["id"], args.state or "RUNNING", args)
    _print(args, row, f"{row['name']} ({row['id']}) is {row['phase']}. {row['url']}")
    return OK


def change_state(args: argparse.Namespace, client: Client) -> int:
    wanted = STATES[args.command]
    row = client.patch(
        path_of("workspaces", find(client, args.workspace)["id"]), {"desired_state": wanted}, queue="true" if args.queue else None
    )
    if args.wait:
        row = _wait(client, row["id"], wanted, args)
    _print(args, row, f"{row['name']} is {row['phase']}{'' if row['phase'] == wanted else f' and will be {wanted}'}.")
    return OK


def rm(args: argparse.Namespace, client: Client) -> int:
    row = find(client, args.workspace)
    if not args.yes:
        if not sys.stdin.isatty():
            raise CliError("Deleting takes the home and its archives along. Confirm with --yes.", exit_code=USAGE)
        if input(f"Delete {row['name']} with its home and archives? Type its name: ") != row["name"]:
            raise CliError("Not deleted.")
    row = client.delete(path_of("workspaces", row["id"]), queue="true" if args.queue else None)
    if args.wait:
        _wait(client, row["id"], "DELETED", args)
    _print(args, row, f"{row['name']} {'is deleted' if args.wait else 'is being deleted'}.")
    return OK


def show_one(args: argparse.Namespace, client: Client) -> int:
    row = find(client, args.workspace)
    _print(args, row, show.one(row, now=_now()))
    return OK


def why(args: argparse.Namespace, client: Client) -> int:
    row = find(client, args.workspace)
    _print(args, row, show.why(row, now=_now()))
    return OK


def logs(args: argparse.Namespace, client: Client) -> int:
    key = find(client, args.workspace)["id"]
    body = client.get(path_of("workspaces", key, "logs"), fresh="true")
    parts = [body["ide"]["text"]] if body["ide"] else []
    parts += [f"--- {run['action']} {run['state']} {run['finished_at']}\n{run['log']}" for run in body["failed_runs"]]
    _print(args, body, show.plain_lines("\n".join(parts)) if parts else "No lines are kept.")
    return OK


def history(args: argparse.Namespace, client: Client) -> int:
    key = find(client, args.workspace)["id"]
    rows = client.get(path_of("workspaces", key, "history"))["results"]
    lines = []
    for row in rows:
        if row["type"] == "attempt":
            what = f"{row['action']} {row['number']}: {row['state']}"
            detail = (row["error"] or {}).get("message", "")
        else:
            what = f"{row['from_phase']} -> {row['to_phase']}"
            if row["from_operation"] != row["to_operation"]:
                what += f" ({row['from_operation']} -> {row['to_operation']})"
            detail = row["message"]
        lines.append([row["at"], what, detail])
    _print(args, rows, show.table(["AT", "WHAT", "DETAIL"], lines))
    return OK


def open_ide(args: argparse.Namespace, client: Client) -> int:
    row = find(client, args.workspace)
    _print(args, {"url": row["url"]}, row["url"])
    if not args.print and not webbrowser.open(row["url"]):
        raise CliError("No browser could be started; open the address above.")
    return OK


def tokens(args: argparse.Namespace, client: Client) -> int:
    if args.action == "create":
        if not args.value:
            raise CliError("Give the token a name: codehub tokens create NAME", exit_code=USAGE)
        body = {"name": args.value} if args.days is None else {"name": args.value, "expires_in_days": args.days}
        made = client.post("tokens", body)
        _print(args, made, made["token"])
    elif args.action == "revoke":
        if not args.value:
            raise CliError("Say which token: codehub tokens revoke ID", exit_code=USAGE)
        client.delete(path_of("tokens", args.value))
        _print(args, {}, "Revoked.")
    else:
        rows = client.all("tokens")
        now = _now()
        lines = [
            [row["name"], row["prefix"] + "…", show.ahead(row["expires_at"], now), show.ago(row["last_used_at"], now), row["id"]]
            for row in rows
        ]
        _print(args, rows, show.table(["NAME", "BEGINS", "EXPIRES", "LAST USED", "ID"], lines))
    return OK


def images(args: argparse.Namespace, client: Client) -> int:
    rows = client.all("images")
    _print(args, rows, show.table(["NAME", "TITLE", "DESCRIPTION"], [[row["name"], row["title"], row["description"]] for row in rows]))
    return OK


def whoami(args: argparse.Namespace, client: Client) -> int:
    body = client.get("me")
    usage, limits = body["usage"], body["limits"]
    kind = "operator" if body["is_staff"] else "user"
    text = f"{body['username']} ({kind}) at {client.url}: {usage['running']} of {limits['max_running']} running, {usage['workspaces']} of {limits['max_workspaces']} workspaces"
    _print(args, body, show.plain(text))
    return OK


def names(args: argparse.Namespace, client: Client) -> int:
    """For shell completion, which expands what it is given: a name a shell would read as more than a name is offered as its id."""
    rows = client.all("workspaces", page_size=200)
    _say("\n".join(row["name"] if _SHELL_SAFE.match(row["name"]) else row["id"] for row in rows))
    return OK


def _wait(client: Client, key: str, wanted: str, args: argparse.Namespace) -> dict[str, Any]:
    """Look until the workspace is as wanted; a line of progress on a terminal's error stream meanwhile."""
    deadline = time.monotonic() + args.timeout
    pause = 0.2
    shown = ""
    try:
        while True:
            try:
                row: dict[str, Any] = client.get(path_of("workspaces", key))
            except CliError as error:
                if wanted == "DELETED" and error.exit_code == NOT_FOUND:
                    return {"id": key, "phase": "DELETED"}
                raise
            if row["phase"] == wanted and row["operation"] == "NONE":
                return row
            if row["phase"] == "ERROR" and wanted != "DELETED":
                info = row["error_info"] or {}
                raise CliError(
                    f"{row['name']} is in ERROR: {show.plain(info.get('message') or row['error_reason'])}", exit_code=NOT_REACHED
                )
            if row["desired_state"] != wanted:
                raise CliError(f"Somebody asked {row['name']} to be {row['desired_state']} meanwhile.", exit_code=CONFLICT)
            if time.monotonic() > deadline:
                raise CliError(f"{row['name']} is still {row['phase']} {show.doing(row)} after {args.timeout} s.", exit_code=NOT_REACHED)
            shown = _progress_line(row, shown)
            time.sleep(pause)
            pause = min(1.0, pause * 1.3)
    finally:
        if shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _progress_line(row: dict[str, Any], shown: str) -> str:
    if not sys.stderr.isatty():
        return ""
    line = show.plain(f"{row['name']}: {row['phase']} {show.doing(row)}")
    if line != shown:
        sys.stderr.write(f"\r\x1b[K{line}")
        sys.stderr.flush()
    return line
