"""Blocks as `ContextBlock.render` writes them: ``[CB_label] text``, one paragraph each."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from functools import lru_cache

from contextpilot_integrations.block import MARKER_START
from contextpilot_integrations.recognition.blocks import Form, Found
from contextpilot_integrations.recognition.claims import Claim
from contextpilot_integrations.recognition.texts import Texts, starts_line

__all__ = ["rendered_blocks"]

_MARKER = re.escape(MARKER_START) + r"[A-Za-z0-9_.-]{1,8}\]"
# A block without text is its marker alone.
_BLOCK_START = re.compile(rf"({_MARKER})(?: |(?=\r?\n)|\Z)")


def rendered_blocks(
    text: str, known: Texts, shown: Texts, order_template: str, whole_text_is_data: bool
) -> Iterator[Claim]:
    """Yield the blocks.

    A block ends before the empty line in front of the next marker or of the order annotation. Where neither
    follows, a question may, so that its end is known only from its text.
    """
    if MARKER_START not in text:
        return
    annotations = {found.start() for found in _order_annotation(order_template).finditer(text)}
    starts = [
        start
        for start in _BLOCK_START.finditer(text)
        if starts_line(text, start.start()) and start.start() not in annotations
    ]
    paragraphs = [start.start() for start in starts if _empty_line_before(text, start.start())]
    boundaries = deque(sorted([*paragraphs, *annotations]))
    end = 0
    for start in starts:
        if start.start() < end:
            continue  # Within the text of the block before.
        name, text_start = start[1], start.end()
        while boundaries and boundaries[0] < text_start:
            boundaries.popleft()
        from_form = None
        if boundaries:
            from_form = boundaries[0] - _empty_line_before(text, boundaries[0])
        elif whole_text_is_data:
            from_form = len(text)

        is_empty = text_start == start.end(1)
        from_known = [text_start] if is_empty else known.ends_at(text, text_start)
        ends = from_known or shown.ends_at(text, text_start, name)
        if from_form is not None and (not ends or from_form in ends):
            end = from_form
        elif ends:
            end = ends[0]
        else:
            yield Claim(Form.RENDERED, start.start(), len(text), None)
            return
        yield Claim(
            Form.RENDERED,
            start.start(),
            end,
            Found(start.start(), end, text_start, end, name),
            # What an earlier message showed may be no more than the beginning of this block's text.
            movable=end == from_form or end in from_known,
            end_from_form=end == from_form,
            end_from_known=end in from_known,
        )


def _empty_line_before(text: str, place: int) -> int:
    """Return the length of the line end and the empty line before a place; 0 if there are none."""
    if text.endswith("\r\n\r\n", 0, place):
        return 4
    return 2 if text.endswith("\n\n", 0, place) else 0


@lru_cache(maxsize=32)
def _order_annotation(template: str) -> re.Pattern[str]:
    before = re.escape(template.partition("{order}")[0])
    return re.compile(rf"(?:(?<=\n\n)|(?<=\r\n\r\n)){before}{_MARKER}(?: > {_MARKER})+")
