"""The contexts that the benchmarks plan."""

from __future__ import annotations

from bisect import bisect
from itertools import accumulate
from random import Random

__all__ = ["BLOCKS", "draw_contexts"]

BLOCKS = 600
"""From how many blocks contexts are drawn."""


def draw_contexts(count: int, k: int, *, seed: int = 0) -> list[list[int]]:
    """Draw contexts by Zipf (s = 1): block n comes up in proportion to 1 / (n + 1).

    The same on every machine, and a smaller count gives the first of the same contexts: Python keeps
    what a seed gives in `Random.random`, so nothing else is drawn with.

    Args:
        count: How many contexts.
        k: Blocks in each, all different; those drawn first stand first.
        seed: Where the random numbers start.

    Raises:
        ValueError: If ``count`` is less than 1, or ``k`` not from 1 to 600.
    """
    if count < 1:
        raise ValueError(f"contexts must be at least 1, not {count}")
    if not 1 <= k <= BLOCKS:
        raise ValueError(f"k must be from 1 to {BLOCKS}, the blocks that contexts are drawn from, not {k}")
    bounds = list(accumulate(1 / (block + 1) for block in range(BLOCKS)))
    random = Random(seed).random

    def draw() -> list[int]:
        drawn: dict[int, None] = {}
        while len(drawn) < k:
            drawn[min(bisect(bounds, random() * bounds[-1]), BLOCKS - 1)] = None
        return list(drawn)

    return [draw() for _ in range(count)]
