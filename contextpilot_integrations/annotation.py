"""What tells the model the order of relevance that alignment has changed."""

from __future__ import annotations

from collections.abc import Sequence

from contextpilot_integrations.block import MARKER_START, ContextBlock, marker

__all__ = ["ORDER_TEMPLATE", "check_order_template", "is_ambiguous", "order_annotation"]

ORDER_TEMPLATE = "Please read the context in the following priority order: {order} and answer the question."


def order_annotation(relevance: Sequence[ContextBlock], template: str = ORDER_TEMPLATE) -> str:
    """Name the blocks in their order of relevance, best first, by the markers that the prompt shows."""
    return template.replace("{order}", " > ".join([marker(block.label) for block in relevance]))


def check_order_template(template: str) -> str:
    """Return the template.

    Raises:
        ValueError: If it has no place for the order.
    """
    if not isinstance(template, str) or "{order}" not in template:
        raise ValueError('order_template must be a str that contains "{order}", where the blocks are named')
    return template


def is_ambiguous(blocks: Sequence[ContextBlock]) -> bool:
    """Tell whether an annotation could be read as naming the wrong text.

    So it is where two blocks have the same label, and where a block's own text shows a marker.
    """
    labels = {block.label for block in blocks}
    return len(labels) < len(blocks) or any(MARKER_START in block.text for block in blocks)
