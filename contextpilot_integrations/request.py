"""A request on its way from its blocks to its plan."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from contextpilot_integrations.annotation import is_ambiguous, order_annotation
from contextpilot_integrations.block import ContextBlock
from contextpilot_integrations.index.tree import Insertion
from contextpilot_integrations.namespace import Namespace
from contextpilot_integrations.plan import Outcome, Plan

__all__ = ["Request"]


class Request:
    """A request's blocks, each once, and the order in which they are sent.

    Args:
        blocks: The request's context as given, best first; of equal blocks the first is sent.
        request_id: The id under which the engine may report its eviction.
        known: Returns for a block the first of its equals, which has its digest and label already, and
            its tokens.

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
        known: Callable[[ContextBlock], tuple[ContextBlock, int]],
    ) -> None:
        hash(request_id)  # An id that cannot be kept must fail before anything is recorded.
        self._blocks = blocks
        self._ranks: dict[Hashable, int] = {}
        relevance, weights = [], []
        for rank, given in enumerate(blocks):
            block, weight = known(given)
            given.adopt_digest(block)
            if block.digest not in self._ranks:
                self._ranks[block.digest] = rank
                relevance.append(block)
                weights.append(weight)
        self._relevance, self.weights, self.context = tuple(relevance), tuple(weights), tuple(self._ranks)
        self.ambiguous = is_ambiguous(relevance)
        self.order = [*self.context]
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
        ranks = tuple([self._ranks[digest] for digest in self.order])
        if self.ambiguous:
            outcome = Outcome.LABEL_COLLISION
        else:
            outcome = Outcome.UNCHANGED if [*ranks] == sorted(ranks) else Outcome.ALIGNED
        aligned = outcome is Outcome.ALIGNED
        return Plan(
            blocks=tuple([self._blocks[rank] for rank in ranks]),
            ranks=ranks,
            duplicates=tuple(sorted({*range(len(self._blocks))}.difference(ranks))),
            search_path=path,
            expected_cached_blocks=inserted.cached_blocks,
            expected_cached_tokens=inserted.cached_weight,
            order_annotation=order_annotation(self._relevance, order_template) if aligned else "",
            outcome=outcome,
            namespace=namespace,
            request_id=self.request_id,
        )
