"""What tells the model the order of relevance that alignment has changed, and where left-out text stands."""

from __future__ import annotations

import re
from collections.abc import Sequence

from contextpilot_integrations.block import MARKER_START, ContextBlock, marker

__all__ = [
    "LOCATION_TEMPLATE",
    "ORDER_TEMPLATE",
    "PASSAGE_TEMPLATE",
    "check_template",
    "is_ambiguous",
    "location_annotation",
    "members_annotation",
    "order_annotation",
    "passage_annotation",
]

ORDER_TEMPLATE = "Please read the context in the following priority order: {order} and answer the question."
LOCATION_TEMPLATE = "Please refer to {source} in the previous conversation."
PASSAGE_TEMPLATE = '[{range} of {source}, shown above: "{quote}"]'


def order_annotation(relevance: Sequence[ContextBlock], template: str = ORDER_TEMPLATE) -> str:
    """Name the blocks in their order of relevance, best first, by the markers that the prompt shows."""
    return template.replace("{order}", " > ".join([marker(block.label) for block in relevance]))


def location_annotation(source: str, template: str = LOCATION_TEMPLATE) -> str:
    """Say where the text of a whole block stands.

    Args:
        source: What the messages show of it: a marker, a tool's call, or its first line in quotes.
        template: The wording.
    """
    return template.replace("{source}", source)


def passage_annotation(
    first: int, last: int, source: str, quote: str, template: str = PASSAGE_TEMPLATE, *, times: int = 1
) -> str:
    """Say where a passage stands.

    Args:
        first: Its first line in the source, counted from 1.
        last: Its last line.
        source: What the messages show of the text that has it.
        quote: How it begins.
        template: The wording.
        times: How often it is left out, one right behind the other.
    """
    lines = f"line {first}" if first == last else f"lines {first}-{last}"
    return _filled(lines, source, quote, template, times)


def members_annotation(
    count: int, source: str, quote: str, template: str = PASSAGE_TEMPLATE, *, times: int = 1
) -> str:
    """Say where members of JSON stand.

    Args:
        count: How many, one behind the other.
        source: What the messages show of the text that has them.
        quote: How they begin.
        template: The wording.
        times: How often all of them are left out, one right behind the other.
    """
    return _filled("1 item" if count == 1 else f"{count} items", source, quote, template, times)


def _filled(range_: str, source: str, quote: str, template: str, times: int) -> str:
    parts = {
        "{range}": range_ if times == 1 else f"{times} times {range_}",
        "{source}": source,
        "{quote}": quote,
    }
    # In one go, so that a brace in a name or a quote is never taken for a place to fill.
    return re.sub(r"\{(?:range|source|quote)\}", lambda place: parts[place[0]], template)


def check_template(name: str, template: str, place: str, *, one_line: bool = False) -> str:
    """Return the template.

    Args:
        name: The argument that it came by.
        template: The wording.
        place: What it must contain.
        one_line: Whether it must not have several lines.

    Raises:
        ValueError: If it has no such place, or several lines where it must not.
    """
    if not isinstance(template, str) or place not in template:
        raise ValueError(f'{name} must be a str that contains "{place}"')
    if one_line and len(template.splitlines()) > 1:
        raise ValueError(f"{name} must be one line, since texts are compared line by line")
    return template


def is_ambiguous(blocks: Sequence[ContextBlock]) -> bool:
    """Tell whether an annotation could be read as naming the wrong text.

    So it is where two blocks have the same label, and where a block's own text shows a marker.
    """
    labels = {block.label for block in blocks}
    return len(labels) < len(blocks) or any(MARKER_START in block.text for block in blocks)
