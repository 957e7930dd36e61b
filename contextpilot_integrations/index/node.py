"""A node of the context index."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import chain

__all__ = ["NO_REQUESTS", "Node"]

NO_REQUESTS: frozenset[Hashable] = frozenset()


class Node:
    """A cached prefix.

    Attributes:
        parent: The node whose sequence this one extends; None for the root.
        position: Its place among the parent's children, given once and never used again.
        blocks: The block ids that it adds to the parent's sequence.
        weights: The tokens of each of them.
        children: The nodes that extend it, by position.
        requests: The ids of the requests that end here.
        anonymous: Whether a request without an id ended here, which no eviction by id can name.
        accesses: How many requests passed through or ended here.
        distance: Equation 1 between the two contexts whose meeting made the node; 0 where it was
            made for one context alone.
    """

    __slots__ = (
        "accesses",
        "anonymous",
        "blocks",
        "by_first_block",
        "children",
        "distance",
        "next_position",
        "parent",
        "position",
        "requests",
        "weights",
    )

    def __init__(
        self, parent: Node | None, position: int, blocks: tuple[Hashable, ...], weights: tuple[int, ...]
    ) -> None:
        self.parent = parent
        self.position = position
        self.blocks = blocks
        self.weights = weights
        # Positions only grow, so each dict's own order is the order of positions.
        self.children: dict[int, Node] = {}
        self.by_first_block: dict[Hashable, Node] = {}
        self.next_position = 0
        # A set of its own only where a request with an id ends: an empty one would be half of the node.
        self.requests: set[Hashable] | frozenset[Hashable] = NO_REQUESTS
        self.anonymous = False
        self.accesses = 0
        self.distance = 0.0

    @property
    def lineage(self) -> list[Node]:
        """The nodes from the root down to this one."""
        nodes = [self]
        while (parent := nodes[-1].parent) is not None:
            nodes.append(parent)
        return nodes[::-1]

    @property
    def sequence(self) -> tuple[Hashable, ...]:
        """The block ids from the root to here."""
        return tuple(chain.from_iterable(node.blocks for node in self.lineage))

    @property
    def path(self) -> tuple[int, ...]:
        """The search path: the positions from the root to here; the root's own is empty."""
        return tuple(node.position for node in self.lineage[1:])

    def __repr__(self) -> str:
        return f"Node(path={self.path}, blocks={len(self.blocks)}, children={len(self.children)})"

    def add_request(self, request_id: Hashable) -> None:
        """Let a request end here."""
        if isinstance(self.requests, frozenset):
            self.requests = set()
        self.requests.add(request_id)

    def drop_request(self, request_id: Hashable) -> None:
        """Forget a request that ends here."""
        if isinstance(self.requests, set):
            self.requests.discard(request_id)

    def adopt(self, blocks: tuple[Hashable, ...], weights: tuple[int, ...]) -> Node:
        """Make a child that adds these blocks, at the next position."""
        child = Node(self, self.next_position, blocks, weights)
        self.next_position += 1
        self.children[child.position] = self.by_first_block[blocks[0]] = child
        return child
