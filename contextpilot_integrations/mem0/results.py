"""What Mem0's search returns: its memories as context blocks, and copies of them with the plan beside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypedDict

from contextpilot_integrations.block import BlockId, ContextBlock
from contextpilot_integrations.plan import Plan
from contextpilot_integrations.plan_metadata import PLAN_KEY, copied, text_id

__all__ = ["PLAN_KEY", "MemoryEntry", "PlanEntry", "blocks_of", "planned_result", "to_block"]


class MemoryEntry(TypedDict):
    """What ``memory["contextpilot"]`` holds, plain JSON.

    Attributes:
        rank: The memory's place among those found, counted from 0, best first.
        position: Its place in the order to send, counted from 0. None where an equal one stands before it,
            or where it has no text.
        label: What its marker in the prompt shows; empty where it has no text.
        shown_as: The annotation that stands for it in the turn's text, and perhaps for its neighbours, since
            the model can see it in an earlier message. None where it is written in full.
        replaces: The label under which an earlier message shows the text that this one was updated from.
    """

    rank: int
    position: int | None
    label: str
    shown_as: str | None
    replaces: str | None


class PlanEntry(TypedDict):
    """What ``found["contextpilot"]`` holds, plain JSON.

    Attributes:
        order: The ranks of the memories in the order to send.
        order_annotation: What tells the model the order of relevance; empty where it is the order to send.
        order_template: That annotation's wording.
        outcome: What became of the request (`Outcome`).
        tenant: Whose memories these are, as JSON.
        search_path: Where the request's node stands in the context index.
        expected_cached_blocks: How many leading memories the engine should have cached.
        expected_cached_tokens: Their weight in tokens, by the pilot's token counter.
    """

    order: list[int]
    order_annotation: str
    order_template: str
    outcome: str
    tenant: str
    search_path: list[int]
    expected_cached_blocks: int
    expected_cached_tokens: int


def blocks_of(found: object) -> list[ContextBlock]:
    """Return the context blocks of the memories that a search found, best first.

    A memory whose text is None has no block.

    Raises:
        TypeError: If it is not what Mem0's search returns.
    """
    memories = found.get("results") if isinstance(found, Mapping) else None
    if not isinstance(memories, list | tuple):
        raise TypeError(f'a search must return a dict with "results", not {type(found).__name__}')
    return [to_block(memory) for memory in memories if not _has_no_text(memory)]


def to_block(memory: Mapping[str, Any]) -> ContextBlock:
    """Return the context block that a memory is: its id and its text, nothing that changes with the query.

    Of a memory without an id, a digest of its text is one.

    Raises:
        TypeError: If it is no memory of Mem0's.
    """
    text = memory.get("memory") if isinstance(memory, Mapping) else None
    if not isinstance(text, str):
        raise TypeError('a memory must be a dict with its text under "memory"')
    identity: BlockId | None = memory.get("id")
    return ContextBlock(text_id(text) if identity is None else identity, text)


def planned_result(
    found: Mapping[str, Any],
    blocks: Sequence[ContextBlock],
    plan: Plan,
    order_template: str,
    *,
    shown_as: Mapping[int, str] = MappingProxyType({}),
    replaces: Mapping[int, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return a copy of what a search found, in its own order, with the plan beside.

    Args:
        found: What Mem0 returned.
        blocks: Its memories' blocks.
        plan: Theirs.
        order_template: The wording of the order annotation.
        shown_as: The annotations that are shown instead of memories, by their blocks' places.
        replaces: The labels of what memories were updated from, by their blocks' places.
    """
    memories: Sequence[Mapping[str, Any]] = found["results"]
    # The plan counts blocks, the entries count memories.
    ranks = [rank for rank, memory in enumerate(memories) if not _has_no_text(memory)]
    entries = [
        MemoryEntry(rank=rank, position=None, label="", shown_as=None, replaces=None)
        for rank in range(len(memories))
    ]
    for place, (rank, block) in enumerate(zip(ranks, blocks, strict=True)):
        entries[rank]["label"] = block.label
        entries[rank]["shown_as"] = shown_as.get(place)
        entries[rank]["replaces"] = replaces.get(place)
    for position, place in enumerate(plan.ranks):
        entries[ranks[place]]["position"] = position
    results = [
        copied(dict(memory)) | {PLAN_KEY: entry} for memory, entry in zip(memories, entries, strict=True)
    ]
    entry = PlanEntry(
        order=[ranks[place] for place in plan.ranks],
        order_annotation=plan.order_annotation,
        order_template=order_template,
        outcome=plan.outcome.value,
        tenant=plan.namespace.tenant,
        search_path=list(plan.search_path),
        expected_cached_blocks=plan.expected_cached_blocks,
        expected_cached_tokens=plan.expected_cached_tokens,
    )
    # "results" keeps its place among the keys.
    rest = {key: None if key == "results" else copied(value) for key, value in found.items()}
    return {**rest, "results": results, PLAN_KEY: entry}


def _has_no_text(memory: object) -> bool:
    return isinstance(memory, Mapping) and memory.get("memory", "") is None
