"""Paired differences, and how sure they are: the bootstrap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

__all__ = ["CONFIDENCE", "MeanInterval", "bootstrap_mean"]

CONFIDENCE = 0.95
"""The share of such intervals that hold the true mean."""


@dataclass(frozen=True, slots=True)
class MeanInterval:
    """A mean, and the interval that the bootstrap gives it.

    Attributes:
        mean: Of the values given.
        low: The lower end of the interval.
        high: Its upper end.
    """

    mean: float
    low: float
    high: float


def bootstrap_mean(values: Sequence[float], *, resamples: int = 10_000, seed: int = 0) -> MeanInterval:
    """Return the mean of paired differences with its 95 % percentile bootstrap interval.

    Items are drawn with replacement, as many as there are; the interval holds the middle 95 % of the means
    so found. Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13.

    Args:
        values: One difference per item, shape (items,); items are taken as independent.
        resamples: How often items are drawn.
        seed: Where the random numbers start: the same values give the same interval.

    Raises:
        ValueError: If there are no values.
    """
    if not values:
        raise ValueError("there are no values to draw from; measure one item at least")
    sample = torch.tensor(values, dtype=torch.float64)
    draws = torch.randint(
        len(values), (resamples, len(values)), generator=torch.Generator().manual_seed(seed)
    )
    tail = (1 - CONFIDENCE) / 2
    low, high = torch.quantile(sample[draws].mean(dim=1), sample.new_tensor([tail, 1 - tail])).tolist()
    return MeanInterval(sample.mean().item(), low, high)
