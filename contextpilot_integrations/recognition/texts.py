"""Texts that are looked for: those that the caller knows, and those that earlier messages showed."""

from __future__ import annotations

from bisect import insort
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
        self._by_first_line: dict[tuple[str, str], list[str]] = {}  # The longest first.
        self._known: set[tuple[str, str]] = set()
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
        if text.strip() and (name, text) not in self._known:
            self._known.add((name, text))
            alike = self._by_first_line.setdefault((name, _line_at(text, 0)), [])
            insort(alike, text, key=lambda known: -len(known))

    def add_shown(self, text: str, blocks: Iterable[Blocks]) -> None:
        """Add the texts of all blocks that were found in a text and have a name."""
        for group in blocks:
            for found in group.found:
                if found.name:
                    self.add(found.text_in(text), found.name)

    def ends_at(self, text: str, place: int, name: str = "") -> list[int]:
        """Return where those texts end that stand at a place and end with a line, the farthest first."""
        alike = self._by_first_line.get((name, _line_at(text, place))) if self else None
        return [
            place + len(known)
            for known in alike or ()
            if text.startswith(known, place) and ends_line(text, place + len(known))
        ]


def starts_line(text: str, place: int) -> bool:
    """Tell whether a line begins there."""
    return place == 0 or text[place - 1] == "\n"


def ends_line(text: str, place: int) -> bool:
    """Tell whether a line, or the text, ends there."""
    return place == len(text) or text.startswith(("\n", "\r\n"), place)


def _line_at(text: str, place: int) -> str:
    end = text.find("\n", place)
    return (text[place:] if end < 0 else text[place:end]).rstrip("\r")
