"""How context blocks are found in the text of a chat message."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain

from contextpilot_integrations.annotation import ORDER_TEMPLATE
from contextpilot_integrations.recognition.blocks import Blocks, Form, Found, escape, unescape
from contextpilot_integrations.recognition.claims import Claim, is_json
from contextpilot_integrations.recognition.json_arrays import json_arrays
from contextpilot_integrations.recognition.known import known_blocks
from contextpilot_integrations.recognition.numbered import numbered_blocks
from contextpilot_integrations.recognition.rendered import rendered_blocks
from contextpilot_integrations.recognition.texts import Texts
from contextpilot_integrations.recognition.xml_documents import xml_documents

__all__ = ["Blocks", "Form", "Found", "Texts", "escape", "find_blocks", "is_json", "unescape"]

_SEPARATORS = {
    Form.RENDERED: re.compile(r"\n\n|\r\n\r\n"),
    Form.KNOWN: re.compile(r"\s*"),
    Form.XML: re.compile(r"\s*"),
    Form.JSON: re.compile(r"[ \t\n\r]*,[ \t\n\r]*"),
    Form.NUMBERED: re.compile(r"\s*"),
}
_FENCE = re.compile(r"^ {0,3}(```|~~~)[^\n]*", re.MULTILINE)
# Ours, or named by the caller: blocks in code too, and behind a block whose end is not known.
_CERTAIN = {Form.RENDERED, Form.KNOWN}


def find_blocks(
    text: str,
    *,
    known: Texts | Iterable[str] = (),
    shown: Texts | None = None,
    whole_text_is_data: bool = False,
    order_template: str = ORDER_TEMPLATE,
) -> tuple[Blocks, ...]:
    """Find the context blocks in a text; never one behind which somebody's own words may begin unseen.

    What stands between two blocks of our rendering, or between two items of one list, belongs to the first of
    them: nothing else tells where its text ends. Of blocks that overlap, the one that begins first is found.
    Code between fences is left alone, but for blocks that we rendered and known texts. Takes time in
    proportion to the text.

    Args:
        text: The text of a message, or of one part of its content.
        known: Texts that stand in it verbatim, each from the beginning of a line to the end of one. They are
            found in whatever JSON escapes them, too.
        shown: The texts of blocks that earlier messages showed (`Texts.add_shown`), by which it is seen where
            the last block of a message ends.
        whole_text_is_data: Whether nobody's own words can follow the last block, as in a tool's answer.
        order_template: The wording of the order annotation, before which the last block ends.

    Returns:
        Blocks of one form with nothing but separators between them are together; all in the order in which
        they stand, not overlapping.
    """
    known_texts, shown_texts = known if isinstance(known, Texts) else Texts(known), shown or Texts()
    claims = chain(
        rendered_blocks(text, known_texts, shown_texts, order_template, whole_text_is_data),
        known_blocks(text, known_texts),
        xml_documents(text),
        json_arrays(text),
        numbered_blocks(text, known_texts, shown_texts, whole_text_is_data),
    )
    return tuple(_grouped(text, _agreed(text, sorted(claims, key=_precedence))))


def _precedence(claim: Claim) -> tuple[int, bool]:
    return claim.start, claim.form is not Form.KNOWN


def _agreed(text: str, claims: list[Claim]) -> Iterator[Claim]:
    """Yield the claims on blocks that hold, out of all in the order of their beginnings."""
    fences = deque(_fences(text) if claims else ())
    reached = quiet = 0  # Up to where the last block, and what must be left alone, reach.
    for claim in claims:
        while fences and fences[0][0] < claim.start:
            start, end = fences.popleft()
            if start >= max(reached, quiet):
                quiet = end
        if claim.start < reached or (claim.form not in _CERTAIN and claim.start < quiet):
            continue
        if claim.found is None:
            quiet = claim.end
        else:
            reached = claim.end
            yield claim


def _fences(text: str) -> list[tuple[int, int]]:
    """Return where each line that may open code begins, and where the code would end."""
    fences: list[tuple[int, int]] = []
    closing: dict[str, int] = {}
    for fence in reversed(list(_FENCE.finditer(text))):
        if fence[1] in closing:
            fences.append((fence.start(), closing[fence[1]]))
        closing[fence[1]] = fence.end()
    return fences[::-1]


def _grouped(text: str, claims: Iterable[Claim]) -> Iterator[Blocks]:
    run: list[Claim] = []
    for claim in claims:
        if run and not _are_neighbours(text, run[-1], claim):
            yield from _groups(run)
            run = []
        run.append(claim)
    yield from _groups(run)


def _are_neighbours(text: str, before: Claim, after: Claim) -> bool:
    alike = before.form is after.form and before.movable == after.movable
    return alike and _SEPARATORS[before.form].fullmatch(text, before.end, after.start) is not None


def _groups(run: list[Claim]) -> Iterator[Blocks]:
    together = len(run)
    # Where the last one's end is seen from its text alone, only one that is known too can take its place.
    while together > 1 and not run[together - 1].end_from_form:
        if all(claim.end_from_known for claim in run[:together]):
            break
        together -= 1
    for claims in [run[:together], *([claim] for claim in run[together:])]:
        if claims:
            found = tuple(claim.found for claim in claims if claim.found)
            yield Blocks(claims[0].form, found, claims[0].movable)
