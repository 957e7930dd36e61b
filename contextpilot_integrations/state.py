"""What a pilot remembers of one namespace."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from threading import Lock

from contextpilot_integrations.index.recent import RecentContexts
from contextpilot_integrations.index.snapshot import Snapshot, restored_index, restored_recent
from contextpilot_integrations.index.tree import ContextIndex, Insertion, Match
from contextpilot_integrations.request import Request

__all__ = ["State"]


class State:
    """What one namespace remembers, and the lock around it."""

    def __init__(self, capacity: int | None, saved: Snapshot | None = None) -> None:
        self.lock = Lock()
        if saved is None:
            self.index = ContextIndex(capacity=capacity)
            self.recent = RecentContexts()
        else:
            self.index = restored_index(saved, capacity=capacity)
            self.recent = restored_recent(saved)

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
        insertion = self.index.insert(request.order, request.order_weights, request.request_id)
        self.recent.add(request.context)
        return insertion
