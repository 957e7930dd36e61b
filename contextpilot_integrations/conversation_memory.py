"""What a pilot remembers of conversations, so that what was sent once is sent again as it was."""

from __future__ import annotations

import json
import marshal
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from os import urandom
from threading import Lock
from typing import Any, cast

from contextpilot_integrations.deduplication import Transcript
from contextpilot_integrations.edits import Edit
from contextpilot_integrations.message_blocks import MessageBlocks, MessageTexts
from contextpilot_integrations.namespace import Namespace
from contextpilot_integrations.recognition import Texts

__all__ = ["Conversation", "ConversationMemory", "Decision", "conversation_keys"]

_BYTES = 2_500  # Of a conversation without a line.
_MARSHAL_VERSION = 2  # The last that writes equal values alike: later ones note which are one object.


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided about a message that cannot be told from the messages alone.

    Attributes:
        blocks: Those that were found in it; None: they are to be looked for, but not to be aligned.
        order: The places of the movable ones in the order sent; empty where it is the order given.
    """

    blocks: MessageBlocks | None = None
    order: tuple[int, ...] = ()


@dataclass(slots=True)
class Conversation:
    """A conversation as far as it was rewritten.

    Attributes:
        length: How many messages.
        edits: What was changed.
        changed: Per changed message the texts that go out, by content part.
        transcript: The lines that go out.
        results: What each tool call's result is called, by the call's id.
        named: How often each name was given to a result.
        shown: The texts of the blocks that were shown.
        returned: How often the texts of blocks stand in tools' results.
        answered: Whether there was an answer.
        has_blocks: Whether there was a message with blocks.
    """

    length: int = 0
    edits: list[Edit] = field(default_factory=list)
    changed: dict[int, MessageTexts] = field(default_factory=dict)
    transcript: Transcript = field(default_factory=Transcript)
    results: dict[str, str] = field(default_factory=dict)
    named: Counter[str] = field(default_factory=Counter)
    shown: Texts = field(default_factory=Texts)
    returned: Counter[str] = field(default_factory=Counter)
    answered: bool = False
    has_blocks: bool = False

    @property
    def size(self) -> int:
        """How many bytes of memory it takes, about."""
        return _BYTES + self.transcript.size


class ConversationMemory:
    """Remembers conversations, bounded in size and age. Shared by threads.

    What it forgets costs time and cached tokens, never text.

    Args:
        limit: How many bytes the conversations take, about; the least recently used ones go first.
        max_age: Seconds without a request after which a conversation is forgotten.
        clock: Tells the time in seconds.
    """

    MAX_DECISIONS = 65_536

    def __init__(
        self, limit: int, *, max_age: float = 3600.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit = limit
        self._max_age = max_age
        self._clock = clock
        self._lock = Lock()
        self._conversations: OrderedDict[bytes, tuple[Conversation, float]] = OrderedDict()
        self._decisions: OrderedDict[bytes, tuple[Decision, float]] = OrderedDict()
        self._size = 0

    def take(self, keys: Sequence[bytes]) -> Conversation | None:
        """Take out the longest conversation that messages continue.

        Whoever takes it has it alone, until it is put back.

        Args:
            keys: The messages' (`conversation_keys`).
        """
        with self._lock:
            for key in reversed(keys):
                if (found := self._conversations.pop(key, None)) is not None:
                    conversation, used = found
                    self._size -= conversation.size
                    if used + self._max_age >= self._clock():
                        return conversation
        return None

    def put(self, key: bytes, conversation: Conversation) -> None:
        """Remember a conversation under the key of all its messages."""
        with self._lock:
            now = self._clock()
            replaced = self._conversations.pop(key, None)
            if replaced is not None:
                self._size -= replaced[0].size
            self._conversations[key] = conversation, now
            self._size += conversation.size
            while self._conversations:
                oldest, used = next(iter(self._conversations.values()))
                if self._size <= self._limit and used + self._max_age >= now:
                    break
                self._conversations.popitem(last=False)
                self._size -= oldest.size

    def decide(self, key: bytes, decision: Decision) -> None:
        """Remember what was decided about the last of the messages that a key stands for."""
        with self._lock:
            now = self._clock()
            self._decisions[key] = decision, now
            self._decisions.move_to_end(key)
            while len(self._decisions) > self.MAX_DECISIONS or self._first_decided() + self._max_age < now:
                self._decisions.popitem(last=False)

    def decided(self, key: bytes) -> Decision | None:
        """Return what was decided about the last of the messages that a key stands for."""
        with self._lock:
            found = self._decisions.get(key)
            if found is None or found[1] + self._max_age < self._clock():
                return None
            self._decisions[key] = found[0], self._clock()
            self._decisions.move_to_end(key)
            return found[0]

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._conversations.clear()
            self._decisions.clear()
            self._size = 0

    def _first_decided(self) -> float:
        return next(iter(self._decisions.values()))[1]


def conversation_keys(namespace: Namespace, messages: Iterable[Mapping[str, Any]]) -> list[bytes]:
    """Return digests of the first message, the first two and so on, which are equal in every process.

    They alone tell conversations apart. All messages are read: 1 to 2 ms for a million characters.

    Args:
        namespace: Whose cache they meet.
        messages: As JSON has them. One that holds what JSON has not is taken for new each time.
    """
    digest, keys = blake2b(marshal.dumps(namespace.key, _MARSHAL_VERSION), digest_size=16), []
    for message in messages:
        digest.update(_written(message))
        keys.append(digest.digest())
    return keys


def _written(message: Mapping[str, Any]) -> bytes:
    """Return bytes that are equal only for messages with equal texts."""
    try:
        return marshal.dumps(cast(Any, message), _MARSHAL_VERSION)
    except ValueError:  # A subclass of str or another mapping than dict, perhaps.
        with suppress(TypeError, ValueError, RecursionError):
            return marshal.dumps(json.dumps(message, default=_as_dict), _MARSHAL_VERSION)
    return urandom(16)


def _as_dict(value: object) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError
