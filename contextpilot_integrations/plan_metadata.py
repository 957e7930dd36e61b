"""What a plan says of each of its blocks, as plain JSON: what adapters write into metadata.

There it may be pickled, serialized or filtered on its way to the prompt.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from itertools import pairwise
from types import MappingProxyType, NoneType
from typing import Any, TypedDict, cast

from contextpilot_integrations import annotation
from contextpilot_integrations.block import ContextBlock
from contextpilot_integrations.plan import Plan

__all__ = [
    "PLAN_KEY",
    "PlanMetadata",
    "copied",
    "order_annotation",
    "plan_entries",
    "ranks_in_order",
    "read_plan",
    "text_id",
]

PLAN_KEY = "contextpilot"

_IMMUTABLE = {str, int, float, bool, bytes, NoneType}


class PlanMetadata(TypedDict):
    """What ``metadata["contextpilot"]`` holds, plain JSON.

    Attributes:
        rank: The block's place among those retrieved, counted from 0, best first.
        position: Its place in the order to send, counted from 0.
        label: What its marker in the prompt shows.
        digest: 32 hex digits that stand for its id and text.
        shown_as: The location annotation that the prompt shows instead of its text, which the model can see
            in an earlier message. None where the text is sent.
        request: Hex digits, equal for all blocks that were planned together.
        outcome: What became of the request (`Outcome`).
        search_path: Where the request's node stands in the context index.
        expected_cached_blocks: How many leading blocks the engine should have cached.
        expected_cached_tokens: Their weight in tokens, by the pilot's token counter.
        order_template: The order annotation's wording.
        schedule_position: The request's turn in its batch, counted from 0. None where it was planned alone.
    """

    rank: int
    position: int
    label: str
    digest: str
    shown_as: str | None
    request: str
    outcome: str
    search_path: list[int]
    expected_cached_blocks: int
    expected_cached_tokens: int
    order_template: str
    schedule_position: int | None


def read_plan(metadata: Mapping[str, Any]) -> PlanMetadata | None:
    """Return what a pilot wrote into metadata; None where it never did."""
    entry = metadata.get(PLAN_KEY)
    if isinstance(entry, dict) and entry.keys() >= PlanMetadata.__required_keys__:
        return cast(PlanMetadata, entry)
    return None


def ranks_in_order(entries: Sequence[PlanMetadata | None]) -> list[int] | None:
    """Return the ranks of blocks that still stand in the order of one plan; some may be gone.

    None where there is no such plan. A later step that puts blocks in another order, or adds some,
    has the last word: its order is then the order of relevance.
    """
    known = [entry for entry in entries if entry]
    if len(known) < len(entries) or len({entry["request"] for entry in known}) > 1:
        return None
    if any(before["position"] >= after["position"] for before, after in pairwise(known)):
        return None
    return [entry["rank"] for entry in known]


def order_annotation(entries: Sequence[PlanMetadata | None], blocks: Sequence[ContextBlock]) -> str:
    """Return what tells the model the order of relevance of blocks that a prompt shows.

    Empty where they stand in that order, did not all come from one plan or were reordered since, and where
    markers would be ambiguous.

    Args:
        entries: What the plan said of each block, as they stand in the prompt.
        blocks: The blocks.
    """
    ranks = ranks_in_order(entries)
    if not ranks or all(before < after for before, after in pairwise(ranks)):
        return ""
    if annotation.is_ambiguous(blocks):
        return ""
    relevance = [block for _, block in sorted(zip(ranks, blocks, strict=True), key=lambda ranked: ranked[0])]
    template = entries[0]["order_template"] if entries[0] else annotation.ORDER_TEMPLATE
    return annotation.order_annotation(relevance, template)


def plan_entries(
    plan: Plan,
    ranks: Sequence[int],
    *,
    order_template: str,
    schedule_position: int | None = None,
    annotations: Mapping[int, str] = MappingProxyType({}),
) -> list[tuple[int, PlanMetadata]]:
    """Return for each block in the order to send its place in the request, and what the plan says of it.

    Args:
        plan: What the pilot planned.
        ranks: What to call the rank of each block of the request.
        order_template: The pilot's.
        schedule_position: The request's turn in its batch.
        annotations: What the prompt shows instead of a block's text, by its place in the request.
    """
    relevance = sorted(zip(plan.ranks, plan.blocks, strict=True), key=lambda ranked: ranked[0])
    request = hashlib.blake2b(b"".join(block.digest for _, block in relevance), digest_size=8).hexdigest()
    return [
        (
            place,
            PlanMetadata(
                rank=ranks[place],
                position=position,
                label=block.label,
                digest=block.digest.hex(),
                shown_as=annotations.get(place),
                request=request,
                outcome=plan.outcome.value,
                search_path=list(plan.search_path),
                expected_cached_blocks=plan.expected_cached_blocks,
                expected_cached_tokens=plan.expected_cached_tokens,
                order_template=order_template,
                schedule_position=schedule_position,
            ),
        )
        for position, (place, block) in enumerate(zip(plan.ranks, plan.blocks, strict=True))
    ]


def text_id(text: str) -> str:
    """Return an id for a block that came without one: a digest of its text."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def copied(value: Any) -> Any:
    """Copy a value all the way down; what refuses (a lock, a client) is shared.

    Plain JSON takes a tenth of `deepcopy`'s time, and a part that refuses does not make the rest shared.
    """
    kind = type(value)
    if kind in _IMMUTABLE:
        return value
    if kind is dict:
        return {key: part if type(part) in _IMMUTABLE else copied(part) for key, part in value.items()}
    if kind is list:
        return [part if type(part) in _IMMUTABLE else copied(part) for part in value]
    try:
        return deepcopy(value)
    except Exception:
        return value
