"""Numbered lists of passages: ``[1] ...``, ``Document 1: ...`` and the like."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from contextpilot_integrations.recognition.blocks import Form, Found
from contextpilot_integrations.recognition.claims import Claim, shortened
from contextpilot_integrations.recognition.texts import Texts

__all__ = ["numbered_blocks"]

_ITEM_START = re.compile(
    r"^(?P<name>\[(?P<bare>[0-9]{1,4})\](?= )"
    r"|(?P<word>document|doc|passage|source) (?:\[(?P<bracketed>[0-9]{1,4})\]|(?P<plain>[0-9]{1,4})(?=:)))"
    r":?(?:(?:[ \t]*+\r?\n)++|[ \t]*+)",  # Its text may begin on the next line.
    re.MULTILINE | re.IGNORECASE,
)

# In characters, of all items but the last. The lists of 14,000 files of documentation and code that are no
# passages (literature, links, footnotes) have 29 to 140 and seldom more; of five passages that real
# retrievers find, 1 in 80 sets has less than this, in the set of the shortest, and none in most.
_MIN_MEAN_LENGTH = 160


@dataclass(slots=True)
class _Item:
    start: re.Match[str]
    style: str
    number: int
    following: _Item | None = None
    last: _Item | None = None
    count: int = 1  # How many items follow one another from this one on, with it.


def numbered_blocks(text: str, known: Texts, shown: Texts, whole_text_is_data: bool) -> Iterator[Claim]:
    """Yield the items of lists that count from 0 or 1; where the last one ends, only its text can tell."""
    reached = 0
    for first in _items(text):
        place = first.start.start()
        if place < reached or first.number > 1 or first.last is None:
            continue
        reached = first.last.start.start()
        if (reached - place) / (first.count - 1) < _MIN_MEAN_LENGTH:
            continue
        item = first
        while item.following is not None:
            yield _claim(text, item, item.following.start.start())
            item = item.following
        text_start = item.start.end()
        ends = known.ends_at(text, text_start) or shown.ends_at(text, text_start, item.start["name"])
        if ends or whole_text_is_data:
            yield _claim(text, item, ends[0] if ends else len(text))
        else:
            yield Claim(Form.NUMBERED, item.start.start(), len(text), None)
            return


def _items(text: str) -> list[_Item]:
    """Return what begins like an item, each with the next line that has the next number, if there is one."""
    items = [_Item(start, *_style_and_number(start)) for start in _ITEM_START.finditer(text)]
    nearest: dict[tuple[str, int], _Item] = {}
    for item in reversed(items):
        item.following = nearest.get((item.style, item.number + 1))
        if item.following is not None:
            item.last = item.following.last or item.following
            item.count += item.following.count
        nearest[item.style, item.number] = item
    return items


def _style_and_number(start: re.Match[str]) -> tuple[str, int]:
    if start["word"] is None:
        return "[]", int(start["bare"])
    if start["plain"] is None:
        return f"{start['word'].lower()} []", int(start["bracketed"])
    return start["word"].lower(), int(start["plain"])


def _claim(text: str, item: _Item, end: int) -> Claim:
    text_start, text_end = shortened(text, item.start.end(), end)
    found = Found(item.start.start(), text_end, text_start, text_end, item.start["name"])
    return Claim(Form.NUMBERED, found.start, found.end, found, movable=False)
