"""How long a single request takes, and how that grows with the contexts that are stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from contextpilot_integrations.evaluation.bench.contexts import draw_contexts
from contextpilot_integrations.evaluation.bench.process import Interpreter, MeasurementError, measure
from contextpilot_integrations.evaluation.bench.quantiles import nearest_rank
from contextpilot_integrations.evaluation.simulator import simulate

__all__ = ["REQUESTS", "Latency", "OnlineFigures", "OnlineResult", "bench_online"]

REQUESTS = 1000
"""How many fresh requests are measured beside the contexts that are stored."""

_SMALLEST_STORE = 250


@dataclass(frozen=True, slots=True)
class Latency:
    """How long requests take: each is searched for, aligned and inserted.

    Attributes:
        stored: How many contexts were stored when the first of them came; each adds itself.
        requests: How many were measured.
        p50_ms: The median, in milliseconds.
        p99_ms: What 99 of 100 take at most.
        max_ms: What the slowest took; where much is stored, it is one of Python's garbage collections.
    """

    stored: int
    requests: int
    p50_ms: float
    p99_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True)
class OnlineFigures:
    """What a stream of requests took.

    Attributes:
        latency: Beside all contexts that were to be stored, or as many as were.
        growth: Beside ever more of them, the smallest store first.
        hit_ratio: The share of blocks that an unlimited prefix cache holds, over all requests served.
        peak_mib: The most memory of the process, interpreter and libraries included.
        failure: Why the stream ended early.
    """

    latency: Latency
    growth: tuple[Latency, ...]
    hit_ratio: float
    peak_mib: float
    failure: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the figures beside all that was stored, under plain names."""
        return {
            "p50_ms": self.latency.p50_ms,
            "p99_ms": self.latency.p99_ms,
            "max_ms": self.latency.max_ms,
            "stored": self.latency.stored,
            "hit_ratio": self.hit_ratio,
            "peak_mib": self.peak_mib,
        }


@dataclass(frozen=True, slots=True)
class OnlineResult:
    """A stream planned by this package, and perhaps by the published one.

    Attributes:
        k: Blocks in each context.
        ours: This package's figures.
        version: The published package's version; None where it was not asked for.
        published: Its figures; None where it served nothing.
        failure: Why it served nothing, or not all.
    """

    k: int
    ours: OnlineFigures
    version: str | None = None
    published: OnlineFigures | None = None
    failure: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return all figures under plain names; a ratio is the published package's figure by ours.

        Where the published package stored fewer contexts, the ratios are in its favour.
        """
        ours = self.ours.to_dict()
        figures: dict[str, Any] = {**ours, "requests": self.ours.latency.requests, "k": self.k}
        if self.version is not None:
            theirs = {} if self.published is None else self.published.to_dict()
            figures["published_version"] = self.version
            figures["published_failure"] = self.failure
            for name, value in ours.items():
                figures[f"published_{name}"] = theirs.get(name)
                if name != "stored":
                    figures[f"{name}_ratio"] = theirs[name] / value if theirs and value else None
        return figures


def bench_online(
    contexts: int,
    k: int,
    *,
    against: Interpreter | None = None,
    on_measured: Callable[[], object] = lambda: None,
) -> OnlineResult:
    """Store drawn contexts one after another, then measure fresh ones, all in a process of its own.

    Args:
        contexts: How many are stored first.
        k: Blocks in each.
        against: Where the published package serves the same stream.
        on_measured: Called after each measurement.

    Raises:
        ValueError: If an argument is out of range.
        MeasurementError: If this package's process fails; where the other's does, the result says so.
    """
    draw_contexts(1, k)  # Its complaints name what the user gave.
    if contexts < 1:
        raise ValueError(f"contexts must be at least 1, not {contexts}")
    drawn = draw_contexts(contexts + REQUESTS, k)
    ours = _figures(measure("online", drawn), drawn, contexts)
    if ours.failure is not None:
        raise MeasurementError(ours.failure)
    on_measured()
    if against is None:
        return OnlineResult(k, ours)
    published, failure = None, None
    try:
        published = _figures(measure("online", drawn, against=against), drawn, contexts)
        failure = published.failure
    except MeasurementError as error:
        failure = str(error)
    on_measured()
    return OnlineResult(k, ours, against.version, published, failure)


def _figures(measured: dict[str, Any], drawn: Sequence[Sequence[int]], contexts: int) -> OnlineFigures:
    orders, times = measured["orders"], measured["nanoseconds"]
    failure = measured["failure"]
    if not orders:
        raise MeasurementError(failure)
    for order, context in zip(orders, drawn, strict=False):
        if sorted(order) != sorted(context):
            raise MeasurementError("what was planned is not a permutation of what was given")
    if failure is not None:
        failure = f"after {len(orders):,} requests: {failure}"
    # Of a stream that ended early, the last requests count, at most half of what it served.
    stored = min(contexts, len(times) - min(REQUESTS, ceil(len(times) / 2)))
    stores = [stored]
    while stores[-1] // 2 >= _SMALLEST_STORE:
        stores.append(stores[-1] // 2)
    growth = tuple(_latency(times, store) for store in reversed(stores))
    return OnlineFigures(growth[-1], growth, simulate(orders).hit_ratio, measured["peak_mib"], failure)


def _latency(nanoseconds: Sequence[int], stored: int) -> Latency:
    times = nanoseconds[stored : stored + REQUESTS]
    p50, p99, longest = (nearest_rank(times, share) / 1e6 for share in (0.5, 0.99, 1))
    return Latency(stored, len(times), p50, p99, longest)
