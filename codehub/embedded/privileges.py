"""Who an embedded program runs as when CodeHub was started by root.

Owns the choice of an unprivileged user and the way it reaches directories only root may enter.
PostgreSQL refuses to run as root; an ordinary user's own programs need none of this.
"""

import os
import pwd
import shutil
from dataclasses import dataclass
from pathlib import Path

from codehub.embedded.service import EmbeddedError

CANDIDATES = ("postgres", "nobody", "daemon")
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1, 2


@dataclass(frozen=True, slots=True)
class Account:
    """An unprivileged account, and the words to put before a command so that it can reach its files."""

    uid: int
    gid: int
    prefix: tuple[str, ...] = ()

    @property
    def switches_by_prefix(self) -> bool:
        return bool(self.prefix)


def unprivileged_account(directory: Path, *, program: Path) -> Account | None:
    """The account to run `program` as, now owner of `directory`; None when we are not root and nothing must change.

    A clone below a 0700 directory (such as root's home) is closed to every other user. Opening that directory to
    the world is not ours to decide, so there the program keeps the one capability that lets it pass.
    """
    if os.geteuid() != 0:
        return None
    entry = _existing_account()
    account = Account(uid=entry.pw_uid, gid=entry.pw_gid)
    give(directory, account)
    may_pass = all(_allows(step, 0o1, account) for path in (directory, program) for step in path.resolve().parents)
    may_run = _allows(program, 0o5, account)
    if may_pass and may_run:
        return account
    capability = _held_capability(must_run=not may_run)
    setpriv = shutil.which("setpriv")
    if capability is None or setpriv is None:
        raise EmbeddedError(
            f"PostgreSQL cannot run as root, and user {entry.pw_name!r} may not reach {directory} or {program}. "
            "Put both below directories that everybody may enter (CODEHUB_DATA_DIR moves the first), or start CodeHub as an ordinary user."
        )
    prefix = (
        setpriv,
        f"--reuid={entry.pw_uid}",
        f"--regid={entry.pw_gid}",
        "--clear-groups",
        f"--inh-caps=-all,+{capability}",
        f"--ambient-caps=-all,+{capability}",
        "--no-new-privs",
        # The change of user clears what we set between fork and exec.
        "--pdeathsig=INT",
        "--",
    )
    return Account(uid=entry.pw_uid, gid=entry.pw_gid, prefix=prefix)


def give(path: Path, account: Account | None) -> None:
    """Make `path` the account's own."""
    if account is not None:
        os.chown(path, account.uid, account.gid)


def _existing_account() -> pwd.struct_passwd:
    for name in CANDIDATES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return entry
    raise EmbeddedError(
        f"PostgreSQL cannot run as root and none of the users {', '.join(CANDIDATES)} exists. Start CodeHub as an ordinary user."
    )


def _allows(path: Path, wanted: int, account: Account) -> bool:
    """Whether the mode bits of `path` give the account all of `wanted` (one octal digit)."""
    status = path.stat()
    if status.st_uid == account.uid:
        mode = status.st_mode >> 6
    elif status.st_gid == account.gid:
        mode = status.st_mode >> 3
    else:
        mode = status.st_mode
    return mode & wanted == wanted


def _held_capability(*, must_run: bool) -> str | None:
    """The weakest capability we hold that passes closed directories, and runs closed files where that is needed."""
    permitted = 0
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapPrm:"):
            permitted = int(line.split()[1], 16)
    if permitted & (1 << CAP_DAC_READ_SEARCH) and not must_run:
        return "dac_read_search"
    if permitted & (1 << CAP_DAC_OVERRIDE):
        return "dac_override"
    return None
