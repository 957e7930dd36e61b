"""What the model can see of memories: what stands in the very messages that go out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

from contextpilot_integrations.block import MARKER_START, BlockId, ContextBlock, labels_of
from contextpilot_integrations.mem0.found_ids import FoundIds
from contextpilot_integrations.message_blocks import texts_of
from contextpilot_integrations.wording import Wording, is_like_annotation

__all__ = ["View"]

_LABEL = r"[A-Za-z0-9_.-]{1,8}"
_START = re.escape(MARKER_START)
# The paragraph's beginning is told behind the first characters: so a search for those leads here, and fast.
_MARKER = re.compile(rf"{_START}(?:(?<=\A{_START})|(?<=\n\n{_START}))({_LABEL})\](?: |(?=\n\n)|\Z)")


class _Shown:
    """A block in a message.

    Attributes:
        label: What its marker shows.
        id: Whose label that is; None where it is not known.
        content: What stands behind the marker, up to the next one or the text's end.
    """

    def __init__(self, label: str, id: BlockId | None, content: str) -> None:
        self.label, self.id, self.content = label, id, content

    def holds(self, text: str) -> bool:
        """Tell whether it is a block of just this text, whatever paragraphs follow."""
        return self.content == text or self.content.startswith(f"{text}\n\n")

    @cached_property
    def pieces(self) -> list[str]:
        """Its paragraphs, each with what separates it from the last: any number may be its text."""
        first, *others = self.content.split("\n\n")
        return [first, *(f"\n\n{paragraph}" for paragraph in others)]


class View:
    """What messages show of the memories that were found. What the model said itself shows it nothing.

    Args:
        blocks: The memories as they are now.
        messages: All that go out before the turn's own, in their order.
        wording: How annotations are worded.
        update_template: How it is said that a memory was updated.
        ids: The ids of labels, as far as they are known.

    Attributes:
        answered: Whether the model has said anything yet.
    """

    def __init__(
        self,
        blocks: Sequence[ContextBlock],
        messages: Iterable[Mapping[str, Any]],
        wording: Wording,
        update_template: str,
        ids: FoundIds,
    ) -> None:
        self.answered = False
        self._labels, self._block_ids = {block.label for block in blocks}, {block.id for block in blocks}
        self._wording, self._update, self._ids = wording, _update(update_template), ids
        self._shown: list[_Shown] = []
        self._replaced: set[str] = set()
        for message in messages:
            if message.get("role") == "assistant":
                self.answered = True
                continue
            for text in texts_of(message).values():
                if MARKER_START in text:
                    self._look_at(text)

    def shows(self, block: ContextBlock) -> bool:
        """Tell whether a block stands in the messages, and nothing else under its label, and still holds.

        Where the label is the id, it does not tell whether paragraphs that follow were a part of the memory
        once: so nothing may follow but the next marker.
        """
        same = [shown for shown in self._shown if shown.label == block.label]
        if not same or block.label in self._replaced:
            return False
        if block.label == str(block.id):
            return all(shown.content == block.text for shown in same)
        return all(shown.holds(block.text) for shown in same)

    def replaced_by(self, block: ContextBlock) -> str | None:
        """Return the label under which the messages show the text that this block was updated from, if any.

        No list of what was sent is needed: a label stands for an id and a text, so it tells whether a text in
        view is an earlier one of this id.
        """
        labels = labels_of(block.id)
        for shown in reversed(self._shown):
            if shown.label == block.label and shown.content.startswith(block.text):
                if shown.holds(block.text) and block.label not in self._replaced:
                    return None
                continue  # It was replaced in its turn, or may be its own text with something behind it.
            if shown.label in self._labels and shown.label != block.label:
                continue  # What was found as well is an earlier text of none.
            if shown.id in (None, block.id) and shown.label in labels(shown.pieces):
                return shown.label
        return None

    def _look_at(self, text: str) -> None:
        markers = [*_MARKER.finditer(text)]
        for place, start in enumerate(markers):
            label = start[1]
            id = self._ids.get(label)
            # Long chats show many memories that have nothing to do with those that were found now.
            if label not in self._labels and id is not None and id not in self._block_ids:
                continue
            if not self._is_annotation(text, start):
                following = (
                    one.start() - 2 for one in markers[place + 1 :] if not self._is_annotation(text, one)
                )
                self._shown.append(_Shown(label, id, text[start.end() : next(following, len(text))]))
        for said in self._update.finditer(text):
            if _begins_paragraph(text, said) and said["new"] != said["old"]:
                self._replaced.discard(said["new"])
                self._replaced.add(said["old"])

    def _is_annotation(self, text: str, start: re.Match[str]) -> bool:
        """Tell whether a paragraph that begins with a marker could be one of our annotations."""
        paragraph = _paragraph(text, start.start())
        return self._update.fullmatch(paragraph) is not None or is_like_annotation(paragraph, self._wording)


def _begins_paragraph(text: str, found: re.Match[str]) -> bool:
    return found.start() == 0 or text.endswith("\n\n", 0, found.start())


def _paragraph(text: str, start: int) -> str:
    end = text.find("\n\n", start)
    return text[start:] if end < 0 else text[start:end]


@lru_cache(maxsize=32)
def _update(template: str) -> re.Pattern[str]:
    pattern = re.escape(template)
    for name in ("new", "old"):
        place = re.escape(f"{{{name}}}")
        pattern = pattern.replace(place, rf"{re.escape(MARKER_START)}(?P<{name}>{_LABEL})\]", 1)
        pattern = pattern.replace(place, rf"{re.escape(MARKER_START)}(?P={name})\]")
    return re.compile(rf"{pattern}(?=\n\n|\Z)")
