"""A context index drawn as text, for people."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Hashable
from itertools import islice

from contextpilot_integrations.index.node import Node
from contextpilot_integrations.index.tree import ContextIndex

__all__ = ["render"]

_BLOCKS = 8


def render(
    index: ContextIndex, *, label: Callable[[Hashable], str] | None = None, max_nodes: int = 100
) -> str:
    """Draw the tree, depth first, one node a line.

    A line has the node's position in brackets, the blocks that it adds (of many, the first 8), how many
    requests passed through or ended at it, and how many end there.

    Args:
        index: What to draw.
        label: How a block id is shown. None: shortened, of bytes the first 6 hex digits.
        max_nodes: How many nodes are drawn.

    Raises:
        ValueError: If ``max_nodes`` is negative.
    """
    if max_nodes < 0:
        raise ValueError(f"max_nodes must be at least 0, got {max_nodes}")
    shown = label or _Short().repr
    lines = [f"context index: {_count(len(index), 'node')}, {_count(index.total_weight, 'token')}"]
    # Nodes to draw, each with what stands to the left of its branch; a child's branch is the parent's
    # with one more column.
    stack = _children(index.root, "")
    while stack and len(lines) <= max_nodes:
        node, left, last = stack.pop()
        blocks = " ".join(shown(block) for block in islice(node.blocks, _BLOCKS))
        more = f" … {len(node.blocks) - _BLOCKS} more" if len(node.blocks) > _BLOCKS else ""
        branch = "└─ " if last else "├─ "
        lines.append(f"{left}{branch}[{node.position}] {blocks}{more} · {_use(node)}")
        stack += _children(node, left + ("   " if last else "│  "))
    if undrawn := len(index) + 1 - len(lines):
        lines.append(f"… and {undrawn} more")
    return "\n".join(lines)


def _children(node: Node, left: str) -> list[tuple[Node, str, bool]]:
    """The children as the stack wants them: the first on top, and the last marked."""
    children = [(child, left, False) for child in node.children.values()]
    if children:
        children[-1] = (*children[-1][:2], True)
    return children[::-1]


def _use(node: Node) -> str:
    unnamed = " + unnamed" if node.anonymous else ""
    return f"{_count(node.accesses, 'access')}, {_count(len(node.requests), 'request')}{unnamed}"


def _count(number: int, noun: str) -> str:
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}{'es' if noun.endswith('s') else 's'}"


class _Short(reprlib.Repr):
    """Ids in few characters."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 20
        self.maxtuple = 4

    def repr_bytes(self, value: bytes, level: int) -> str:
        return value[:3].hex() or "b''"

    def repr_int(self, value: int, level: int) -> str:
        # repr() refuses integers of more than 4,300 digits.
        return repr(value) if value.bit_length() <= 64 else f"an int of {value.bit_length()} bits"
