"""Blocks whose texts the caller knows, wherever they stand."""

from __future__ import annotations

import re
from collections.abc import Iterator

from contextpilot_integrations.recognition.blocks import Form, Found, unescape
from contextpilot_integrations.recognition.claims import Claim, is_json
from contextpilot_integrations.recognition.json_arrays import STRING
from contextpilot_integrations.recognition.texts import Texts

__all__ = ["known_blocks"]

_LINE_START = re.compile(r"^", re.MULTILINE)
_ESCAPE = re.compile(r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)")


def known_blocks(text: str, known: Texts) -> Iterator[Claim]:
    """Yield the blocks; each begins and ends with a line, or with a line of a JSON string."""
    if not known:
        return
    for start, end in _places(text, known):
        yield Claim(Form.KNOWN, start, end, Found(start, end, start, end))
    if not text.lstrip().startswith(("{", "[", '"')) or not is_json(text):
        return
    for string in STRING.finditer(text):
        inside = string[0][1:-1]
        # Found in the unescaped text, so that it does not matter how the writer escapes.
        places = [place for stretch in _places(unescape(inside), known) for place in stretch]
        written = _written_places(inside, places)
        for start, end in zip(written[::2], written[1::2], strict=True):
            start, end = string.start() + 1 + start, string.start() + 1 + end
            yield Claim(Form.KNOWN, start, end, Found(start, end, start, end, in_json=True), movable=False)


def _places(text: str, known: Texts) -> Iterator[tuple[int, int]]:
    reached = 0
    for line in _LINE_START.finditer(text):
        start = line.start()
        if start >= reached and (ends := known.ends_at(text, start)):
            reached = ends[0]
            yield start, reached


def _written_places(inside: str, places: list[int]) -> list[int]:
    """Return where places of a text, in their order, lie in how it is written inside a JSON string."""
    written: list[int] = []
    ahead = 0  # By how much the written text is longer so far.
    escapes = _ESCAPE.finditer(inside)
    escape = next(escapes, None)
    for place in places:
        while escape is not None and escape.start() < place + ahead:
            ahead += len(escape[0]) - 1
            escape = next(escapes, None)
        written.append(place + ahead)
    return written
