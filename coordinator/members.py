"""Which members of a tar stream belong into an archive, and which a restore refuses.

Owns these two judgements, as visitors of a stream. Knows nothing of the tar format, of stores or of runtimes.
"""

from coordinator.providers.tarstream import HARD_LINK, SPECIAL, SYMLINK, Member, UnsafeMemberError


class HomeFilter:
    """Visitor for an archive: leaves out special files, and hard links to those."""

    def __init__(self) -> None:
        self.skipped = 0
        self._left_out: set[bytes] = set()

    def __call__(self, member: Member) -> bool:
        if member.kind in SPECIAL:
            self._left_out.add(member.name)
        elif not (member.kind == HARD_LINK and member.link in self._left_out):
            return True
        self.skipped += 1
        return False


class HomeGuard:
    """Visitor for a restore: refuses what could touch anything outside the home, and bounds bytes and files."""

    def __init__(self, *, max_bytes: int, max_files: int) -> None:
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._symlinks: set[bytes] = set()
        self._safe_parent: bytes | None = None
        self.files = 0
        self.bytes = 0

    def __call__(self, member: Member) -> bool:
        self.files += 1
        self.bytes += member.size
        if self.bytes > self._max_bytes:
            raise UnsafeMemberError(f"the home is larger than the {self._max_bytes} bytes that are allowed")
        if self.files > self._max_files:
            raise UnsafeMemberError(f"the home has more than the {self._max_files} files that are allowed")
        if member.kind in SPECIAL:
            raise UnsafeMemberError(f"device or fifo in the archive: {member.name[:200]!r}")
        self._refuse_symlinked(member.name, itself=True)
        if member.kind == HARD_LINK:
            if not member.link:
                raise UnsafeMemberError(f"hard link to the home itself: {member.name[:200]!r}")
            self._refuse_symlinked(member.link, itself=False)
        if member.kind == SYMLINK or (member.kind == HARD_LINK and member.link in self._symlinks):
            self._symlinks.add(member.name)
            self._safe_parent = None
        return True

    def _refuse_symlinked(self, name: bytes, *, itself: bool) -> None:
        if not self._symlinks:
            return
        if itself and name in self._symlinks:
            raise UnsafeMemberError(f"a second member in place of a symlink: {name[:200]!r}")
        parent = name.rpartition(b"/")[0]
        if not parent or parent == self._safe_parent:
            return
        above = parent
        while above:
            if above in self._symlinks:
                raise UnsafeMemberError(f"a member below a symlink: {name[:200]!r}")
            above = above.rpartition(b"/")[0]
        self._safe_parent = parent
