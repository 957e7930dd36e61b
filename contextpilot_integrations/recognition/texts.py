"""Texts that are looked for: those that the caller knows, and those that earlier messages showed."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterable

from contextpilot_integrations.recognition.blocks import Blocks

__all__ = ["Texts", "ends_line", "starts_line"]


class Texts:
    """Texts, each under the name that messages show of it, found by their first line.

    Grows with `add` and `add_shown`; only one thread may change it at a time.

    Args:
        texts: Some without a name.
    """

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._by_first_line: dict[tuple[str, str], list[str]] = {}  # Sorted.
        self._added: Counter[tuple[str, str]] = Counter()
        for text in texts:
            self.add(text)

    def __bool__(self) -> bool:
        return bool(self._by_first_line)

    def add(self, text: str, name: str = "") -> None:
        """Add a text; one of nothing but whitespace is never found.

        Args:
            text: The text, not escaped.
            name: Found under this name only.
        """
        if text.strip():
            self._added[name, text] += 1
            if self._added[name, text] == 1:
                insort(self._by_first_line.setdefault((name, _line_at(text, 0)), []), text)

    def add_shown(self, text: str, blocks: Iterable[Blocks]) -> None:
        """Add the texts of all blocks that were found in a text and have a name."""
        for group in blocks:
            for found in group.found:
                if found.name:
                    self.add(found.text_in(text), found.name)

    def count(self, text: str, name: str = "") -> int:
        """Return how often a text was added under a name."""
        return self._added[name, text]

    def ends_at(self, text: str, place: int, name: str = "") -> list[int]:
        """Return where those texts end that stand at a place and end with a line, the farthest first."""
        alike = self._by_first_line.get((name, _line_at(text, place)), []) if self else []
        ends: list[int] = []
        # Sorted, the texts that stand here are before all that would stand behind what is here.
        stop = bisect_left(alike, True, key=lambda known: known > text[place : place + len(known)])
        while stop:
            known = alike[stop - 1]
            shared = _shared(known, text, place)
            if shared == len(known):
                shared -= 1
                if ends_line(text, place + len(known)):
                    ends.append(place + len(known))
            # Any other begins what this one shares with what is here.
            stop = bisect_right(alike, known[:shared], 0, stop - 1)
        return ends


def starts_line(text: str, place: int) -> bool:
    """Tell whether a line begins there."""
    return place == 0 or text[place - 1] == "\n"


def ends_line(text: str, place: int) -> bool:
    """Tell whether a line, or the text, ends there."""
    return place == len(text) or text.startswith(("\n", "\r\n"), place)


def _shared(known: str, text: str, place: int) -> int:
    """Return how many characters of a known text stand at a place."""
    if text.startswith(known, place):
        return len(known)
    return bisect_left(range(len(known)), True, key=lambda end: not text.startswith(known[: end + 1], place))


def _line_at(text: str, place: int) -> str:
    end = text.find("\n", place)
    return (text[place:] if end < 0 else text[place:end]).rstrip("\r")
