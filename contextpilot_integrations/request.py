"""A request on its way from its blocks to its plan."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from contextpilot_integrations.annotation import is_ambiguous, order_annotation
from contextpilot_integrations.block import ContextBlock, collapse_duplicates
from contextpilot_integrations.index.tree import Insertion
from contextpilot_integrations.namespace import Namespace
from contextpilot_integrations.plan import Outcome, Plan

__all__ = ["Request"]


class Request:
    """A request's blocks, each once, and the order in which they are sent.

    Attributes:
        context: The digests of the blocks, best first.
        weights: The tokens of each.
        ambiguous: Whether its markers would be ambiguous, so that it has to go out in its own order.
        order: The digests in the order to send; the own order until alignment says otherwise.
        request_id: The id under which the engine may report its eviction.
    """

    def __init__(
        self,
        blocks: Sequence[ContextBlock],
        request_id: Hashable | None,
        weight: Callable[[ContextBlock], int],
    ) -> None:
        self._collapsed = collapse_duplicates(blocks)
        self.context: list[Hashable] = [block.digest for block in self._collapsed.blocks]
        self.weights = [weight(block) for block in self._collapsed.blocks]
        self.ambiguous = is_ambiguous(self._collapsed.blocks)
        self.order = self.context
        self.request_id = request_id

    @property
    def order_weights(self) -> list[int]:
        """The tokens of each block in the order to send."""
        weight = dict(zip(self.context, self.weights, strict=True))
        return [weight[block] for block in self.order]

    def plan(
        self, order_template: str, namespace: Namespace, inserted: Insertion, path: tuple[int, ...]
    ) -> Plan:
        """Return the plan, once the index has taken the request up."""
        blocks, ranks = self._collapsed.blocks, self._collapsed.ranks
        place = {digest: place for place, digest in enumerate(self.context)}
        places = [place[digest] for digest in self.order]
        if self.ambiguous:
            outcome = Outcome.LABEL_COLLISION
        else:
            outcome = Outcome.UNCHANGED if self.order == self.context else Outcome.ALIGNED
        return Plan(
            blocks=tuple(blocks[place] for place in places),
            ranks=tuple(ranks[place] for place in places),
            duplicates=self._collapsed.duplicates,
            search_path=path,
            expected_cached_blocks=inserted.cached_blocks,
            expected_cached_tokens=inserted.cached_weight,
            order_annotation=order_annotation(blocks, order_template) if outcome is Outcome.ALIGNED else "",
            outcome=outcome,
            namespace=namespace,
            request_id=self.request_id,
        )
