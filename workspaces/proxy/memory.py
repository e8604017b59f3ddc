"""Memory that a crowd of connections took goes back to the machine when the crowd has left.

The allocator keeps what was freed in pieces between things that live on; asked once after a crowd, it gives whole pages back.
"""

import asyncio
import ctypes
import gc
from types import TracebackType

_LOOK_SECONDS = 5.0
_CROWD = 500
# Of glibc; another C library has no such call, and keeps what it has.
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)


def give_back() -> None:
    gc.collect()
    if _trim is not None:
        _trim(0)


class Crowd:
    """How many are served now, and the most since memory was given back. Lives in one event loop."""

    def __init__(self) -> None:
        self.now = 0
        self.most = 0

    def __enter__(self) -> None:
        self.now += 1
        self.most = max(self.most, self.now)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.now -= 1

    def has_left(self) -> bool:
        """Whether many have gone since this was true last."""
        if self.most - self.now < _CROWD:
            return False
        self.most = self.now
        return True

    async def give_back_forever(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if self.has_left():
                await asyncio.to_thread(give_back)
