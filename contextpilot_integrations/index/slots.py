"""A prefix cache of a few sequences, as llama.cpp has it: what a request finds, and what it costs others.

A slot keeps the prompt that it saw last, and of the next one it meets only the common prefix is reused. A
prompt that would be lost moves to the host's memory, and moves back when one comes that resembles it: a tree
of all that was ever sent would promise far too much. The rules are those of llama.cpp's server
(tools/server: ``get_available_slot``, ``server_prompt_cache``).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

__all__ = ["Served", "SlotCache", "Slots"]

# Of a slot's prompt so large a share must be reused, or it is saved before it is overwritten.
_KEPT_IN_A_SLOT = 0.5
# A chat template writes fewer tokens than these in front of the first block.
_LONGEST_TEMPLATE = 64
# Of a saved prompt so large a share must be of use, or it is left where it is.
_KEPT_OF_A_SAVED_ONE = 0.25


@dataclass(frozen=True, slots=True)
class Slots:
    """How large a llama.cpp server's cache is, by its own options.

    Args:
        n_parallel: How many slots it has (``--parallel``).
        host_tokens: How many tokens of prompts fit into the host's memory (``--cache-ram``, which is in MiB:
            a token takes 2 x layers x KV heads x head size x bytes of an element, 22.5 KiB for SmolLM2-135M
            in 16 bits).
        kv_unified: Whether the slots share one buffer (``--kv-unified``, the command's default where
            ``--parallel`` is not given). With memory of the host, idle slots then move there.
        slot_prompt_similarity: The share of a prompt that a slot must hold to be chosen for it.

    Raises:
        ValueError: If a number is out of range.
    """

    n_parallel: int = 1
    host_tokens: int = 0
    kv_unified: bool = False
    slot_prompt_similarity: float = 0.1

    def __post_init__(self) -> None:
        if self.n_parallel < 1:
            raise ValueError(f"n_parallel must be at least 1, got {self.n_parallel}")
        if self.host_tokens < 0:
            raise ValueError(f"host_tokens must be at least 0, got {self.host_tokens}")
        if not 0 <= self.slot_prompt_similarity <= 1:
            raise ValueError(f"slot_prompt_similarity must be from 0 to 1, got {self.slot_prompt_similarity}")


@dataclass(frozen=True, slots=True)
class Served:
    """What a request met.

    Attributes:
        cached_blocks: How many of its leading blocks were not computed.
        lost: Sequences that are no longer held as a whole, each with the number of its leading blocks that
            others still hold.
    """

    cached_blocks: int
    lost: tuple[tuple[tuple[Hashable, ...], int], ...] = ()


@dataclass(slots=True, eq=False)
class _Prompt:
    blocks: tuple[Hashable, ...]
    lengths: tuple[int, ...]
    tokens: int
    request_id: Hashable | None = None
    cached_blocks: int = 0


class SlotCache:
    """The slots and the host's memory behind them, for requests that come one after another.

    Takes no lock. Questions and answers are not known here: until a request is `measured`, its length is that
    of what stands before its question.

    Args:
        slots: How large it is.
        preamble: Tokens before the first block, which all prompts share.
        marker: Tokens that each block has in the prompt beside its text.
    """

    def __init__(self, slots: Slots, preamble: int = 0, marker: int = 0) -> None:
        self._settings = slots
        self._preamble = preamble
        self._marker = marker
        self._template: int | None = None
        self._slots: list[_Prompt | None] = [None] * slots.n_parallel
        # The number of the request that each slot served last.
        self._used = [0] * slots.n_parallel
        self._host: list[_Prompt] = []

    def serve(
        self, blocks: Sequence[Hashable], weights: Sequence[int], request_id: Hashable | None = None
    ) -> Served:
        """Serve a request.

        Args:
            blocks: Its block ids in the order sent.
            weights: The tokens of each.
            request_id: What `measured` will name.
        """
        lengths = tuple([weight + self._marker for weight in weights])
        new = _Prompt(tuple(blocks), lengths, max(1, self._preamble + sum(lengths)), request_id)
        before = self._held()
        slot, similar = self._choose(new)
        held = self._slots[slot]
        if self._settings.host_tokens and not (similar and self._kept(held, new) >= _KEPT_IN_A_SLOT):
            held = self._exchange(held, new)
        new.cached_blocks = _shared_blocks(held, new)
        self._slots[slot] = new
        self._used[slot] = max(self._used) + 1
        if self._settings.host_tokens and self._settings.kv_unified:
            self._host += [idle for idle in self._slots if idle is not None and idle is not new]
            self._slots = [new if place == slot else None for place in range(len(self._slots))]
            self._limit_host()
        after = self._held()
        lost = [prompt for prompt in before if prompt not in after]
        kept = [max(_shared_blocks(prompt, other) for other in after) for prompt in lost]
        return Served(
            new.cached_blocks,
            tuple(
                (prompt.blocks, depth)
                for prompt, depth in zip(lost, kept, strict=True)
                if depth < len(prompt.blocks)
            ),
        )

    def measured(self, request_id: Hashable, tokens: int, cached_tokens: int | None = None) -> None:
        """Take note of the tokens of a request, prompt and answer together; nothing if it is not held.

        What was cached beyond what is known to be shared is the chat template's: the least ever seen.
        """
        for prompt in self._held():
            if prompt.request_id == request_id:
                prompt.tokens = max(1, tokens)
                known = self._preamble + sum(prompt.lengths[: prompt.cached_blocks])
                if cached_tokens is not None and 0 <= cached_tokens - known < _LONGEST_TEMPLATE:
                    beyond = cached_tokens - known
                    self._template = beyond if self._template is None else min(self._template, beyond)

    def _choose(self, new: _Prompt) -> tuple[int, bool]:
        """Return the slot most like the prompt, else the least recently used; and whether it is like it."""
        shares = [self._shared_tokens(held, new) / new.tokens for held in self._slots]
        best = max(range(len(shares)), key=shares.__getitem__)
        if shares[best] > self._settings.slot_prompt_similarity:
            return best, True
        return min(range(len(shares)), key=self._used.__getitem__), False

    def _exchange(self, held: _Prompt | None, new: _Prompt) -> _Prompt | None:
        """Move what a slot holds to the host, and back from there what suits the prompt better."""
        best = held
        for saved in self._host:
            if self._kept(saved, new) < _KEPT_OF_A_SAVED_ONE:
                continue
            if self._kept(saved, new) > self._kept(best, new) and (
                self._shared_tokens(saved, new) > self._shared_tokens(best, new)
            ):
                best = saved
        if held is not None:
            self._host.append(held)
        if best is not None and best is not held:
            self._host.remove(best)
        self._limit_host()
        return best

    def _limit_host(self) -> None:
        tokens = sum(saved.tokens for saved in self._host)
        while len(self._host) > 1 and tokens > self._settings.host_tokens:
            tokens -= self._host.pop(0).tokens

    def _held(self) -> list[_Prompt]:
        return [*self._host, *(held for held in self._slots if held is not None)]

    def _kept(self, held: _Prompt | None, new: _Prompt) -> float:
        return 0.0 if held is None else self._shared_tokens(held, new) / held.tokens

    def _shared_tokens(self, held: _Prompt | None, new: _Prompt) -> int:
        if held is None:
            return 0
        return self._preamble + (self._template or 0) + sum(new.lengths[: _shared_blocks(held, new)])


def _shared_blocks(held: _Prompt | None, new: _Prompt) -> int:
    count = 0
    for one, other in zip(held.blocks if held else (), new.blocks, strict=False):
        if one != other:
            break
        count += 1
    return count
