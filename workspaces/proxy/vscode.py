"""Reads just enough of VS Code's remote protocol to tell a terminal's output from the IDE's own chatter. Pure.

A message is a 13-byte head (type, id, ack, length) and a body. Of the server's many events only a terminal's output has a body
`[204, number]` followed by `{"id":1,"event":"text"}`, so nothing needs to be remembered of what the client once asked for:
a connection that comes back after a restart is understood as well. What cannot be read is taken for chatter.
"""

import re
from collections.abc import Iterator

_HEAD = 13
_REGULAR = 1
_PEEK = 64
_NUMBER = rb"[\x80-\xff]{0,4}[\x00-\x7f]"
# A list (4) of two numbers (6), the first of them 204, then an object (5) of so many bytes.
_OUTPUT = re.compile(rb"\x04\x02\x06\xcc\x01\x06" + _NUMBER + rb"\x05" + _NUMBER + rb'\{"id":[0-9]{1,9},"event":(?:"|\{"data":)', re.DOTALL)


class Watch:
    """What the server sends on one connection."""

    __slots__ = ("_skip",)

    def __init__(self) -> None:
        self._skip = 0

    def hears_output(self, data: bytes) -> bool:
        """Whether these bytes, the next of the connection, hold a terminal's output."""
        # All of them first: every message must be walked through, or the next bytes would be read out of step.
        bodies = list(self._bodies(data))
        return any(_OUTPUT.match(body) for body in bodies)

    def _bodies(self, data: bytes) -> Iterator[bytes]:
        """The beginnings of the regular bodies, wherever the frames cut them."""
        at = 0
        if self._skip:
            at = min(self._skip, len(data))
            self._skip -= at
        while at + _HEAD <= len(data):
            length = int.from_bytes(data[at + 9 : at + 13], "big")
            if data[at] == _REGULAR:
                yield data[at + _HEAD : at + _HEAD + min(length, _PEEK)]
            at += _HEAD + length
        # A head is never split in practice; after one that was, the next message starts afresh.
        self._skip += max(0, at - len(data))
