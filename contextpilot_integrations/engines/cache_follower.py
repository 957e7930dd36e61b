"""Following an engine's cache: where it was cut, what a pilot believes is cut too."""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_left
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from threading import Lock
from typing import TypeAlias

from contextpilot_integrations.block import ContextBlock
from contextpilot_integrations.engines.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, decode
from contextpilot_integrations.engines.page_table import PageTable, Prompt
from contextpilot_integrations.namespace import Namespace
from contextpilot_integrations.pilot import ContextPilot
from contextpilot_integrations.plan import Plan

__all__ = ["CacheFollower", "Noticed", "estimate_block_ends"]

logger = logging.getLogger(__name__)

# Whose index, and a sequence of it: the belief ends before the last of these blocks.
_Cut: TypeAlias = tuple[Namespace, tuple[bytes, ...]]


class Noticed(StrEnum):
    """What can happen to an event stream, and what came of it."""

    CUT = "cut"
    """What a pilot believed was cut where a page was removed."""
    CLEARED = "cleared"
    """The engine dropped everything, and so did the pilot."""
    RESTARTED = "restarted"
    """The engine counts its messages from the beginning again."""
    LOST = "lost"
    """Messages were lost and could not be had again."""
    GARBAGE = "garbage"
    """A message could not be read."""
    TOO_LARGE = "too_large"
    """A message was larger than allowed, and was not read."""
    TOO_MANY_PAGES = "too_many_pages"
    """The engine holds more pages than are followed."""
    UNKNOWN_EVENT = "unknown_event"
    """An event of a type that is not known here was passed over."""


_WARNINGS = {
    Noticed.LOST: "messages were lost and the engine did not send them again; what was believed is forgotten",
    Noticed.GARBAGE: "a message could not be read; what was believed is forgotten",
    Noticed.TOO_LARGE: "a message is larger than max_payload_bytes; what was believed is forgotten",
    Noticed.TOO_MANY_PAGES: "the engine holds more than max_pages pages; what was believed is forgotten",
    Noticed.UNKNOWN_EVENT: "an event is of an unknown type and was passed over",
}


@dataclass(frozen=True, slots=True)
class _Sent:
    plan: Plan
    prompt: Prompt
    block_ends: tuple[int, ...]


class CacheFollower:
    """Cuts what a pilot believes to be cached where an engine removes pages. Shared freely by threads.

    One follower stands for one engine; all data-parallel ranks of it may feed the same one, and a page is
    gone when the last of them has dropped it. It is told what was sent (`track`) and what happened (`take`,
    which a `KvEventSubscriber` calls)::

        follower = CacheFollower(pilot)
        with KvEventSubscriber(follower, "tcp://localhost:5557", replay_endpoint="tcp://localhost:5558"):
            plan = pilot.prepare(blocks, namespace=namespace)
            ...  # Write the prompt, and tokenize it as the engine does.
            follower.track(plan, Prompt(token_ids), block_ends)

    Where a page is removed, the belief ends before the block in which the page ends: of what is believed,
    the engine holds all pages that it fills. Only the prompts tracked are followed; pages of others are
    passed over. A cache hit makes no event, so a
    page that was stored before the stream was listened to is not known.

    Args:
        pilot: Whose belief it is. When the engine clears its cache or restarts, and when events may have been
            missed, all of it is cleared (`ContextPilot.clear`).
        max_pages: How many pages are followed. An engine that holds more is followed from the start again.
        max_payload_bytes: The largest message that is read; a step of an engine makes some hundred kilobytes.

    Raises:
        ValueError: If a limit is below 1.
    """

    def __init__(
        self, pilot: ContextPilot, *, max_pages: int = 1_000_000, max_payload_bytes: int = 16 * 2**20
    ) -> None:
        if max_payload_bytes < 1:
            raise ValueError(f"max_payload_bytes must be at least 1, got {max_payload_bytes}")
        self._pilot = pilot
        self._max_pages = max_pages
        self._max_payload_bytes = max_payload_bytes
        self._table = PageTable(max_pages)
        self._lock = Lock()
        self._noticed: Counter[Noticed] = Counter()
        # By the prefix of a page, what is no longer cached without it. Least recently sent first.
        self._cuts: OrderedDict[bytes, set[_Cut]] = OrderedDict()
        self._number_of_cuts = 0
        # What was sent before the first event told how large a page is.
        self._waiting: deque[_Sent] = deque(maxlen=1_000)

    @property
    def pilot(self) -> ContextPilot:
        """Whose belief it is."""
        return self._pilot

    @property
    def noticed(self) -> dict[Noticed, int]:
        """How often each thing happened since the follower was made."""
        with self._lock:
            return {what: self._noticed[what] for what in Noticed}

    @property
    def strangers(self) -> int:
        """How many stored or removed pages could not be traced to the beginning of a prompt."""
        with self._lock:
            return self._table.strangers

    def cached_tokens(self, prompt: Prompt, *, rank: int = 0, medium: str | None = None) -> int:
        """Count the leading tokens of a prompt that the engine holds, as `PageTable.cached_tokens` does."""
        with self._lock:
            return self._table.cached_tokens(prompt, rank=rank, medium=medium)

    def track(self, plan: Plan, prompt: Prompt, block_ends: Sequence[int]) -> int:
        """Follow a prompt that is about to be sent, or was. Events about it may come before or after.

        Args:
            plan: The plan that it was written by.
            prompt: All its tokens.
            block_ends: For each of the plan's blocks the place in ``prompt.token_ids`` behind its last token,
                from the tokenizer's offsets or by `estimate_block_ends`.

        Returns:
            How many leading tokens of the prompt the engine will not compute if it meets the prompt now:
            those in pages that data-parallel rank 0 holds. The last token of a prompt is always computed,
            and with it its page.

        Raises:
            ValueError: If there is not one end a block, or they do not ascend.
            OverflowError: If a token id is below 0 or has more than 32 bits.
        """
        ends = tuple(block_ends)
        if len(ends) != len(plan.blocks):
            raise ValueError(f"block_ends has {len(ends)} ends for {len(plan.blocks)} blocks")
        if [0, *ends] != sorted([0, *ends]):
            raise ValueError("block_ends must ascend, from 0 at the least")
        compact = Prompt(array("I", prompt.token_ids), prompt.salt, prompt.lora)
        with self._lock:
            self._waiting.append(_Sent(plan, compact, ends))
            self._place_waiting()
            page_tokens = self._table.page_tokens or 1
            computed_from = (len(compact.token_ids) - 1) // page_tokens * page_tokens
            return min(self._table.cached_tokens(compact), max(0, computed_from))

    def take(self, payload: bytes) -> None:
        """Follow one message of the event stream, live or recorded. Raises nothing."""
        if len(payload) > self._max_payload_bytes:
            self.doubt(Noticed.TOO_LARGE)
            return
        try:
            batch = decode(payload)
        except ValueError:
            self.doubt(Noticed.GARBAGE)
            return
        with self._lock:
            if batch.unknown:
                self._notice(Noticed.UNKNOWN_EVENT, batch.unknown)
            for event in batch.events:
                self._follow(event, batch.rank)

    def restarted(self) -> None:
        """Start cold: the engine's cache is empty."""
        with self._lock:
            self._notice(Noticed.RESTARTED)
            self._table.clear()
            self._disbelieve()

    def doubt(self, why: Noticed) -> None:
        """Believe nothing any more, since events were missed; pages that are named again are known."""
        with self._lock:
            self._notice(why)
            self._table.doubt()
            self._disbelieve()

    def _follow(self, event: BlockStored | BlockRemoved | AllBlocksCleared, rank: int) -> None:
        if isinstance(event, BlockStored):
            try:
                self._table.store(event, rank)
            except OverflowError:
                self._notice(Noticed.TOO_MANY_PAGES)
                self._disbelieve()
            self._place_waiting()
        elif isinstance(event, BlockRemoved):
            for prefix in self._table.remove(event, rank):
                self._cut(self._cuts.pop(prefix, set()))
        else:
            self._notice(Noticed.CLEARED)
            self._table.clear(rank)
            self._disbelieve()

    def _place_waiting(self) -> None:
        """Note for each page of what was sent which belief ends with it: before the block it ends in.

        What the page has of the blocks before that one is of use only to prompts that go on with it, so to
        others it is no loss.
        """
        while self._waiting and self._table.page_tokens is not None:
            sent, end = self._waiting.popleft(), 0
            order = tuple([block.digest for block in sent.plan.blocks])
            at = [(sent.plan.namespace, order[: depth + 1]) for depth in range(len(order))]
            for prefix in sent.prompt.prefixes(self._table.page_tokens):
                end += self._table.page_tokens
                depth = bisect_left(sent.block_ends, end)
                if depth == len(order):
                    break
                cuts = self._cuts.setdefault(prefix, set())
                self._cuts.move_to_end(prefix)
                self._number_of_cuts -= len(cuts)
                cuts.add(at[depth])
                self._number_of_cuts += len(cuts)
        while self._number_of_cuts > self._max_pages:
            # What is not followed is not believed.
            self._cut(self._cuts.popitem(last=False)[1])

    def _cut(self, cuts: set[_Cut]) -> None:
        self._number_of_cuts -= len(cuts)
        for namespace, sequence in cuts:
            with self._pilot.index(namespace) as index:
                if index.cut(sequence, len(sequence) - 1):
                    self._notice(Noticed.CUT)

    def _disbelieve(self) -> None:
        self._cuts.clear()
        self._number_of_cuts = 0
        self._waiting.clear()
        self._pilot.clear()

    def _notice(self, what: Noticed, times: int = 1) -> None:
        if what in _WARNINGS and not self._noticed[what]:
            logger.warning("KV events: %s (logged once)", _WARNINGS[what])
        self._noticed[what] += times


def estimate_block_ends(
    plan: Plan, count: Callable[[ContextBlock], int], *, start: int, stop: int, behind: int = 0
) -> tuple[int, ...]:
    """Estimate where each block of a plan ends in the prompt from the lengths of its parts.

    The parts are stretched to the tokens that they have together, so that a rough count is as good as its
    proportions, and an exact one is off by the few tokens that span two parts.

    Args:
        plan: Whose `Plan.render` stands in the prompt.
        count: Counts the tokens of a block as it is rendered, with the blank line behind it.
        start: The place of the first block's first token.
        stop: The place behind the last token of all that stands in the same message.
        behind: The tokens of what stands there behind the blocks, counted alike.
    """
    ends = [*accumulate(map(count, plan.blocks))]
    counted = (ends[-1] if ends else 0) + behind
    return tuple([start + round((stop - start) * end / max(1, counted)) for end in ends])
