"""What no order of blocks can beat: a bound on the prefix-cache hits of a trace."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

__all__ = ["ReuseBound", "reuse_bound"]


@dataclass(frozen=True, slots=True)
class ReuseBound:
    """The most that can be found in the cache: blocks, or whatever they were weighed in.

    Attributes:
        hits: The bound.
        total: All requests' blocks together, each once a request.
        hits_per_request: Each request's part of the bound, in the order given.
    """

    hits: int
    total: int
    hits_per_request: tuple[int, ...] = field(default=(), compare=False, repr=False)

    @property
    def hit_ratio(self) -> float:
        """Hits over total; 0.0 where there are no blocks."""
        return self.hits / self.total if self.total else 0.0


def reuse_bound(
    contexts: Sequence[Sequence[Hashable]],
    *,
    order: Literal["arrival", "farthest"] = "arrival",
    weigh: Callable[[Any], int] = lambda _: 1,
) -> ReuseBound:
    """Sum over the requests the largest overlap with any one request served before.

    A request's hits are leading blocks that *one* earlier request had sent too, so its hits are at most
    that overlap, however both are ordered.

    "arrival" serves the requests as they came: the bound for online use. "farthest" bounds an offline
    plan, which may also choose the execution order. With an unlimited cache the hits of a plan (all
    blocks less the nodes of the trie) do not depend on the execution order, so the sum over *any* order
    of execution bounds them, and the smallest is the best. Farthest-first makes it small: the first
    request first, then always the one that overlaps least with those served (whose largest overlap
    with them is smallest), the earliest where several do.

    Args:
        contexts: Each request's blocks; duplicates inside a request count once.
        order: The order of execution.
        weigh: What a block is worth, for instance its tokens; at least 0. Each counts 1 by default.

    Raises:
        ValueError: If the order is another.
    """
    if order not in ("arrival", "farthest"):
        raise ValueError(f'order must be "arrival" or "farthest", not {order!r}')
    blocks, rows, holders = _incidence(contexts)
    weights = [weigh(block) for block in blocks]
    total = sum(weights[block] for row in rows for block in row)
    count = len(rows)
    indices = torch.arange(count)
    # One number per request: its largest overlap with those served so far, times the number of
    # requests, plus its index. The smallest is then the next one, and every tie has a rule.
    keys = indices.clone()
    served = torch.iinfo(keys.dtype).max
    hits = [0] * count
    for step in range(count):
        chosen = step if order == "arrival" else int(keys.argmin())
        hits[chosen] = int(keys[chosen]) // count
        # A row of the incidence matrix times its transpose, by the lists of who holds a block.
        overlaps = torch.zeros_like(keys)
        for block in rows[chosen]:
            overlaps[holders[block]] += weights[block]
        torch.maximum(keys, overlaps * count + indices, out=keys)
        keys[chosen] = served
    return ReuseBound(sum(hits), total, tuple(hits))


def _incidence(
    contexts: Sequence[Sequence[Hashable]],
) -> tuple[list[Hashable], list[list[int]], tuple[torch.Tensor, ...]]:
    """Number the blocks; return them, each request's blocks, and for each block the requests that hold it."""
    numbers: dict[Hashable, int] = {}
    rows = [[numbers.setdefault(block, len(numbers)) for block in dict.fromkeys(ctx)] for ctx in contexts]
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64)
    blocks = torch.tensor([block for row in rows for block in row], dtype=torch.int64)
    requests = torch.repeat_interleave(torch.arange(len(rows)), lengths)
    by_block = requests[torch.argsort(blocks, stable=True)]
    lists = torch.split(by_block, torch.bincount(blocks, minlength=len(numbers)).tolist())
    return list(numbers), rows, lists
