"""What a pilot remembers of each namespace."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from threading import Lock

from contextpilot_integrations.index.recent import RecentContexts
from contextpilot_integrations.index.slots import SlotCache
from contextpilot_integrations.index.snapshot import (
    Snapshot,
    restored_index,
    restored_recent,
    take_snapshot,
)
from contextpilot_integrations.index.storage import read_snapshots, refusing, write_snapshots
from contextpilot_integrations.index.tree import ContextIndex, Insertion, Match
from contextpilot_integrations.namespace import Namespace, PreambleWatch
from contextpilot_integrations.request import Request

__all__ = ["State", "States"]


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


class States:
    """The states of all namespaces; the least recently used goes where there are too many.

    Args:
        capacity: How many tokens each index keeps.
        max_namespaces: How many namespaces are kept.
        new_slots: Makes the cache behind the namespace of a preamble, where it holds only a few sequences.
    """

    def __init__(
        self, capacity: int | None, max_namespaces: int, new_slots: Callable[[str], SlotCache | None]
    ) -> None:
        self._capacity = capacity
        self._max_namespaces = max_namespaces
        self._new_slots = new_slots
        self._lock = Lock()
        self._states: OrderedDict[Namespace, State] = OrderedDict()
        self._preambles = PreambleWatch(max_namespaces)

    def get(self, namespace: Namespace) -> State | None:
        """Return a namespace's state; None where it has none."""
        with self._lock:
            return self._states.get(namespace)

    def used(self, namespace: Namespace) -> State:
        """Return the state of a namespace that a request meets; a new one where it has none."""
        with self._lock:
            state = self._states.get(namespace)
            self._preambles.notice(namespace, known=state is not None)
            if state is None:
                slots = self._new_slots(namespace.preamble)
                state = self._states[namespace] = State(self._capacity, slots=slots)
            self._states.move_to_end(namespace)
            if len(self._states) > self._max_namespaces:
                self._states.popitem(last=False)
            return state

    def clear(self) -> None:
        """Forget them all."""
        with self._lock:
            self._states.clear()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save them as `ContextPilot.save` does."""
        with self._lock:
            states = [*self._states.items()]
        snapshots = []
        for namespace, state in states:
            with state.lock:
                snapshots.append(take_snapshot(state.index, state.recent, namespace.key))
        write_snapshots(path, snapshots)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Load them as `ContextPilot.load` does."""
        with refusing(path):
            # The least recently used namespace stands first.
            snapshots = read_snapshots(path)[-self._max_namespaces :]
            states = OrderedDict(
                (Namespace.from_key(snapshot.owner), State(self._capacity, snapshot, self._new_slots("")))
                for snapshot in snapshots
            )
            if len(states) != len(snapshots):
                raise ValueError("a namespace occurs twice")
        with self._lock:
            self._states = states
