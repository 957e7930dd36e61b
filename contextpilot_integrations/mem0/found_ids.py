"""Which memories labels are of, as far as they were found lately."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from contextpilot_integrations.block import BlockId, ContextBlock

__all__ = ["FoundIds"]

_MAX_LABELS = 65_536  # Some 15 MB.


class FoundIds:
    """The ids of memories found lately, by label, for threads to share. It holds no text.

    With it a text in view is compared with the one memory that it is of, without it with each that is found:
    so a long chat takes no longer, and the outcome is the same.
    """

    def __init__(self) -> None:
        self._ids: OrderedDict[str, BlockId] = OrderedDict()

    def add(self, blocks: Iterable[ContextBlock]) -> None:
        """Take up memories, and let go of those taken up first where there are too many."""
        for block in blocks:
            self._ids[block.label] = block.id
        while len(self._ids) > _MAX_LABELS:
            self._ids.popitem(last=False)

    def get(self, label: str) -> BlockId | None:
        """Return the id that a label is of, if it is known."""
        return self._ids.get(label)
