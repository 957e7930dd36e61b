"""JSON of one line taken apart by its members, of which whole ones can be left out so that it stays JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

__all__ = ["JsonMembers", "joint_of", "shown"]

_STRING = r'"(?:[^"\\]|\\.)*+"'
_PIECE = re.compile(rf'(?:{_STRING}: ?)?(?:[\[{{]|{_STRING}|[^\s",:\[\]{{}}]+)|[\]}}]')
_STRINGS = re.compile(_STRING)


def joint_of(text: str) -> str:
    """Return what stands between any two members of a JSON text: ", " or ","; else an empty string.

    With it, equal pieces make equal texts, whatever stands between them. Empty too where there are line ends,
    escaped or not: such a text has lines.
    """
    if "\\n" in text or "\n" in text:
        return ""
    outside = _STRINGS.sub('""', text.strip(" "))
    if not re.search(r"\s", outside):
        return ","
    return "" if re.search(r"[,:](?! )|(?<![,:])\s", outside) else ", "


class JsonMembers:
    """The pieces of a JSON text: a bracket that opens, with its key; one that closes; a scalar, with its key.

    An object in an array is a record: it is taken whole or not at all, so that rows stay rows.

    Args:
        text: A JSON text with a joint.

    Attributes:
        spans: Where each piece starts and ends.
    """

    def __init__(self, text: str) -> None:
        self.spans: list[tuple[int, int]] = []
        self._partner: list[int] = []  # Of a bracket the other one; a scalar is its own.
        self._in_object: list[bool] = []
        self._record: list[int | None] = []  # Where the outermost record begins that a piece belongs to.
        opened: list[int] = []
        for place, piece in enumerate(_PIECE.finditer(text)):
            self.spans.append(piece.span())
            last = text[piece.end() - 1]
            self._partner.append(place)
            if last in "]}":
                opening = opened.pop()
                self._partner[opening], self._partner[place] = place, opening
            outer = opened[-1] if opened else None
            in_object = outer is not None and text[self.spans[outer][1] - 1] == "{"
            record = None if outer is None else self._record[outer]
            if record is None and outer is not None and not in_object and last in "{}":
                record = self._partner[place] if last == "}" else place
            self._in_object.append(in_object)
            self._record.append(record)
            if last in "[{":
                opened.append(place)

    def siblings(self, at: int, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield the most members, side by side in one array or object, around a piece: first the innermost.

        Args:
            at: The piece, which is one of them, or a part of one.
            first: The first piece that may be taken.
            last: The last one.
        """
        record = self._record[at]
        start, end = sorted((at, self._partner[at]) if record is None else (record, self._partner[record]))
        while first <= start and end <= last:
            while end < last and end + 1 <= self._partner[end + 1] <= last:
                end = self._partner[end + 1]
            while start > first and first <= self._partner[start - 1] <= start - 1:
                start = self._partner[start - 1]
            yield start, end
            # Only all that an array or object has leads on to itself.
            if start == first or end == last or self._partner[end + 1] != start - 1:
                return
            start, end = start - 1, end + 1

    def name(self, first: int) -> int:
        """Return the piece by which a member is known: its first with a key or a value."""
        while self.spans[first][1] - self.spans[first][0] == 1 and first < self._partner[first] - 1:
            first += 1
        return first

    def next(self, first: int) -> int:
        """Return the piece that stands behind a member."""
        return self._partner[first] + 1

    def count(self, first: int, last: int) -> int:
        """Return how many members a run of siblings has."""
        members = 0
        while first <= last:
            first, members = self.next(first), members + 1
        return members

    def replacement(self, annotation: str, at: int) -> str:
        """Return an annotation as it stands instead of members, the first of which is given."""
        quoted = json.dumps(annotation, ensure_ascii=False)
        return f'"...": {quoted}' if self._in_object[at] else quoted


def shown(piece: str) -> str:
    """Return a piece as an annotation quotes it: without brackets and quotation marks."""
    return _STRINGS.sub(lambda string: str(json.loads(string[0], strict=False)), piece.rstrip(" :[{"))
