"""What is found in a text: blocks, and which of them may change places."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Blocks", "Form", "Found", "escape", "unescape"]


class Form(StrEnum):
    """How a block is written."""

    RENDERED = "rendered"
    """As `ContextBlock.render` writes it: a marker, then the text."""
    KNOWN = "known"
    """Just its text, which the caller knows."""
    XML = "xml"
    """A ``<document>`` element."""
    JSON = "json"
    """An object with a text field, in an array of such objects."""
    NUMBERED = "numbered"
    """An item of a list: ``[1] ...``, ``Document 1: ...``."""


@dataclass(frozen=True, slots=True)
class Found:
    """A block found in a text; all places are in characters.

    Attributes:
        start: Where the whole block begins, with its marker, tags or braces: what would be moved.
        end: The character after its last.
        text_start: Where its text begins: what may be left out where it stands elsewhere.
        text_end: The character after the text's last.
        name: What the text shows of it and a model can be told: ``[CB_2]``, ``document 3``, ``id "kb-7"``.
            Empty if nothing is shown.
        in_json: Whether its text is the inside of a JSON string, escaped.
    """

    start: int
    end: int
    text_start: int
    text_end: int
    name: str = ""
    in_json: bool = False

    def text_in(self, text: str) -> str:
        """Return the block's text, unescaped.

        Args:
            text: In which the block was found.
        """
        own = text[self.text_start : self.text_end]
        return unescape(own) if self.in_json else own


@dataclass(frozen=True, slots=True)
class Blocks:
    """Neighbouring blocks of one form, with nothing but the form's own separators between them.

    Attributes:
        form: How they are written.
        found: The blocks in the order in which they stand.
        movable: Whether they may stand in any other order. Numbered ones may not, for a number that moves
            along is no longer the first, and one that stays names another text in the answer; messages of
            a chat, written as JSON, may not; and no block of whose end we are not sure.
    """

    form: Form
    found: tuple[Found, ...]
    movable: bool

    def reordered(self, text: str, order: Sequence[int]) -> str:
        """Return what stands from the first block to the last, with the blocks in another order.

        Args:
            text: In which the blocks were found.
            order: The places in `found`, in the order in which the blocks shall stand.

        Raises:
            ValueError: If they may not be moved, or the order does not name each place once.
        """
        if sorted(order) != list(range(len(self.found))):
            raise ValueError(
                f"order must name each place from 0 to {len(self.found) - 1} once, not {order!r}"
            )
        if not self.movable and list(order) != sorted(order):
            raise ValueError(f"these {self.form} blocks are not movable: order must be their own")
        pieces: list[str] = []
        end = self.found[0].start
        for there, moved in zip(self.found, order, strict=True):
            pieces += text[end : there.start], text[self.found[moved].start : self.found[moved].end]
            end = there.end
        return "".join(pieces)


def escape(text: str) -> str:
    """Return how a text is written inside a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def unescape(written: str) -> str:
    """Return the text that is written inside a JSON string.

    Raises:
        ValueError: If no JSON string has that inside.
    """
    text: str = json.loads(f'"{written}"')
    return text
