"""What annotations call the texts that they point at, so that each is told from all others above."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from contextpilot_integrations.block import MARKER_START
from contextpilot_integrations.segments import Line, Section, Segment
from contextpilot_integrations.wording import quoted

__all__ = ["Sources"]

_MIN_LINE = 8  # Characters: a brace tells no text apart, even if it is the only one.


class Sources:
    """Calls a text by the name that the messages show for it, unless two texts had that name.

    Any other one is called by its first line, or by the next that no other line above begins like: texts
    that begin with the same licence are told apart by what follows.

    Args:
        texts: The lines that went out; they grow.
        lines: Where each of them stands.
    """

    def __init__(self, texts: Sequence[str], lines: Sequence[Line]) -> None:
        self._texts = texts
        self._lines = lines
        self._named: dict[str, tuple[str, bool]] = {}
        self._ambiguous: set[str] = set()
        self._telling: dict[Section, int] = {}  # The first line that may tell a section apart.
        self._shown: Counter[str] = Counter()  # How the first so many lines begin.
        self._counted = 0

    def note_names(self, text: str, segments: Sequence[Segment]) -> None:
        """Take note of what blocks are called.

        Behind one whose end is not known a question may stand, so of two such only the first line counts.
        """
        for segment in segments:
            if not (segment.whole or segment.name.startswith(MARKER_START)):
                continue
            content = text[segment.start : segment.end].strip()
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
        self._telling[section] = line

    def called(self, section: Section) -> str:
        """Return what an annotation calls a section."""
        if section.name and section.name not in self._ambiguous:
            return section.name
        line = self._telling_line(section) or section.beginning
        return f'the text {"that begins" if line == section.beginning else "with"} "{line}"'

    def _telling_line(self, section: Section) -> str:
        """Return how the first line of a section begins that no other line begins like; empty if none is."""
        for place in range(self._counted, len(self._texts)):
            self._shown[self._beginning(place)] += 1
        self._counted = len(self._texts)
        place = self._telling[section]
        while place < len(self._texts) and _is_within(self._lines[place].section, section):
            beginning = self._beginning(place)
            if self._shown[beginning] == 1 and len(beginning) >= _MIN_LINE:
                return beginning
            place += 1
            self._telling[section] = place  # A line that was not the only one never will be.
        return ""

    def _beginning(self, place: int) -> str:
        in_json = self._lines[place].section.joint == "\\n"
        return quoted(self._texts[place], in_json=in_json)


def _is_within(inner: Section, outer: Section) -> bool:
    there = (inner.message, inner.part) == (outer.message, outer.part)
    return there and outer.start <= inner.start and inner.end <= outer.end
