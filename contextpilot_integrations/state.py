"""What a pilot remembers of one namespace."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from threading import Lock

from contextpilot_integrations.index.recent import RecentContexts
from contextpilot_integrations.index.slots import SlotCache
from contextpilot_integrations.index.snapshot import Snapshot, restored_index, restored_recent
from contextpilot_integrations.index.tree import ContextIndex, Insertion, Match
from contextpilot_integrations.request import Request

__all__ = ["State"]


class State:
    """What one namespace remembers, and the lock around it.

    Args:
        capacity: How many tokens the index keeps.
        saved: What it starts with.
        slots: The cache behind it, where it holds only a few sequences.
    """

    def __init__(
        self, capacity: int | None, saved: Snapshot | None = None, slots: SlotCache | None = None
    ) -> None:
        self.lock = Lock()
        self._slots = slots
        if saved is None:
            self.index = ContextIndex(capacity=capacity)
            self.recent = RecentContexts()
        else:
            self.index = restored_index(saved, capacity=capacity)
            self.recent = restored_recent(saved)
            if slots is not None:
                # Which slot held what is not saved: those used last are taken to be there still.
                for sequence, weights in self.index.leaves():
                    self._forget(slots.serve(sequence, weights).lost)

    def search(self, context: Sequence[Hashable]) -> Match:
        """Search the index as `ContextIndex.search` does, under the lock."""
        with self.lock:
            return self.index.search(context)

    def most_similar(self, blocks: Sequence[Hashable], weights: Sequence[int]) -> frozenset[Hashable]:
        """Find the most similar recent context as `RecentContexts.most_similar` does, under the lock."""
        with self.lock:
            return self.recent.most_similar(blocks, weights)

    def record(self, request: Request) -> Insertion:
        """Take a request as sent. The caller holds the lock."""
        weights = request.order_weights
        insertion = self.index.insert(request.order, weights, request.request_id)
        self.recent.add(request.context)
        if self._slots is not None:
            served = self._slots.serve(request.order, weights, request.request_id)
            self._forget(served.lost)
            if served.cached_blocks < insertion.cached_blocks:
                cached_weight = sum(weights[: served.cached_blocks])
                insertion = Insertion(insertion.node, served.cached_blocks, cached_weight)
        return insertion

    def measured(self, request_id: Hashable, tokens: int, cached_tokens: int | None) -> None:
        """Take note of a request's tokens as `SlotCache.measured` does, under the lock."""
        if self._slots is not None:
            with self.lock:
                self._slots.measured(request_id, tokens, cached_tokens)

    def _forget(self, lost: Iterable[tuple[Sequence[Hashable], int]]) -> None:
        for sequence, depth in lost:
            self.index.cut(sequence, depth)
