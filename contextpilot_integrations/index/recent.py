"""The contexts seen last, to guess what later requests will share."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Iterator, Sequence

__all__ = ["RecentContexts"]

_CONTEXTS = 1024
_LOOKED_AT = 16


class RecentContexts:
    """The last 1,024 contexts, found by the blocks that they hold. Takes no lock."""

    def __init__(self) -> None:
        self._oldest = 0
        self._contexts: deque[frozenset[Hashable]] = deque()
        self._holders: defaultdict[Hashable, deque[int]] = defaultdict(lambda: deque(maxlen=_LOOKED_AT))

    def __iter__(self) -> Iterator[frozenset[Hashable]]:
        """Iterate over the contexts, oldest first."""
        return iter(self._contexts)

    def add(self, context: Sequence[Hashable]) -> None:
        """Remember a context's block ids; the oldest context is forgotten where there are too many."""
        number = self._oldest + len(self._contexts)
        self._contexts.append(frozenset(context))
        for block in self._contexts[-1]:
            self._holders[block].append(number)
        if len(self._contexts) > _CONTEXTS:
            for block in self._contexts.popleft():
                holders = self._holders[block]
                if holders[0] == self._oldest:
                    holders.popleft()
                if not holders:
                    del self._holders[block]
            self._oldest += 1

    def most_similar(self, blocks: Sequence[Hashable], weights: Sequence[int]) -> frozenset[Hashable]:
        """Return the context that shares most tokens with these blocks; of equal ones, the latest.

        Only the last 16 holders of each block are looked at, which bounds the work. Empty where no
        context shares a block.
        """
        if not self._contexts:
            return frozenset()
        shared: dict[int, int] = {}
        for block, weight in zip(blocks, weights, strict=True):
            for number in self._holders.get(block, ()):
                shared[number] = shared.get(number, 0) + weight
        if not shared:
            return frozenset()
        most = max(shared.values())
        number = max([number for number, weight in shared.items() if weight == most])
        return self._contexts[number - self._oldest]
