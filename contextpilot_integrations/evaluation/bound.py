"""What no order of blocks can beat: a bound on the prefix-cache hits of a trace."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

__all__ = ["ReuseBound", "reuse_bound"]


@dataclass(frozen=True, slots=True)
class ReuseBound:
    """The most blocks that can be found in the cache.

    Attributes:
        hits: The bound, in blocks.
        total: How many blocks all requests have together, each once a request.
    """

    hits: int
    total: int

    @property
    def hit_ratio(self) -> float:
        """Hits over total; 0.0 where there are no blocks."""
        return self.hits / self.total if self.total else 0.0


def reuse_bound(
    contexts: Sequence[Sequence[Hashable]], *, order: Literal["arrival", "farthest"] = "arrival"
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

    Raises:
        ValueError: If the order is another.
    """
    if order not in ("arrival", "farthest"):
        raise ValueError(f'order must be "arrival" or "farthest", not {order!r}')
    rows, holders = _incidence(contexts)
    total = sum(map(len, rows))
    count = len(rows)
    indices = torch.arange(count)
    # One number per request: its largest overlap with those served so far, times the number of
    # requests, plus its index. The smallest is then the next one, and every tie has a rule.
    keys = indices.clone()
    served = torch.iinfo(keys.dtype).max
    hits = 0
    for step in range(count):
        chosen = step if order == "arrival" else int(keys.argmin())
        hits += int(keys[chosen]) // count
        if rows[chosen]:
            # A row of the incidence matrix times its transpose, by the lists of who holds a block.
            overlaps = torch.bincount(torch.cat([holders[block] for block in rows[chosen]]), minlength=count)
            torch.maximum(keys, overlaps * count + indices, out=keys)
        keys[chosen] = served
    return ReuseBound(hits, total)


def _incidence(contexts: Sequence[Sequence[Hashable]]) -> tuple[list[list[int]], tuple[torch.Tensor, ...]]:
    """Number the blocks; return each request's blocks, and for each block the requests that hold it."""
    numbers: dict[Hashable, int] = {}
    rows = [[numbers.setdefault(block, len(numbers)) for block in dict.fromkeys(ctx)] for ctx in contexts]
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64)
    blocks = torch.tensor([block for row in rows for block in row], dtype=torch.int64)
    requests = torch.repeat_interleave(torch.arange(len(rows)), lengths)
    by_block = requests[torch.argsort(blocks, stable=True)]
    return rows, torch.split(by_block, torch.bincount(blocks, minlength=len(numbers)).tolist())
