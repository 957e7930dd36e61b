"""Equation 1: how far two contexts are from each other.

    d(i, j) = 1 - |S| / max(|Ci|, |Cj|) + alpha * (sum over k in S of |p_i(k) - p_j(k)|) / |S|

S are the blocks that both hold, p their positions. Contexts that share nothing have d = 1; since the
position term can pass 1 for very long contexts, such a pair is told by |S| = 0, never by d alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch

__all__ = ["ALPHA", "context_distance", "pairwise_distances"]

ALPHA = 0.001


def context_distance(
    left: Sequence[Hashable], right: Sequence[Hashable], alpha: float = ALPHA, *, prefix: int = 0
) -> float:
    """Return Equation 1 for one pair of contexts, each with its blocks once, best first.

    Args:
        left: The one.
        right: The other.
        alpha: The weight of the position term.
        prefix: How many equal blocks stand before both, left out of ``left`` and ``right``.
    """
    positions = {block: position for position, block in enumerate(left)}
    gaps = [abs(positions[block] - position) for position, block in enumerate(right) if block in positions]
    shared = prefix + len(gaps)
    if not shared:
        return 1.0
    return 1.0 - shared / (prefix + max(len(left), len(right))) + alpha * (sum(gaps) / shared)


def pairwise_distances(
    contexts: Sequence[Sequence[Hashable]],
    *,
    alpha: float = ALPHA,
    device: torch.device | str = "cpu",
    tile: int = 512,
) -> torch.Tensor:
    """Return Equation 1 for all pairs of a batch.

    Counts are integers and every float64 operation stands alone, so CPU and CUDA give equal bits, and
    equal bits to `context_distance`.

    Args:
        contexts: N contexts, each with its blocks once, best first.
        alpha: The weight of the position term, within [0.001, 0.01] in the paper.
        device: Where to compute.
        tile: How many rows are computed at a time; a tile takes tile x N x 24 bytes.

    Returns:
        An (N, N) float64 tensor, symmetric. A context is at 0 from itself, an empty one at 1.
    """
    ids: dict[Hashable, int] = {}
    rows = [[ids.setdefault(block, len(ids)) for block in context] for context in contexts]
    count, longest = len(rows), max(map(len, rows), default=0)
    # positions[b, i]: where block b stands in context i, or -1; blocks[i, p]: the block at position p.
    positions = torch.full((len(ids) + 1, count), -1, dtype=torch.int32)
    blocks = torch.full((count, longest), len(ids), dtype=torch.int64)
    for i, row in enumerate(rows):
        positions[row, i] = torch.arange(len(row), dtype=torch.int32)
        blocks[i, : len(row)] = torch.tensor(row, dtype=torch.int64)
    positions, blocks = positions.to(device), blocks.to(device)
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.int32, device=device)
    distances = torch.empty((count, count), dtype=torch.float64, device=device)
    for start in range(0, count, tile):
        rows_here = slice(start, min(start + tile, count))
        shared = torch.zeros((rows_here.stop - start, count), dtype=torch.int32, device=device)
        gaps = torch.zeros_like(shared)
        for position in range(longest):
            there = positions[blocks[rows_here, position]]
            both = there >= 0
            shared += both
            gaps += torch.where(both, (there - position).abs(), 0)
        longer = torch.maximum(lengths[rows_here, None], lengths[None, :])
        near = 1.0 - shared.double() / longer.double()
        near = near + alpha * (gaps.double() / shared.double())
        distances[rows_here] = torch.where(shared > 0, near, 1.0)
    return distances
