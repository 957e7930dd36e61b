"""Paired comparisons and how sure they are: ratios and differences, with intervals from the bootstrap."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal

import torch

from contextpilot_integrations.evaluation.bound import reuse_bound

__all__ = [
    "CONFIDENCE",
    "MeanInterval",
    "PrefillFit",
    "Ratio",
    "bootstrap_mean",
    "bound_cached_tokens",
    "fit_prefill",
    "ratio_of_sums",
]

CONFIDENCE = 0.95
"""The share of such intervals that hold the true mean."""

_RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of two sums over the same requests. None is unknown, or has nothing to be divided by.

    Attributes:
        value: The ratio.
        low: Where its 95 % interval begins.
        high: Where it ends.
        bound: The largest that the trace allows.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    bound: float | None = None

    @property
    def bound_share(self) -> float | None:
        """The share of the largest ratio that was reached."""
        return self.value / self.bound if self.value is not None and self.bound else None

    def to_dict(self, name: str) -> dict[str, float | None]:
        """Return the figures under names that start with the ratio's."""
        return {
            name: self.value,
            f"{name}_low": self.low,
            f"{name}_high": self.high,
            f"{name}_bound": self.bound,
            f"{name}_bound_share": self.bound_share,
        }


def ratio_of_sums(
    numerators: Sequence[float],
    denominators: Sequence[float],
    *,
    constants: tuple[float, float] = (0.0, 0.0),
    bound: float | None = None,
) -> Ratio:
    """Divide two sums over the same requests, with a 95 % bootstrap interval.

    Requests are drawn with replacement, each with what it took on both sides, since a long prompt is long on
    both; the interval is that of the middle 95 % of 2,000 such ratios. The same figures give the same
    interval.

    Args:
        numerators: What each request took on one side.
        denominators: What it took on the other.
        constants: What is added to either sum, whoever is drawn.
        bound: The largest ratio possible.

    Raises:
        ValueError: If there are not as many of one as of the other.
    """
    if len(numerators) != len(denominators):
        raise ValueError(f"{len(numerators)} numerators cannot be paired with {len(denominators)}")
    if not numerators:
        return Ratio()
    sides = torch.tensor([list(numerators), list(denominators)], dtype=torch.float64)
    added = torch.tensor(constants, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(sides.shape[1], (_RESAMPLES, sides.shape[1]), generator=generator)
    value = _divided(sides.sum(1) + added)
    ratios = _divided(torch.stack([side[drawn].sum(1) for side in sides]) + added[:, None])
    low, high = torch.quantile(
        ratios, torch.tensor([0.025, 0.975], dtype=torch.float64), interpolation="nearest"
    )
    return Ratio(_finite(value), _finite(low), _finite(high), bound)


def bound_cached_tokens(
    parts: Sequence[Sequence[Hashable]],
    rest: Sequence[int],
    weigh: Callable[[Hashable], int],
    *,
    order: Literal["arrival", "farthest"],
    page_tokens: int = 1,
) -> list[int]:
    """Bound the prompt tokens of each request that can be found cached, however its blocks are ordered.

    What is found was sent by *one* earlier request: at most the tokens of the parts that both have, beside
    what all prompts share; and it is whole pages. As in `reuse_bound`, whose order of execution this takes,
    the sum bounds a plan even where the parts of a single request do not.

    Args:
        parts: For each request what it may share with another: its blocks, its question.
        rest: For each the tokens of all else, which may all be shared.
        weigh: The tokens of a part.
        order: "arrival" where requests are sent as they come, "farthest" where the order is free.
        page_tokens: Tokens in a page of the cache.
    """
    overlaps = reuse_bound(parts, order=order, weigh=weigh).hits_per_request
    bounds = [
        (shared + overlap) // page_tokens * page_tokens
        for shared, overlap in zip(rest, overlaps, strict=True)
    ]
    return [0, *bounds[1:]]  # In either order the first one is served first.


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


@dataclass(frozen=True, slots=True)
class PrefillFit:
    """The time to first token, as the work that a prefill is.

    Every token that is computed passes through the weights, and attends to all tokens before it, those that
    are cached too; so a cached token saves less than its share. Source: Kaplan et al., Scaling Laws for
    Neural Language Models (2020), section 2.1.

    Attributes:
        seconds_per_request: What a request takes besides. Noise may make it less than 0.
        seconds_per_token: What each computed token takes.
        seconds_per_pair: What each pair of a computed token and one before it takes.
    """

    seconds_per_request: float
    seconds_per_token: float
    seconds_per_pair: float

    def saved(self, prompt_tokens: float, cached: float, instead_of: float) -> float:
        """Return the seconds that a prompt takes less with so many cached tokens instead of others."""
        return self._computing(prompt_tokens, instead_of) - self._computing(prompt_tokens, cached)

    def _computing(self, prompt_tokens: float, cached: float) -> float:
        tokens, pairs = _work(prompt_tokens, cached)
        return self.seconds_per_token * tokens + self.seconds_per_pair * pairs


def fit_prefill(
    prompt_tokens: Sequence[int], cached_tokens: Sequence[int], ttfts: Sequence[float]
) -> PrefillFit | None:
    """Fit the times to first token by least squares.

    Meaningful where one request was in flight at a time: others would have been waited for.

    Args:
        prompt_tokens: Of each prompt.
        cached_tokens: Those of it that were cached.
        ttfts: Seconds, of each.

    Returns:
        None where the times do not grow with the work, or all did as much. Where they do not grow with both
        tokens and pairs, the one that explains less is taken to cost nothing.
    """
    if not ttfts:
        return None
    work = torch.tensor(
        [(1.0, *_work(prompt, cached)) for prompt, cached in zip(prompt_tokens, cached_tokens, strict=True)],
        dtype=torch.float64,
    )
    times = torch.tensor(list(ttfts), dtype=torch.float64)
    scale = work.amax(0).clamp(min=1.0)
    fits = []
    for kept in ([0, 1, 2], [0, 1], [0, 2]):
        scaled = work[:, kept] / scale[kept]
        if torch.linalg.matrix_rank(scaled) < len(kept):
            continue
        solution = torch.linalg.lstsq(scaled, times[:, None]).solution[:, 0]
        if (solution[1:] <= 0).any():
            continue
        error = float((scaled @ solution - times).square().sum())
        coefficients = torch.zeros(3, dtype=torch.float64)
        coefficients[kept] = solution / scale[kept]
        fits.append((error, coefficients.tolist()))
    return PrefillFit(*min(fits)[1]) if fits else None


def _work(prompt_tokens: float, cached_tokens: float) -> tuple[float, float]:
    """Return how many tokens a prefill computes, and how many pairs of one and one before it."""
    return prompt_tokens - cached_tokens, (prompt_tokens**2 - cached_tokens**2) / 2


def _divided(sides: torch.Tensor) -> torch.Tensor:
    return sides[0] / sides[1]


def _finite(value: torch.Tensor) -> float | None:
    number = float(value)
    return number if isfinite(number) else None
