"""A copy of an index as plain rows: quickly taken under a lock, and an equal index made from it."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from contextpilot_integrations.index.node import Node
from contextpilot_integrations.index.recent import RecentContexts
from contextpilot_integrations.index.tree import ContextIndex

__all__ = ["NodeRow", "Snapshot", "restored_index", "restored_recent", "take_snapshot"]


class NodeRow(NamedTuple):
    """A node; ``parent`` is the row of its parent, -1 for the root, the rest as `Node` has it."""

    parent: int
    position: int
    next_position: int
    accesses: int
    anonymous: bool
    distance: float
    blocks: Sequence[Hashable]
    weights: Sequence[int]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What an index and the contexts beside it hold.

    Attributes:
        owner: Whose index it is, in a form that can be saved; None for an index of its own.
        nodes: The root, then the others, most recently used first, so a parent stands before its
            children and the order of the rows is the recency order too.
        requests: Request ids and the rows of their nodes, oldest first.
        contexts: The recent contexts, oldest first.
    """

    owner: Hashable
    nodes: Sequence[NodeRow]
    requests: Sequence[tuple[Hashable, int]]
    contexts: Sequence[Collection[Hashable]]


def take_snapshot(
    index: ContextIndex, recent: RecentContexts | None = None, owner: Hashable = None
) -> Snapshot:
    """Copy what an index holds. The caller holds its lock; nothing of the copy changes later."""
    rows = {index.root: 0}
    for node in reversed(index._recency):
        rows[node] = len(rows)
    nodes = [
        NodeRow(
            -1 if node.parent is None else rows[node.parent],
            node.position,
            node.next_position,
            node.accesses,
            node.anonymous,
            node.distance,
            node.blocks,
            node.weights,
        )
        for node in rows
    ]
    requests = [(request_id, rows[node]) for request_id, node in index._request_nodes.items()]
    return Snapshot(owner, nodes, requests, [] if recent is None else list(recent))


def restored_index(
    snapshot: Snapshot,
    *,
    capacity: int | None = None,
    max_requests: int = 100_000,
    max_visits: int = 2_000,
) -> ContextIndex:
    """Make an index that behaves as the copied one, but for limits of its own.

    What lies beyond the limits is dropped as the index always drops it.

    Raises:
        ValueError: If a limit is below 1, or the rows are no consistent index; the message says why.
    """
    index = ContextIndex(capacity=capacity, max_requests=max_requests, max_visits=max_visits)
    nodes = _linked_nodes(snapshot.nodes)
    index.root = nodes[0]
    for node in reversed(nodes[1:]):
        index._recency[node] = None
    index.total_weight = sum(sum(node.weights) for node in nodes)
    for request_id, row in snapshot.requests:
        _check(0 <= row < len(nodes), "a request ends at a node that is not there")
        _check(request_id is not None and request_id not in index._request_nodes, "a request id occurs twice")
        index._request_nodes[request_id] = nodes[row]
        nodes[row].add_request(request_id)
    while len(index._request_nodes) > max_requests:
        index._forget_request(next(iter(index._request_nodes)))
    index._enforce_capacity()
    try:
        index.check_integrity()
    except AssertionError as error:
        raise ValueError(str(error)) from error
    return index


def restored_recent(snapshot: Snapshot) -> RecentContexts:
    """Make recent contexts that behave as the copied ones."""
    recent = RecentContexts()
    for context in snapshot.contexts:
        recent.add([*context])
    return recent


def _linked_nodes(rows: Sequence[NodeRow]) -> list[Node]:
    """Make the nodes, the root first.

    Checked is what the index takes for granted while it drops what is beyond its limits. That a parent
    stands before its children also rules out cycles.
    """
    _check(bool(rows) and rows[0].parent == -1 and not rows[0].blocks, "the first node is no root")
    nodes: list[Node] = []
    for number, row in enumerate(rows):
        if wrong := _wrong_with(row, number):
            raise ValueError(f"node {number} {wrong}")
        node = Node(
            nodes[row.parent] if number else None, row.position, tuple(row.blocks), tuple(row.weights)
        )
        node.next_position = row.next_position
        node.accesses = row.accesses
        node.anonymous = row.anonymous
        node.distance = row.distance
        nodes.append(node)
    for node in sorted(nodes[1:], key=_position):
        parent = node.parent
        assert parent is not None
        _check(node.position not in parent.children, "two siblings have the same position")
        _check(node.blocks[0] not in parent.by_first_block, "two siblings start with the same block")
        parent.children[node.position] = parent.by_first_block[node.blocks[0]] = node
    return nodes


def _wrong_with(row: NodeRow, number: int) -> str:
    if number and not 0 <= row.parent < number:
        return "does not stand behind its parent"
    if number and not row.blocks:
        return "adds no block"
    if len(row.blocks) != len(row.weights) or min(row.weights, default=1) < 1:
        return "lacks a weight of at least 1 for each block"
    if min(row.position, row.accesses) < 0:
        return "has a negative count"
    if not 0 <= row.distance < math.inf:
        return f"has the distance {row.distance}"
    return ""


def _position(node: Node) -> int:
    return node.position


def _check(condition: bool, wrong: str) -> None:
    if not condition:
        raise ValueError(wrong)
