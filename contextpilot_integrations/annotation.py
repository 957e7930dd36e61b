"""What tells the model the order of relevance that alignment has changed, and where left-out text stands."""

from __future__ import annotations

import re
from collections.abc import Sequence

from contextpilot_integrations.block import MARKER_START, ContextBlock, marker

__all__ = [
    "LOCATION_TEMPLATE",
    "ORDER_TEMPLATE",
    "PASSAGE_TEMPLATE",
    "check_location_template",
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

_PLACES = ("{range}", "{source}", "{quote}")
_PLACE = re.compile("|".join(map(re.escape, _PLACES)))
_MIN_OWN = 8  # Bytes of UTF-8 without spaces: 8 letters, or 3 Chinese characters.


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
    return _PLACE.sub(lambda place: parts[place[0]], template)


def check_template(name: str, template: str, place: str) -> str:
    """Return a template that contains a place.

    Args:
        name: The argument that it came by.
        template: The wording.
        place: What it must contain.

    Raises:
        ValueError: If it has no such place.
    """
    if not isinstance(template, str) or place not in template:
        raise ValueError(f'{name} must be a str that contains "{place}"')
    return template


def check_location_template(name: str, template: str, *places: str) -> str:
    """Return a template by which a line is told from all others.

    Lines that look like an annotation stay as they are, so one that any line looks like would do nothing.

    Args:
        name: The argument that it came by.
        template: The wording.
        places: What it may contain, each once; the first it must.

    Raises:
        ValueError: If it has other places, several lines, or too few words of its own.
    """
    check_template(name, template, places[0])
    if len(template.splitlines()) > 1:
        raise ValueError(f"{name} must be one line, since texts are compared line by line")
    if any(template.count(place) > (place in places) for place in _PLACES):
        raise ValueError(f"{name} must have no places but {' and '.join(places)}, and each only once")
    # A range is told from other words too.
    own = _PLACE.sub(lambda found: "line 1" if found[0] == "{range}" else "", template)
    if len("".join(own.split()).encode("utf-8", "surrogatepass")) < _MIN_OWN:
        raise ValueError(
            f"{name} must have words of its own beside {' and '.join(places)}, at least {_MIN_OWN} bytes "
            "without spaces, or other lines would be taken for it"
        )
    return template


def is_ambiguous(blocks: Sequence[ContextBlock]) -> bool:
    """Tell whether an annotation could be read as naming the wrong text.

    So it is where two blocks have the same label, and where a block's own text shows a marker.
    """
    labels = {block.label for block in blocks}
    return len(labels) < len(blocks) or any(MARKER_START in block.text for block in blocks)
