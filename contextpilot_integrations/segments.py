"""What a text is divided into: segments that may be pointed at, and the pieces that they have."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from contextpilot_integrations.block import MARKER_START
from contextpilot_integrations.json_members import JsonMembers, joint_of
from contextpilot_integrations.message_blocks import MessageBlocks
from contextpilot_integrations.recognition import Form, Found, is_json

__all__ = ["Line", "Pieces", "Section", "Segment", "pieces_of", "section_of", "segments"]

_MIN_STRING = 8  # Characters from which a string in JSON is looked at.
_MARKER = re.compile(rf"^({re.escape(MARKER_START)}[A-Za-z0-9_.-]+\]) ", re.MULTILINE)
_JSON_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_JSON_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a text whose lines may be pointed at.

    Attributes:
        start: Its first character.
        end: The character after its last.
        cuttable: Whether its lines may also be left out.
        name: What the text shows for it; empty if nothing.
        whole: Whether it is all of a block, or of a tool's result.
        in_json: Whether it is the inside of a JSON string, whose line ends are escaped.
        lead: How many characters before it, its marker, are left out together with all of it.
        joint: What stands between the members of JSON that is taken apart by them; empty where lines are.
        lines_before: How many lines before it what has the name shows.
    """

    start: int
    end: int
    cuttable: bool = False
    name: str = ""
    whole: bool = False
    in_json: bool = False
    lead: int = 0
    joint: str = ""
    lines_before: int = 0

    @property
    def is_open(self) -> bool:
        """Whether it is a block whose end is not known: a question may stand behind it."""
        return not self.whole and self.name.startswith(MARKER_START)


class Section(NamedTuple):
    """A segment as it is pointed at.

    Attributes:
        message: Its message's place in the conversation.
        part: Its place among the message's parts, if it has parts.
        segment: Where it stands in the text as it came.
        joint: What stands between its pieces.
    """

    message: int
    part: int | None
    segment: Segment
    joint: str


class Line(NamedTuple):
    """A line, or a piece of JSON, that went out.

    Attributes:
        section: What it belongs to.
        stretch: Lines of one stretch stand one behind the other.
        number: Its number in what went out of the section, from 1 on.
        start: Where it begins in the text that went out.
    """

    section: Section
    stretch: int
    number: int
    start: int


class Pieces(NamedTuple):
    """A segment's lines, or the pieces of its JSON.

    Attributes:
        section: The segment as it is pointed at.
        texts: The pieces.
        spans: Where in the text each starts and ends.
        members: What the pieces of JSON belong to; None where they are lines.
        reached: By how far before the pieces others stand: up to which one they are known to agree.
    """

    section: Section
    texts: Sequence[str]
    spans: Sequence[tuple[int, int]]
    members: JsonMembers | None
    reached: dict[int, int]


def segments(
    blocks: MessageBlocks, part: int | None, text: str, *, name: str, cuttable: bool, is_data: bool
) -> list[Segment]:
    """Divide a text into what may be pointed at, and what of that may be left out.

    JSON of one line is left out by its members, other JSON inside its strings alone, so that it stays JSON;
    but a result that stands elsewhere as a whole gives way as a whole.

    Args:
        blocks: The message's blocks.
        part: The text's part.
        text: The text.
        name: What the conversation shows for all of it; may be empty.
        cuttable: Whether blocks may be left out.
        is_data: Whether that goes for what is no block too.
    """
    inner = [
        Segment(
            found.text_start,
            found.text_end,
            cuttable=cuttable,
            # A part of a result is not called as all of it is.
            name=found.name or (name if found.end - found.start == len(text) else ""),
            whole=True,
            in_json=found.in_json,
            lead=found.text_start - found.start if group.form is Form.RENDERED else 0,
            lines_before=_lines_before(text, found),
        )
        for at, group in blocks.groups
        if at == part
        for found in group.found
    ]
    data_in_json = is_data and text.lstrip().startswith(("{", "[", '"')) and is_json(text)
    if data_in_json:
        inner = [segment for segment in inner if segment.in_json]  # Lines of JSON are no block of it.
    if data_in_json and not inner and (joint := joint_of(text)):
        return [Segment(0, len(text), cuttable=cuttable, name=name, joint=joint)]
    if data_in_json:
        string = Segment(0, 0, cuttable=cuttable, name=name, in_json=True)
        inner = [*_strings_around(inner, string, text)]
    outer = Segment(0, 0, cuttable=cuttable and is_data and not data_in_json, name=name)
    divided: list[Segment] = []
    position = 0
    for segment in [*inner, Segment(len(text), len(text))]:
        divided += _between(outer, text, position, segment.start - segment.lead)
        divided.append(segment)
        position = segment.end
    return divided[:-1]


def _lines_before(text: str, found: Found) -> int:
    """Count the lines before a block's text: those below its tag, or all where it is named as a result is."""
    if found.in_json:
        return 0
    lines = text.count("\n", found.start, found.text_start)
    return max(0, lines - 1) if found.name else lines


def _strings_around(blocks: Sequence[Segment], like: Segment, text: str) -> Iterator[Segment]:
    """Yield blocks in a JSON text, and what stands around them in its strings."""
    left = deque(blocks)
    unnamed = replace(like, name="")  # Behind a block, lines of what has the name would be counted wrongly.
    strings = [*_JSON_STRING.finditer(text)]
    with_lines = [string for string in strings if "\\n" in string[1]]
    for string in strings:
        # Lines are counted in each string, so of several none can have the name.
        piece, (start, end) = (like if with_lines == [string] else unnamed), string.span(1)
        while left and left[0].start < end:
            if left[0].start - start >= _MIN_STRING:
                yield replace(piece, start=start, end=left[0].start)
            piece, start = unnamed, left[0].end
            while text.startswith(("\\n", "\\r"), start):
                start += 2
            yield left.popleft()
        if end - start >= _MIN_STRING:
            yield replace(piece, start=start, end=end)


def _between(outer: Segment, text: str, start: int, end: int) -> Iterator[Segment]:
    """Divide what stands between blocks at the markers of those whose ends are not known."""
    name = outer.name if start == 0 else ""  # As for strings.
    for marker in [*_MARKER.finditer(text, start, end), None]:
        stop = marker.start() if marker else end
        while not name and start < stop and text[start] in "\r\n":
            start += 1  # Lines of what has a name are counted from its beginning.
        if start < stop:
            yield replace(outer, start=start, end=stop, name=name)
        if marker:
            start, name = marker.end(), marker[1]


def section_of(segment: Segment, message: int, part: int | None) -> Section:
    """Return how a segment of a text is pointed at."""
    return Section(message, part, segment, segment.joint or ("\\n" if segment.in_json else "\n"))


def pieces_of(segment: Segment, text: str, section: Section) -> Pieces:
    """Take a segment of a text apart."""
    members = JsonMembers(text) if segment.joint else None
    spans = members.spans if members else [*_line_spans(text, segment)]
    return Pieces(section, [text[start:end] for start, end in spans], spans, members, {})


def _line_spans(text: str, segment: Segment) -> Iterator[tuple[int, int]]:
    start = segment.start
    if segment.in_json:
        for escaped in _JSON_ESCAPE.finditer(text, segment.start, segment.end):
            if escaped[1] == "n":
                yield start, escaped.start()
                start = escaped.end()
    else:
        while (end := text.find("\n", start, segment.end)) >= 0:
            yield start, end
            start = end + 1
    yield start, segment.end
