"""What a search found, as a prompt's text."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from contextpilot_integrations.annotation import order_annotation
from contextpilot_integrations.mem0.results import PLAN_KEY, to_block

__all__ = ["format_memories"]


def format_memories(found: Mapping[str, Any]) -> str:
    """Write what a planned search found into a prompt of its own; put the question behind it.

    Each memory is a paragraph, a marker and its text, in the order to send; the order of relevance is told
    behind them where it is another one. A memory whose text is None is left out, and others may have been
    dropped from ``found["results"]`` meanwhile. In a chat that goes on, `ContextPilotMemory.turn_context`
    repeats nothing.

    Args:
        found: What `ContextPilotMemory.search` returned.

    Raises:
        ValueError: If there is no plan in it.
    """
    if PLAN_KEY not in found:
        raise ValueError(
            f'there is no plan under "{PLAN_KEY}": give what ContextPilotMemory.search returned; '
            "where that had to return it without, it logged a warning"
        )
    planned = [
        (memory[PLAN_KEY], to_block(memory))
        for memory in found["results"]
        if memory[PLAN_KEY]["position"] is not None
    ]
    planned.sort(key=lambda entry_and_block: entry_and_block[0]["position"])
    paragraphs = [block.render() for _, block in planned]
    ranks = [entry["rank"] for entry, _ in planned]
    relevance = [block for _, block in sorted(planned, key=lambda planned: planned[0]["rank"])]
    if any(before > after for before, after in pairwise(ranks)):
        paragraphs.append(order_annotation(relevance, found[PLAN_KEY]["order_template"]))
    return "\n\n".join(paragraphs)
