"""What the model can see of memories: what stands in the very messages that go out."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import zip_longest
from typing import Any

from contextpilot_integrations.block import MARKER_START, ContextBlock, labels_of
from contextpilot_integrations.message_blocks import texts_of
from contextpilot_integrations.wording import Wording, is_like_annotation

__all__ = ["View"]

_LABEL = r"[A-Za-z0-9_.-]{1,8}"
_MARKER = re.compile(rf"{re.escape(MARKER_START)}({_LABEL})\](?: |(?=\n\n)|\Z)")
_MAX_PARAGRAPHS = 16  # Of an earlier text of a memory: where it ends is not known beforehand.


class _Shown:
    """A block in a message.

    Attributes:
        label: What its marker shows.
        content: What stands behind the marker, up to the next one or the text's end.
    """

    def __init__(self, label: str, content: str) -> None:
        self.label, self.content = label, content

    def holds(self, text: str) -> bool:
        """Tell whether it is a block of just this text, whatever paragraphs follow."""
        return self.content == text or self.content.startswith(f"{text}\n\n")

    @cached_property
    def beginnings(self) -> list[str]:
        """What may be its text: any number of its first paragraphs."""
        paragraphs = self.content.split("\n\n", _MAX_PARAGRAPHS)
        return ["\n\n".join(paragraphs[: count + 1]) for count in range(len(paragraphs))]


@dataclass(slots=True)
class View:
    """What messages show.

    Attributes:
        answered: Whether the model has said anything yet.
    """

    answered: bool = False
    _shown: list[_Shown] = field(default_factory=list)
    _replaced: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, messages: Iterable[Mapping[str, Any]], wording: Wording, update_template: str) -> View:
        """Look at messages. What the model said itself shows it nothing.

        Args:
            messages: All that go out before the turn's own, in their order.
            wording: How annotations are worded.
            update_template: How it is said that a memory was updated.
        """
        view = cls()
        for message in messages:
            if message.get("role") == "assistant":
                view.answered = True
                continue
            for text in texts_of(message).values():
                if MARKER_START in text:
                    view._look_at(text, wording, _update(update_template))
        return view

    def shows(self, block: ContextBlock) -> bool:
        """Tell whether a block stands in the messages, and nothing else under its label, and still holds."""
        same = [shown for shown in self._shown if shown.label == block.label]
        return bool(same) and block.label not in self._replaced and all(s.holds(block.text) for s in same)

    def replaced_by(self, block: ContextBlock, found: Container[str]) -> str | None:
        """Return the label under which the messages show the text that this block was updated from, if any.

        No list of what was sent is needed: a label stands for an id and a text, so it tells whether a text in
        view is an earlier one of this id.

        Args:
            block: A memory as it is now.
            found: The labels of all that were found with it, which are earlier texts of none.
        """
        label_of = labels_of(block.id)
        for shown in reversed(self._shown):
            if shown.label == block.label and shown.content.startswith(block.text):
                if shown.holds(block.text) and block.label not in self._replaced:
                    return None
                continue  # It was replaced in its turn, or may be its own text with something behind it.
            if shown.label in found and shown.label != block.label:
                continue
            if any(label_of(text) == shown.label for text in shown.beginnings):
                return shown.label
        return None

    def _look_at(self, text: str, wording: Wording, update: re.Pattern[str]) -> None:
        starts = [
            found
            for found in _MARKER.finditer(text)
            if _begins_paragraph(text, found)
            and not _is_annotation(_paragraph(text, found.start()), wording, update)
        ]
        for start, after in zip_longest(starts, starts[1:]):
            end = after.start() - 2 if after else len(text)
            self._shown.append(_Shown(start[1], text[start.end() : end]))
        for said in update.finditer(text):
            if _begins_paragraph(text, said) and said["new"] != said["old"]:
                self._replaced.discard(said["new"])
                self._replaced.add(said["old"])


def _begins_paragraph(text: str, found: re.Match[str]) -> bool:
    return found.start() == 0 or text.endswith("\n\n", 0, found.start())


def _paragraph(text: str, start: int) -> str:
    end = text.find("\n\n", start)
    return text[start:] if end < 0 else text[start:end]


def _is_annotation(paragraph: str, wording: Wording, update: re.Pattern[str]) -> bool:
    """Tell whether a paragraph that begins with a marker could be one of our annotations."""
    return update.fullmatch(paragraph) is not None or is_like_annotation(paragraph, wording)


@lru_cache(maxsize=32)
def _update(template: str) -> re.Pattern[str]:
    pattern = re.escape(template)
    for name in ("new", "old"):
        place = re.escape(f"{{{name}}}")
        pattern = pattern.replace(place, rf"{re.escape(MARKER_START)}(?P<{name}>{_LABEL})\]", 1)
        pattern = pattern.replace(place, rf"{re.escape(MARKER_START)}(?P={name})\]")
    return re.compile(rf"{pattern}(?=\n\n|\Z)")
