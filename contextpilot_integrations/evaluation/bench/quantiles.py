"""Quantiles of what was measured."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

__all__ = ["nearest_rank"]


def nearest_rank(values: Iterable[int], share: float) -> int:
    """Return the smallest value that so large a share of all is at most.

    Raises:
        ValueError: If there is none.
    """
    ordered = sorted(values)
    if not ordered:
        raise ValueError("there are no values to rank")
    return ordered[ceil(share * len(ordered)) - 1]
