"""Proving that a context index is consistent."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import chain

from contextpilot_integrations.index.node import Node
from contextpilot_integrations.index.tree import ContextIndex

__all__ = ["check_integrity"]


def check_integrity(index: ContextIndex) -> None:
    """Prove the invariants of the whole index, O(size).

    Raises:
        AssertionError: If one does not hold; the message names it.
    """
    seen: dict[Node, int] = {}
    order = {node: age for age, node in enumerate(index._recency)}
    # The nodes above the one that is looked at, and the blocks of all of them.
    above: list[Node] = []
    blocks_above: set[Hashable] = set()
    for node in chain([index.root], index):
        seen[node] = len(seen)
        _require(len(node.blocks) == len(node.weights), "a weight for each block")
        _require(len(node.children) == len(node.by_first_block), "children differ in their first block")
        _require([*node.children] == sorted(node.children), "children stand in the order of positions")
        _require([*node.by_first_block.values()] == [*node.children.values()], "also by their first blocks")
        _require(all(p < node.next_position for p in node.children), "positions are never given twice")
        for position, child in node.children.items():
            _require(child.parent is node and child.position == position, "children know their place")
            _require(node.by_first_block.get(child.blocks[0]) is child, "found by the first added block")
            _require(node is index.root or order[node] > order[child], "no child more recent than its parent")
        _require(all(index._request_nodes.get(r) is node for r in node.requests), "requests know their node")
        while above and above[-1] is not node.parent:
            blocks_above.difference_update(above.pop().blocks)
        length = len(blocks_above) + len(node.blocks)
        above.append(node)
        blocks_above.update(node.blocks)
        _require(len(blocks_above) == length, "a block occurs once in a sequence")
    _require(seen.keys() == {index.root, *order}, "the recency order holds all nodes")
    weight = sum(sum(node.weights) for node in seen)
    _require(weight == index.total_weight, "the total weight is the sum of all weights")
    _require(index.capacity is None or weight <= index.capacity, "the capacity holds")
    _require(
        all(r in n.requests and n in seen for r, n in index._request_nodes.items()), "nodes know requests"
    )
    _require(len(index._request_nodes) <= index.max_requests, "the number of requests is bounded")


def _require(condition: bool, invariant: str) -> None:
    if not condition:
        raise AssertionError(f"context index is inconsistent: not so that {invariant}")
