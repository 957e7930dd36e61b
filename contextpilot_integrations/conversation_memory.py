"""What a pilot remembers of conversations, so that what was sent once is sent again as it was."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, cast

from contextpilot_integrations.deduplication import Transcript
from contextpilot_integrations.edits import Edit
from contextpilot_integrations.message_blocks import MessageBlocks, MessageTexts
from contextpilot_integrations.recognition import Texts

__all__ = ["Conversation", "ConversationMemory", "Decision", "frozen"]


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
        messages: The messages as given, hashable.
        edits: What was changed.
        changed: Per changed message the texts that go out, by content part.
        transcript: The lines that go out.
        results: What each tool call's result is called, by the call's id.
        named: How often each name was given to a result.
        shown: The texts of the blocks that were shown.
        answered: Whether there was an answer.
        has_blocks: Whether there was a message with blocks.
    """

    messages: list[Hashable] = field(default_factory=list)
    edits: list[Edit] = field(default_factory=list)
    changed: dict[int, MessageTexts] = field(default_factory=dict)
    transcript: Transcript = field(default_factory=Transcript)
    results: dict[str, str] = field(default_factory=dict)
    named: Counter[str] = field(default_factory=Counter)
    shown: Texts = field(default_factory=Texts)
    answered: bool = False
    has_blocks: bool = False


class ConversationMemory:
    """Remembers conversations, bounded in size and age. Shared by threads.

    What it forgets costs time and cached tokens, never text.

    Args:
        characters: How many characters of text it holds, about; the least recently used conversations go
            first.
        max_age: Seconds without a request after which a conversation is forgotten.
        clock: Tells the time in seconds.
    """

    MAX_DECISIONS = 65_536

    def __init__(
        self, characters: int, *, max_age: float = 3600.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit = characters
        self._max_age = max_age
        self._clock = clock
        self._lock = Lock()
        self._conversations: OrderedDict[int, tuple[Conversation, float]] = OrderedDict()
        self._decisions: OrderedDict[int, tuple[Decision, float]] = OrderedDict()
        self._characters = 0

    def take(self, keys: Sequence[int], messages: Sequence[Hashable]) -> Conversation | None:
        """Take out the longest conversation that these messages continue.

        Whoever takes it has it alone, until it is put back.

        Args:
            keys: What stands for the first message, the first two and so on.
            messages: The messages, hashable.
        """
        for count in range(len(keys), 0, -1):
            with self._lock:
                found = self._conversations.get(keys[count - 1])
                if found is None or len(found[0].messages) != count:
                    continue
                del self._conversations[keys[count - 1]]
                self._characters -= found[0].transcript.characters
            conversation, used = found
            if used + self._max_age >= self._clock() and conversation.messages == list(messages[:count]):
                return conversation
        return None

    def put(self, key: int, conversation: Conversation) -> None:
        """Remember a conversation under what stands for all its messages."""
        with self._lock:
            now = self._clock()
            replaced = self._conversations.pop(key, None)
            if replaced is not None:
                self._characters -= replaced[0].transcript.characters
            self._conversations[key] = conversation, now
            self._characters += conversation.transcript.characters
            while self._conversations:
                oldest, used = next(iter(self._conversations.values()))
                if self._characters <= self._limit and used + self._max_age >= now:
                    break
                self._conversations.popitem(last=False)
                self._characters -= oldest.transcript.characters

    def decide(self, key: int, decision: Decision) -> None:
        """Remember what was decided about the last of the messages that a key stands for."""
        with self._lock:
            now = self._clock()
            self._decisions[key] = decision, now
            self._decisions.move_to_end(key)
            while len(self._decisions) > self.MAX_DECISIONS or self._first_decided() + self._max_age < now:
                self._decisions.popitem(last=False)

    def decided(self, key: int) -> Decision | None:
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
            self._characters = 0

    def _first_decided(self) -> float:
        return next(iter(self._decisions.values()))[1]


def frozen(value: object) -> Hashable:
    """Return what stands for a JSON-like value among keys: equal for equal values."""
    kind = type(value)
    if kind is str:
        return cast(str, value)
    if kind is dict or isinstance(value, Mapping):
        return tuple([(name, frozen(item)) for name, item in cast(Mapping[Any, Any], value).items()])
    if kind is list or isinstance(value, list | tuple):
        return tuple([frozen(item) for item in cast(list[Any], value)])
    return value if isinstance(value, Hashable) else repr(value)
