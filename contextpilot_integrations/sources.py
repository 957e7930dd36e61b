"""What annotations call the texts that they point at, so that each is told from all others above."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b

from contextpilot_integrations.json_members import shown
from contextpilot_integrations.segments import Line, Section, Segment
from contextpilot_integrations.wording import first_line, shortened

__all__ = ["Sources"]

_MAX_QUOTE = 100  # Characters: with it an annotation is still shorter than the shortest run left out.
_MIN_LINE = 8  # Characters: a brace tells no text apart, even if it is the only one.
_FEW = 100


class Sources:
    """Calls a text by the name that the messages show for it, unless two texts had that name.

    Any other one is called by the first of its lines that no other line above begins like: texts that begin
    with the same licence are told apart by what follows. Where none is, texts that begin alike are counted.

    Args:
        texts: The lines that went out; they grow.
        lines: Where each of them stands.
    """

    def __init__(self, texts: Sequence[str], lines: Sequence[Line]) -> None:
        self._texts = texts
        self._lines = lines
        self._named: dict[str, tuple[str, bool]] = {}
        self._ambiguous: set[str] = set()
        self._begins: dict[Section, int] = {}
        self._telling: dict[Section, int] = {}  # The first line that may tell a section apart.
        self._ended: set[bytes] = set()  # Digests of the sections that stand there literally.
        self._waiting: list[range] = []  # Lines that are not counted yet.
        self._quotes: dict[Section, tuple[Counter[str], int]] = {}
        # How often each line stands there, where equal texts count as one.
        self._times: Counter[str] = Counter()
        self._sorted: list[str] = []

    def note_name(self, segment: Segment, content: str) -> None:
        """Take note of what a block is called; one name for two texts tells nothing.

        Behind a block whose end is not known a question may stand, so of two such only the first line counts.
        Where one text stands twice, once with lines left out, what is quoted of it tells which is meant.

        Args:
            segment: The block, or what is none and has no name of its own.
            content: Its text.
        """
        if not (segment.whole or segment.is_open):
            return
        content = content.strip()
        known, is_whole = self._named.setdefault(segment.name, (content, segment.whole))
        if segment.whole and is_whole:
            same = content == known
        elif segment.whole or is_whole:
            same = (known if segment.whole else content).startswith(content if segment.whole else known)
        else:
            same = content.partition("\n")[0] == known.partition("\n")[0]
        if not same:
            self._ambiguous.add(segment.name)

    def begin(self, section: Section, line: int) -> None:
        """Take note of which line that went out is the first of a section, or would be."""
        self._begins[section] = self._telling[section] = line

    def end(self, section: Section, literal: str) -> None:
        """Take note that all lines of a section went out.

        Args:
            section: The one that began last.
            literal: Its text, if all of it went out.
        """
        begin = self._begins[section]
        digest = blake2b(literal.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if not literal or digest not in self._ended:
            self._ended.add(digest)
            self._waiting.append(range(begin, len(self._texts)))

    def called(self, section: Section) -> str:
        """Return what an annotation calls a section that went out, or some lines of it."""
        name = section.segment.name
        if name and name not in self._ambiguous:
            return name
        self._count()
        place = self._telling[section]
        while place < len(self._texts) and _is_within(self._lines[place].section, section):
            if quote := self._telling_quote(self._shown(place)):
                is_first = place == self._begins[section] and self._lines[place].number == 1
                return f'the text {"that begins" if is_first else "with"} "{quote}"'
            place += 1
            self._telling[section] = place  # A line that told nothing apart never will.
        return self._numbered(section)

    def _numbered(self, section: Section) -> str:
        place = self._begins[section]
        beginning = shortened(self._shown(place))
        if self._lines[place].number > 1:  # What came before it was left out.
            return f'the text with "{beginning}"'
        firsts = {first for first in self._begins.values() if first <= place}
        alike = [
            first
            for first in firsts
            if self._lines[first].number == 1 and self._shown(first).startswith(beginning)
        ]
        return f'number {len(alike)} of the texts that begin "{beginning}"'

    def member_quote(self, section: Section, piece: str) -> str:
        """Return a quote that tells a piece of JSON from all others of a section; empty if it would be long.

        Args:
            section: The JSON.
            piece: One that stands there once.
        """
        quotes, counted = self._quotes.get(section, (Counter(), self._begins[section]))
        while counted < len(self._texts) and _is_within(self._lines[counted].section, section):
            quotes[shortened(first_line(shown(self._texts[counted]), in_json=False))] += 1
            counted += 1
        self._quotes[section] = quotes, counted
        line = first_line(shown(piece), in_json=False)
        quote = shortened(line)
        if quotes[quote] == 1:
            return quote
        return line if len(line) <= _MAX_QUOTE else ""

    def _count(self) -> None:
        new = [self._shown(place) for places in self._waiting for place in places]
        self._waiting.clear()
        distinct = dict.fromkeys(line for line in new if line not in self._times)
        self._times.update(new)
        if len(distinct) > _FEW:
            self._sorted = sorted([*self._sorted, *distinct])
        else:
            for line in distinct:
                insort(self._sorted, line)

    def _telling_quote(self, line: str) -> str:
        """Return a beginning of a line that no other line has; empty if none is short enough."""
        if len(line) < _MIN_LINE or self._times[line] > 1:
            return ""
        place = bisect_left(self._sorted, line)
        others = [other for other in self._sorted[max(0, place - 1) : place + 2] if other != line]
        needed = 1 + max((_shared(line, other) for other in others), default=0)
        if needed > min(len(line), _MAX_QUOTE):
            return ""
        quote = shortened(line)
        return quote if len(quote) >= needed else line[:needed]

    def _shown(self, place: int) -> str:
        return first_line(self._texts[place], in_json=self._lines[place].section.joint == "\\n")


def _is_within(inner: Section, outer: Section) -> bool:
    there = (inner.message, inner.part) == (outer.message, outer.part)
    return there and outer.segment.start <= inner.segment.start and inner.segment.end <= outer.segment.end


def _shared(one: str, other: str) -> int:
    """Return how many characters two texts begin with alike."""
    return next(
        (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
