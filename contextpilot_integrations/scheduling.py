"""Algorithm 5: the order in which a batch runs, so that requests sharing a prefix run back to back."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["schedule"]


class _Branch:
    __slots__ = ("children", "deepest", "position", "requests", "size")

    def __init__(self, position: int) -> None:
        self.position = position
        self.children: dict[int, _Branch] = {}
        self.requests: list[int] = []
        self.deepest = 0
        self.size = 0


def schedule(paths: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Order requests depth first over their search paths.

    The paper groups by the first element of the path and sorts a group by length, which tears subtrees
    apart where the tree is deeper than two levels; a small cache then has lost a prefix when its next
    user comes. Here a subtree is finished before the next one starts: among a node's children the one
    with the deepest descendant first, then the larger, then the lower position; the root's children by
    size, then by position. A request that ends at a node runs before those that extend it; requests with
    equal paths run in the order given.

    Args:
        paths: One search path per request (`Node.path`).

    Returns:
        The places of the requests in ``paths``, in execution order.
    """
    root = _Branch(0)
    for request, path in enumerate(paths):
        branch = root
        line = [root]
        for position in path:
            if position not in branch.children:
                branch.children[position] = _Branch(position)
            branch = branch.children[position]
            line.append(branch)
        branch.requests.append(request)
        for depth, passed in enumerate(line):
            passed.size += 1
            passed.deepest = max(passed.deepest, len(path) - depth)
    order: list[int] = []
    stack = [root]
    while stack:
        branch = stack.pop()
        order.extend(branch.requests)
        if branch is root:
            first = sorted(branch.children.values(), key=lambda child: (-child.size, child.position))
        else:
            first = sorted(
                branch.children.values(), key=lambda child: (-child.deepest, -child.size, child.position)
            )
        stack.extend(reversed(first))
    return tuple(order)
