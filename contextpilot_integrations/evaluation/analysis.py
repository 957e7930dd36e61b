"""What a trace holds: how often its blocks come back, and how much of that a prefix cache could use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from contextpilot_integrations.block import ContextBlock
from contextpilot_integrations.evaluation.bound import reuse_bound
from contextpilot_integrations.evaluation.simulator import simulate
from contextpilot_integrations.evaluation.traces import TraceRequest

__all__ = ["TraceAnalysis", "analyze"]


@dataclass(frozen=True, slots=True)
class TraceAnalysis:
    """The figures of a trace; duplicates inside a request count once. Ratios are shares of accesses.

    Attributes:
        requests: How many requests there are.
        accesses: How many blocks they ask for together.
        distinct_blocks: How many different blocks that are.
        mean_k: Blocks per request, over the requests that have any.
        top20pct_accessed_share: Accesses to the most accessed fifth of the distinct blocks.
        seen_before_ratio: Accesses to a block that an earlier request had.
        prefix_hit_original: Hits of the original order in an unlimited prefix cache.
        bound_online: The most that any order of blocks could hit, served as the requests came.
        bound_offline: The same where the execution order is free too.
        turn_repeat_share: Of the accesses in turns after a session's first, those that the session had
            before; None where no session has a second turn.
    """

    requests: int
    accesses: int
    distinct_blocks: int
    mean_k: float
    top20pct_accessed_share: float
    seen_before_ratio: float
    prefix_hit_original: float
    bound_online: float
    bound_offline: float
    turn_repeat_share: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return the figures under their names."""
        return asdict(self)


def analyze(trace: Sequence[TraceRequest]) -> TraceAnalysis:
    """Measure a trace in its arrival order."""
    numbers: dict[ContextBlock, int] = {}
    # Numbers stand for the blocks: they hash much faster.
    contexts = [
        [numbers.setdefault(block, len(numbers)) for block in dict.fromkeys(request.blocks)]
        for request in trace
    ]
    frequencies = sorted(Counter(block for context in contexts for block in context).values(), reverse=True)
    accesses = sum(frequencies)
    top = max(1, round(len(numbers) / 5))
    return TraceAnalysis(
        requests=len(trace),
        accesses=accesses,
        distinct_blocks=len(numbers),
        mean_k=_ratio(accesses, sum(map(bool, contexts))),
        top20pct_accessed_share=_ratio(sum(frequencies[:top]), accesses),
        # A block is new once; all other accesses find it seen.
        seen_before_ratio=_ratio(accesses - len(numbers), accesses),
        prefix_hit_original=simulate(contexts).hit_ratio,
        bound_online=reuse_bound(contexts).hit_ratio,
        bound_offline=reuse_bound(contexts, order="farthest").hit_ratio,
        turn_repeat_share=_turn_repeat_share(trace, contexts),
    )


def _turn_repeat_share(trace: Sequence[TraceRequest], contexts: Sequence[Sequence[int]]) -> float | None:
    sessions: dict[str | int, set[int]] = {}
    repeats = accesses = 0
    for request, context in zip(trace, contexts, strict=True):
        given = sessions.get(request.session_id)
        if given is None:
            sessions[request.session_id] = set(context)
            continue
        accesses += len(context)
        repeats += len(given.intersection(context))
        given.update(context)
    return None if len(sessions) == len(trace) else _ratio(repeats, accesses)


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
