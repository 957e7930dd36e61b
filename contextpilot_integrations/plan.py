"""Plans: what to send for a request, and for a batch also in which order."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import StrEnum

from contextpilot_integrations.block import BlockId, ContextBlock
from contextpilot_integrations.namespace import Namespace

__all__ = ["BatchPlan", "Outcome", "Plan"]


class Outcome(StrEnum):
    """What became of a request."""

    ALIGNED = "aligned"
    """Sent in another order than retrieved."""
    UNCHANGED = "unchanged"
    """Planned, and the order retrieved is the order to send."""
    LABEL_COLLISION = "label_collision"
    """Left in the order retrieved, since markers in the prompt would be ambiguous."""
    FAILED = "failed"
    """Left exactly as given, duplicates too, since planning or rewriting failed."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to send for one request.

    Attributes:
        blocks: The context blocks in the order to send.
        ranks: For each of them its place in the request as given, counted from 0, best first.
        duplicates: The places in the request that are not sent, since an equal block stands before them.
        search_path: Where the request's node stands in the context index; follow it with
            `ContextIndex.traverse`. Empty where nothing was recorded.
        expected_cached_blocks: How many leading blocks the engine should have cached.
        expected_cached_tokens: Their weight in tokens, by the pilot's token counter. Where the engine's KV
            events are followed, all leading tokens of the prompt that the engine has cached.
        order_annotation: The text for right before the question; empty where the order is the original.
        outcome: What became of the request.
        namespace: Where its cache lives.
        request_id: The id under which the engine may report its eviction.
    """

    blocks: tuple[ContextBlock, ...]
    ranks: tuple[int, ...]
    duplicates: tuple[int, ...] = ()
    search_path: tuple[int, ...] = ()
    expected_cached_blocks: int = 0
    expected_cached_tokens: int = 0
    order_annotation: str = ""
    outcome: Outcome = Outcome.UNCHANGED
    namespace: Namespace = field(default_factory=Namespace)
    request_id: Hashable | None = None

    @property
    def block_ids(self) -> tuple[BlockId, ...]:
        """The ids in the order to send."""
        return tuple(block.id for block in self.blocks)

    def render(self) -> str:
        """Return the blocks as the prompt shows them, one paragraph each."""
        return "\n\n".join(block.render() for block in self.blocks)


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """What to send for a batch.

    Attributes:
        plans: One per request, in the order given.
        schedule: The places of the requests in the order to run them.
    """

    plans: tuple[Plan, ...]
    schedule: tuple[int, ...]
