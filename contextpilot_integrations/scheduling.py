"""Algorithm 5: the order in which a batch runs, so that requests sharing a prefix run back to back.

And who waits for whom where several run at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from operator import eq, itemgetter
from typing import Any

__all__ = ["leaders", "schedule"]


class _Branch:
    """A prefix at whose end requests end or part."""

    __slots__ = ("children", "first", "height", "length", "requests", "size")

    def __init__(self, length: int) -> None:
        self.length = length
        self.requests: list[int] = []
        self.children: list[_Branch] = []
        self.size = self.height = 0
        self.first = -1

    def close(self) -> None:
        """Sum up, once the branch is complete."""
        children = self.children
        self.size = len(self.requests) + sum(child.size for child in children)
        self.height = 1 + max((child.height for child in children), default=-1)
        self.first = min([*self.requests[:1], *(child.first for child in children)])


def schedule(sequences: Sequence[Sequence[Any]]) -> tuple[int, ...]:
    """Order requests depth first over the prefixes that they share.

    The paper groups by the first element of the search path and sorts a group by length, which tears
    subtrees apart where the tree is deeper than two levels; a small cache then has lost a prefix when its
    next user comes. Here a subtree is finished before the next one starts: among the branches of a prefix
    the one with the deepest descendant first, then the larger, then the one that was given first; those at
    the root by size alone. A request runs before those that extend it; equal ones run as given.

    Args:
        sequences: For each request what it shares prefixes by: its blocks in the order to send, or its
            search path (`Node.path`). The elements must be comparable.

    Returns:
        The places of the requests in ``sequences``, in execution order.
    """
    # In sorted order, whatever shares a prefix stands together: the tree is made by one pass over it.
    root = _Branch(0)
    line = [root]
    previous: Sequence[Any] = ()
    for place, sequence in sorted(enumerate(sequences), key=itemgetter(1)):
        shared = sum(takewhile(bool, map(eq, previous, sequence)))
        _close(line, shared)
        if len(sequence) > line[-1].length:
            line.append(_Branch(len(sequence)))
        line[-1].requests.append(place)
        previous = sequence
    _close(line, 0)
    order: list[int] = []
    stack = [root]
    while stack:
        branch = stack.pop()
        order.extend(branch.requests)
        if branch is root:
            branch.children.sort(key=lambda child: (-child.size, child.first), reverse=True)
        else:
            branch.children.sort(key=lambda child: (-child.height, -child.size, child.first), reverse=True)
        stack.extend(branch.children)
    return tuple(order)


def _close(line: list[_Branch], length: int) -> None:
    """Leave a line of ever longer prefixes, each a child of the one before, for one of a certain length."""
    while line[-1].length > length:
        branch = line.pop()
        branch.close()
        if line[-1].length < length:
            line.append(_Branch(length))
        line[-1].children.append(branch)


def leaders(sequences: Sequence[Sequence[Any]], order: Sequence[int]) -> list[int | None]:
    """Find for each request the one that it has to wait for, so that its prefix is cached when it starts.

    That is of those before it the one with which it shares the longest prefix; of several the first, since
    they all find there what they share.

    Args:
        sequences: For each request what it shares prefixes by. The elements must be hashable.
        order: The places of the requests in execution order.

    Returns:
        For each request, by its place in ``sequences``, its leader's place; None where it shares nothing
        with anyone before it.
    """
    found: list[int | None] = [None] * len(sequences)
    first: dict[Any, Any] = {}  # For each element that may come next: who came there first, and what follows.
    for place in order:
        following = first
        for element in sequences[place]:
            there, following = following.setdefault(element, (place, {}))
            if there != place:
                found[place] = there
    return found
