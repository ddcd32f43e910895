"""What the watchers of a job tell each other, and the datagram of it, which nobody else can make.

Like `distsms.parallel.watcher`, this module imports nothing but Python's standard library.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import NamedTuple

KINDS = ("beat", "done", "died", "end", "kill")
HEADER = struct.Struct("!BIQd")  # the kind's index, the sender's rank, the number of the message, seconds of idleness
DIGEST_BYTES = hashlib.sha256().digest_size
ABOUT_BYTES = 1000  # the largest size of a message's text


class Message(NamedTuple):
    """What one watcher tells another."""

    kind: str  # one of KINDS
    rank: int  # the sender's
    number: int  # larger than in the sender's previous message
    idle: float  # seconds for which the sender's rank has been idle
    about: str  # where the sender's rank runs and what state it is in, for people

    def pack(self, key: bytes) -> bytes:
        """Return the datagram of this message: its keyed digest, the header, and the text."""
        text = self.about.encode(errors="replace")[:ABOUT_BYTES]
        body = HEADER.pack(KINDS.index(self.kind), self.rank, self.number, self.idle) + text
        return hmac.digest(key, body, "sha256") + body

    @classmethod
    def unpack(cls, datagram: bytes, key: bytes) -> Message | None:
        """Return the message of a datagram; None unless it was made with this key."""
        digest, body = datagram[:DIGEST_BYTES], datagram[DIGEST_BYTES:]
        if len(body) < HEADER.size or not hmac.compare_digest(digest, hmac.digest(key, body, "sha256")):
            return None
        kind, rank, number, idle = HEADER.unpack(body[: HEADER.size])
        return cls(KINDS[kind], rank, number, idle, body[HEADER.size :].decode(errors="replace"))
