"""What a limit on displacement costs: the hit ratio against how far a block may move from its rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from contextpilot_integrations.block import ContextBlock
from contextpilot_integrations.evaluation.simulator import simulate
from contextpilot_integrations.pilot import ContextPilot

__all__ = ["DisplacementPoint", "bench_displacement", "limits"]


@dataclass(frozen=True, slots=True)
class DisplacementPoint:
    """The hit ratios under one limit, in an unlimited prefix cache.

    Attributes:
        max_displacement: How many places a block might move; None is any number.
        online: One request after another.
        offline: The whole batch at once.
    """

    max_displacement: int | None
    online: float
    offline: float

    def to_dict(self) -> dict[str, Any]:
        """Return the figures under their names."""
        return asdict(self)


def limits(contexts: Sequence[Sequence[ContextBlock]]) -> list[int | None]:
    """Return the limits to try: 0, then doubling up to the longest context, then none."""
    longest = max(map(len, contexts), default=0)
    return [0, *(1 << power for power in range(longest.bit_length()) if 1 << power < longest), None]


def bench_displacement(
    contexts: Sequence[Sequence[ContextBlock]], *, on_measured: Callable[[], object] = lambda: None
) -> list[DisplacementPoint]:
    """Plan the same contexts under each limit.

    Args:
        contexts: The requests, each best first.
        on_measured: Called after each limit.
    """
    points = []
    for limit in limits(contexts):
        pilot = ContextPilot(capacity=None, max_displacement=limit, on_error="raise")
        online = simulate([pilot.prepare(context).blocks for context in contexts])
        pilot.clear()
        batch = pilot.prepare_batch(contexts)
        offline = simulate([batch.plans[place].blocks for place in batch.schedule])
        points.append(DisplacementPoint(limit, online.hit_ratio, offline.hit_ratio))
        on_measured()
    return points
