"""The order of an event stream: gaps, repetitions and restarts, without sockets.

A message has three frames: topic, sequence number (8 bytes, big-endian, from 0 on) and payload. An engine
keeps the last of them and sends them again when asked, from a sequence number on; -1 ends such an answer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from contextpilot_integrations.engines.cache_follower import CacheFollower, Noticed

__all__ = ["EventStream", "is_end_of_replay", "replay_request"]

_END = b"\xff" * 8


def replay_request(start: int) -> list[bytes]:
    """Return the frames that ask for all messages from a sequence number on."""
    return [b"", start.to_bytes(8, "big")]


def is_end_of_replay(frames: Sequence[bytes]) -> bool:
    """Tell whether a message ends the answer to a replay request."""
    return len(frames) >= 2 and frames[-2] == _END


class EventStream:
    """Hands a follower each message of one publisher once, in order, and tells it when some are lost.

    For a live message, ask `missing_before`; if something is, have it replayed and hand each message of the
    answer to `replayed`; then hand the live message to `live`. The first message ever is the beginning: what
    the engine replays of the time before it is history, and what it does not replay was no loss.

    Args:
        follower: Whom to tell.
    """

    def __init__(self, follower: CacheFollower) -> None:
        self._follower = follower
        self._live = -1
        self._taken: int | None = None
        self._digest = b""
        self._resuming = False

    def missing_before(self, frames: Sequence[bytes]) -> int | None:
        """Tell from which sequence number on to ask for a replay; None if nothing is missing.

        That of the last message taken is asked for too: if the engine then sends another one under it, it has
        restarted.
        """
        if (message := _parsed(frames)) is None:
            return None
        sequence, _ = message
        if sequence <= self._live:
            self._follower.restarted()
            self._taken = None
        self._live = sequence
        self._resuming = self._taken is not None and sequence > self._taken + 1
        if self._taken is None:
            return 0 if sequence else None
        return self._taken if self._resuming else None

    def replayed(self, frames: Sequence[bytes]) -> None:
        """Take a message of a replay."""
        message = _parsed(frames[-3:])
        if self._resuming and message is not None:
            self._resuming = False
            if _digest(*message) != self._digest:
                self._follower.doubt(Noticed.LOST)
                self._taken = None
        self._take(message)

    def live(self, frames: Sequence[bytes]) -> None:
        """Take a live message, once what is missing before it was replayed or cannot be."""
        self._take(_parsed(frames))

    def _take(self, message: tuple[int, bytes] | None) -> None:
        if message is None:
            self._follower.doubt(Noticed.GARBAGE)
            return
        sequence, payload = message
        if self._taken is not None:
            if sequence <= self._taken:
                return
            if sequence > self._taken + 1:
                self._follower.doubt(Noticed.LOST)
        self._taken, self._digest = sequence, _digest(sequence, payload)
        self._follower.take(payload)


def _parsed(frames: Sequence[bytes]) -> tuple[int, bytes] | None:
    """Read a message's sequence number and payload. An older engine's replay leaves out the topic."""
    if len(frames) != 3 or len(frames[1]) != 8:
        return None
    return int.from_bytes(frames[1], "big"), frames[2]


def _digest(sequence: int, payload: bytes) -> bytes:
    return hashlib.blake2b(sequence.to_bytes(8, "big") + payload, digest_size=16).digest()
