"""The context index: a radix tree over block ids that pictures an engine's prefix cache.

A node's sequence is its parent's followed by the blocks that it adds, so a request whose order starts
with a node's sequence finds that much of its prompt cached. The class takes no lock: whoever shares an
index between threads holds one around each call.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter

from contextpilot_integrations.index.distance import context_distance
from contextpilot_integrations.index.node import NO_REQUESTS, Node

__all__ = ["ContextIndex", "Insertion", "Match"]

_position = attrgetter("position")


@dataclass(frozen=True, slots=True)
class Match:
    """The cached sequence that is worth most to a request.

    Attributes:
        blocks: Its block ids, each of which lies in the request.
        weight: Its tokens.
        node: The last node that it enters; where an edge was followed only partly, the sequence ends
            within the blocks that this node adds.
    """

    blocks: tuple[Hashable, ...]
    weight: int
    node: Node


@dataclass(frozen=True, slots=True)
class Insertion:
    """What an insertion found and made.

    Attributes:
        node: Where the request ends.
        cached_blocks: How many of its leading blocks were there before.
        cached_weight: Their tokens.
    """

    node: Node
    cached_blocks: int
    cached_weight: int


class ContextIndex:
    """Search, insertion, traversal and eviction over cached prefixes (Algorithm 1, made exact).

    Args:
        capacity: How many tokens (the sum of all weights) are kept. What lies beyond is dropped as an
            engine drops it: the least recently used leaf first, from its end. None: no limit.
        max_requests: How many request ids are remembered for `evict`, the oldest forgotten first.
        max_visits: From how many nodes one search may take blocks, the root counted. Only very long contexts
            over a small corpus reach it; the best sequence found until then is the answer.

    Raises:
        ValueError: If a limit is below 1.
    """

    def __init__(
        self, *, capacity: int | None = None, max_requests: int = 100_000, max_visits: int = 2_000
    ) -> None:
        for name, limit in (
            ("capacity", capacity),
            ("max_requests", max_requests),
            ("max_visits", max_visits),
        ):
            if limit is not None and limit < 1:
                raise ValueError(f"{name} must be at least 1, got {limit}")
        self.capacity = capacity
        self.max_requests = max_requests
        self.max_visits = max_visits
        self.clear()

    def clear(self) -> None:
        """Forget everything, as an engine does when it restarts."""
        self.root = Node(None, 0, (), ())
        self.total_weight = 0
        self._request_nodes: dict[Hashable, Node] = {}
        # All nodes but the root, least recently used first. A request touches its nodes from the deepest
        # up, so a parent always stands behind its children and the first of all is a leaf.
        self._recency: OrderedDict[Node, None] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of nodes without the root."""
        return len(self._recency)

    def __str__(self) -> str:
        """Draw the tree, its first 100 nodes (see `rendering.render`)."""
        # Drawing is for people at a prompt, so the module is loaded only there.
        from contextpilot_integrations.index.rendering import render

        return render(self)

    def __contains__(self, node: Node) -> bool:
        """Tell whether a node has not been evicted."""
        return node is self.root or node in self._recency

    def __iter__(self) -> Iterator[Node]:
        """Iterate over the nodes without the root, depth first, children by position."""
        stack = [*reversed(self.root.children.values())]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children.values()))

    def leaves(self) -> Iterator[tuple[list[Hashable], list[int]]]:
        """Iterate over the sequences that no other extends, with their weights, least recently used first."""
        for node in [*self._recency]:
            if not node.children:
                path = [node]
                while (parent := path[-1].parent) is not None:
                    path.append(parent)
                blocks = [block for part in reversed(path) for block in part.blocks]
                yield blocks, [weight for part in reversed(path) for weight in part.weights]

    def search(self, context: Sequence[Hashable], max_displacement: int | None = None) -> Match:
        """Find the cached sequence worth most among all whose blocks lie in the request.

        A node is entered, and an edge of several blocks followed partly, only while its next block is in
        the request. Of equal worth, the lowest child position wins.

        Args:
            context: The request's block ids, best first, each once.
            max_displacement: How far any block may end up from its place in ``context``, those behind the
                cached sequence included, which keep their order. None: anywhere.
        """
        best, best_weight, best_depth = self.root, 0, 0
        if not self._recency:
            return Match((), 0, best)
        ranks = {block: rank for rank, block in enumerate(context)}
        # Per entry: a node, the weight and depth reached above it, and, where displacement is limited, the
        # ranks placed so far as bits.
        stack = [(self.root, 0, 0, 0)]
        visits = self.max_visits - 1  # The root takes the first.
        while stack and visits:
            node, weight, depth, placed = stack.pop()
            above = depth
            for block in node.blocks:
                if block not in ranks:
                    break
                if max_displacement is not None:
                    rank = ranks[block]
                    placed |= 1 << rank
                    # The best-ranked block not placed yet comes after this one at the earliest.
                    waiting = (~placed & (placed + 1)).bit_length() - 1
                    if max(abs(depth - rank), depth + 1 - waiting) > max_displacement:
                        break
                weight += node.weights[depth - above]
                depth += 1
            else:
                # The child at the lowest position is pushed last, so it is searched first.
                first = node.by_first_block
                if len(first) <= len(ranks):
                    for block, child in reversed(first.items()):
                        if block in ranks:
                            stack.append((child, weight, depth, placed))
                else:
                    entered = [first[block] for block in ranks if block in first]
                    for child in sorted(entered, key=_position, reverse=True):
                        stack.append((child, weight, depth, placed))
            if depth > above:
                visits -= 1
            if weight > best_weight:
                best, best_weight, best_depth = node, weight, depth
        return Match(tuple(islice(best.sequence, best_depth)), best_weight, best)

    def insert(
        self,
        sequence: Sequence[Hashable],
        weights: Sequence[int] | None = None,
        request_id: Hashable | None = None,
    ) -> Insertion:
        """Record that a request with this order was sent.

        Args:
            sequence: The block ids in the order sent, each once.
            weights: The tokens of each block, at least 1 (None: 1 each).
            request_id: What `evict` will name. An id that is inserted again moves to the new node.

        Raises:
            ValueError: If a block occurs twice, or the weights do not fit the sequence.
            TypeError: If the request id is not hashable.
        """
        hash(request_id)  # A request id that cannot be kept must fail before anything has changed.
        if len(set(sequence)) != len(sequence):
            raise ValueError("a block id occurs twice in the sequence; collapse duplicates first")
        if weights is None:
            weights = [1] * len(sequence)
        elif len(weights) != len(sequence) or (weights and min(weights) < 1):
            raise ValueError(f"weights must be {len(sequence)} integers of at least 1, one per block")
        node, depth, cached_weight = self.root, 0, 0
        while depth < len(sequence) and (child := node.by_first_block.get(sequence[depth])) is not None:
            shared = _shared_length(child.blocks, sequence, depth)
            depth += shared
            node = (
                child if shared == len(child.blocks) else self._split(child, shared, sequence[depth:], depth)
            )
            cached_weight += sum(node.weights)
        cached_blocks = depth
        if depth < len(sequence):
            node = node.adopt(tuple(sequence[depth:]), tuple(weights[depth:]))
            self.total_weight += sum(node.weights)
        self._end_request(node, request_id)
        self._touch(node)
        self._enforce_capacity()
        return Insertion(node, cached_blocks, cached_weight)

    def traverse(self, path: Sequence[int]) -> Node:
        """Follow a search path from the root, in O(height).

        Raises:
            LookupError: If the node at the path is gone.
        """
        node = self.root
        for position in path:
            if position not in node.children:
                raise LookupError(f"the node at search path {tuple(path)} is gone or never was")
            node = node.children[position]
        return node

    def evict(self, request_id: Hashable) -> bool:
        """Follow the engine, which dropped a request: its node goes with its last request.

        A node that others extend stays as their prefix; parents left empty are pruned, O(height).

        Returns:
            Whether the request was known.
        """
        node = self._request_nodes.pop(request_id, None)
        if node is None:
            return False
        node.drop_request(request_id)
        while node.parent is not None and not (node.children or node.requests or node.anonymous):
            parent = node.parent
            self._remove_leaf(node)
            node = parent
        return True

    def cut(self, sequence: Sequence[Hashable], depth: int) -> int:
        """Follow the engine, which dropped part of a prompt: forget a sequence from one of its blocks on.

        The block at ``depth`` goes, and so does all that extends it, with the ids of the requests that end
        there; what stands before it stays. A sequence that is not stored that far is left as it is.

        Args:
            sequence: The block ids in the order sent; those behind ``depth`` do not matter.
            depth: The place of the first block to forget, counted from 0.

        Returns:
            How many tokens were forgotten.

        Raises:
            ValueError: If ``depth`` is negative.
        """
        if depth < 0:
            raise ValueError(f"depth must be at least 0, got {depth}")
        if depth >= len(sequence):
            return 0
        node, end = self.root, 0
        while end <= depth:
            child = node.by_first_block.get(sequence[end])
            if child is None:
                return 0
            shared = _shared_length(child.blocks, sequence, end)
            if shared < len(child.blocks) and end + shared <= depth:
                return 0
            node, end = child, end + len(child.blocks)
        before, kept = self.total_weight, len(node.blocks) - (end - depth)
        beneath = [*node.children.values()]
        for parent in beneath:  # Grows while it is read, so children stand behind their parents.
            beneath.extend(parent.children.values())
        for leaf in reversed(beneath):
            self._remove_leaf(leaf)
        if kept:
            for request_id in [*node.requests]:
                self._forget_request(request_id)
            self.total_weight -= sum(node.weights[kept:])
            node.blocks, node.weights = node.blocks[:kept], node.weights[:kept]
        else:
            self._remove_leaf(node)
        return before - self.total_weight

    def check_integrity(self) -> None:
        """Prove the invariants of the whole index; for tests and debugging, O(size).

        Raises:
            AssertionError: If one does not hold; the message names it.
        """
        # Loaded where it is used, as drawing is.
        from contextpilot_integrations.index.integrity import check_integrity

        check_integrity(self)

    def _split(self, node: Node, length: int, rest: Sequence[Hashable], depth: int) -> Node:
        """Put a node above ``node`` that takes over its place and its first blocks.

        Args:
            node: What a new context parts from.
            length: How many of the node's blocks the new context has too.
            rest: The blocks of the new context that stand behind these.
            depth: How many blocks both have up to there.
        """
        parent = node.parent
        assert parent is not None
        upper = Node(parent, node.position, node.blocks[:length], node.weights[:length])
        upper.accesses = node.accesses
        upper.distance = context_distance(node.blocks[length:], rest, prefix=depth)
        parent.children[node.position] = parent.by_first_block[node.blocks[0]] = upper
        node.parent, node.position = upper, 0
        node.blocks, node.weights = node.blocks[length:], node.weights[length:]
        upper.children[0] = upper.by_first_block[node.blocks[0]] = node
        upper.next_position = 1
        return upper

    def _end_request(self, node: Node, request_id: Hashable | None) -> None:
        if request_id is None:
            node.anonymous = True
            return
        if self._request_nodes.get(request_id) is not node:
            self._forget_request(request_id)
        node.add_request(request_id)
        self._request_nodes[request_id] = node
        if len(self._request_nodes) > self.max_requests:
            self._forget_request(next(iter(self._request_nodes)))

    def _forget_request(self, request_id: Hashable) -> None:
        """Drop an id but not what it cached: without its id, only the capacity ends a belief."""
        node = self._request_nodes.pop(request_id, None)
        if node is not None:
            node.drop_request(request_id)
            node.anonymous = True

    def _touch(self, node: Node) -> None:
        while node.parent is not None:
            node.accesses += 1
            self._recency[node] = None
            self._recency.move_to_end(node)
            node = node.parent
        node.accesses += 1

    def _enforce_capacity(self) -> None:
        if self.capacity is None:
            return
        while self.total_weight > self.capacity:
            leaf = next(iter(self._recency))
            excess, kept = self.total_weight - self.capacity, len(leaf.blocks)
            while kept and excess > 0:
                kept -= 1
                excess -= leaf.weights[kept]
            if kept:
                self.total_weight -= sum(leaf.weights[kept:])
                leaf.blocks, leaf.weights = leaf.blocks[:kept], leaf.weights[:kept]
            else:
                self._remove_leaf(leaf)

    def _remove_leaf(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        del parent.children[node.position], parent.by_first_block[node.blocks[0]], self._recency[node]
        self.total_weight -= sum(node.weights)
        for request_id in node.requests:
            del self._request_nodes[request_id]
        node.requests = NO_REQUESTS


def _shared_length(blocks: Sequence[Hashable], sequence: Sequence[Hashable], start: int) -> int:
    length, most = 0, min(len(blocks), len(sequence) - start)
    while length < most and blocks[length] == sequence[start + length]:
        length += 1
    return length
