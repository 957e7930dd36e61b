"""How much the nodes of a batch overlap, in tokens, and which of them should merge: on torch, CPU or CUDA.

Every figure is a whole number, exact as a float while a context has less than 2**53 tokens, and every tie
has a rule, so all devices give the same result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import chain

import torch
from torch.nn.functional import embedding_bag

__all__ = ["Overlaps"]

_TILE = 1 << 20
_NOBODY = 1 << 62  # A preference larger than any; as a partner, the row itself.


class Overlaps:
    """The overlaps of a batch's nodes, and each node's best partner.

    The best partner is the one that shares most tokens, of these the lightest, of these the one with the
    least ``i xor j``. A node that shares nothing with another any more, or that has ended, is not live.

    Row r of every table stands for a node. What nodes hold is one list of blocks, row after row, so memory
    for a corpus of many blocks is that of the contexts; the overlaps are a dense table of nodes by nodes,
    and what is computed from it on the way is bounded by a tile of 2**20 numbers.

    Args:
        contexts: N contexts of block ids, each once in a context.
        weights: The tokens of each block, at least 1; None counts blocks.
        device: Where the tables are.
    """

    def __init__(
        self,
        contexts: Sequence[Sequence[Hashable]],
        weights: Mapping[Hashable, int] | None,
        device: torch.device,
    ) -> None:
        holders = Counter(chain.from_iterable(contexts))
        # A block that only one context holds is in no overlap; it counts in the context's weight alone.
        ids = {block: place for place, block in enumerate(b for b, count in holders.items() if count > 1)}
        weight = dict.fromkeys(holders, 1) if weights is None else weights
        node_weights = [sum(map(weight.__getitem__, context)) for context in contexts]
        held = [[ids[block] for block in context if block in ids] for context in contexts]
        # Sums of integers stay exact in float32 below 2**24, so the order of summation cannot matter.
        number = torch.float32 if max(node_weights) < 1 << 24 else torch.float64
        self._rows = torch.arange(len(contexts), device=device)
        self._nodes = self._rows
        self._node_weights = torch.tensor(node_weights, dtype=number, device=device)
        # The last block is none: it weighs nothing and stands where a node has lost one.
        self._block_weights = torch.tensor([*map(weight.__getitem__, ids), 0], dtype=number, device=device)
        self._held = torch.tensor([*chain.from_iterable(held)], dtype=torch.int64, device=device)
        self._sizes = torch.tensor([*map(len, held)], device=device)
        self._starts = self._sizes.cumsum(0) - self._sizes
        self._shared = torch.empty((len(contexts), len(contexts)), dtype=number, device=device)
        for tile in self._tiles(self._rows):
            self._shared[:, tile[0] : tile[-1] + 1] = self._shared_with(tile)
        self._shared.fill_diagonal_(0)
        self._most = torch.ones_like(self._node_weights)
        self._partner = torch.zeros_like(self._rows)
        self._rank_weights()
        self._find_partners(self._rows)

    def reciprocal_pairs(self) -> list[tuple[int, int]]:
        """Return the nodes of all pairs that are each other's best partner: who stays, then who ends.

        The higher one stays where it lies in the lower one, and so is the intersection already.
        """
        mutual = self._partner[self._partner] == self._rows
        lower = self._rows[(self._most > 0) & (self._rows < self._partner) & mutual]
        higher = self._partner[lower]
        whole = self._node_weights == self._most
        inside = whole[higher] & ~whole[lower]
        self._staying, self._ending = torch.where(inside, higher, lower), torch.where(inside, lower, higher)
        return list(zip(self._nodes[self._staying].tolist(), self._nodes[self._ending].tolist(), strict=True))

    def merge(self) -> None:
        """Let one node of each pair last returned become the intersection, and the other one end."""
        staying, ending = self._staying, self._ending
        self._intersect(staying, ending)
        changed = staying[self._node_weights[staying] > self._most[staying]]
        for tile in self._tiles(changed):
            shared = self._shared_with(tile)
            shared[tile, torch.arange(len(tile), device=tile.device)] = 0
            self._shared.index_copy_(1, tile, shared)
            self._shared.index_copy_(0, tile, shared.T)
        self._node_weights[changed] = self._most[changed]
        self._rank_weights()
        self._most[ending] = 0
        merged_into = self._rows.clone()
        merged_into[ending] = staying
        self._partner = merged_into[self._partner]
        stale = self._shared[self._rows, self._partner] < self._most
        # No overlap has grown; but a changed node is lighter now, so of equal ones it may be the better.
        self._improve_partners(changed)
        self._find_partners(self._rows[stale])
        live = self._most > 0
        if int(live.sum()) * 4 <= len(live) * 3:
            self._keep(live)

    def _held_by(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the places of what some rows hold, and for each of them which of these rows holds it."""
        sizes = self._sizes[rows]
        row = torch.arange(len(rows), device=rows.device).repeat_interleave(sizes)
        shift = self._starts[rows] - (sizes.cumsum(0) - sizes)
        return torch.arange(len(row), device=rows.device) + shift[row], row

    def _intersect(self, rows: torch.Tensor, others: torch.Tensor) -> None:
        """Leave each row what the other one holds too, and the other one nothing."""
        (mine, row), (theirs, other) = self._held_by(rows), self._held_by(others)
        blocks = len(self._block_weights)
        kept = torch.isin(row * blocks + self._held[mine], other * blocks + self._held[theirs])
        self._held[mine[~kept]] = self._held[theirs] = blocks - 1

    def _shared_with(self, columns: torch.Tensor) -> torch.Tensor:
        """Return the overlaps of all rows with some: an embedding bag sums what these hold of each row."""
        places, column = self._held_by(columns)
        block = self._held[places]
        weights = self._block_weights.new_zeros((len(self._block_weights), len(columns)))
        weights[block, column] = self._block_weights[block]
        return embedding_bag(self._held, weights, self._starts, mode="sum")

    def _find_partners(self, rows: torch.Tensor) -> None:
        """Find the best partner of some rows among all that have not ended."""
        live = (self._most > 0).to(self._most.dtype)
        for tile in self._tiles(rows):
            shared = self._shared.index_select(0, tile).mul_(live)
            self._most[tile] = most = shared.amax(1)
            row, column = torch.nonzero(shared == most.clamp(min=1)[:, None], as_tuple=True)
            preference = torch.full_like(tile, _NOBODY)
            preference.scatter_reduce_(0, row, self._preference(tile[row], column), "amin")
            self._partner[tile] = self._preferred(tile, preference)

    def _improve_partners(self, columns: torch.Tensor) -> None:
        """Let all rows change over to one of these columns where it is better and shares no less."""
        preference = self._preference(self._rows, self._partner)
        most = self._most.clamp(min=1)
        for tile in self._tiles(columns):
            column, row = torch.nonzero(self._shared.index_select(0, tile) == most, as_tuple=True)
            preference.scatter_reduce_(0, row, self._preference(row, tile[column]), "amin")
        self._partner = self._preferred(self._rows, preference)

    def _preference(self, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        """Return a number for each pair, the less the better; within a row no two are equal."""
        return self._weight_ranks[columns] << 32 | self._nodes[rows] ^ self._nodes[columns]

    def _preferred(self, rows: torch.Tensor, preference: torch.Tensor) -> torch.Tensor:
        """Return the column that a preference of each row stands for."""
        nodes = self._nodes[rows] ^ (preference & 0xFFFFFFFF)
        column: torch.Tensor = torch.searchsorted(self._nodes, nodes)
        return column

    def _rank_weights(self) -> None:
        self._weight_ranks: torch.Tensor = torch.unique(self._node_weights, return_inverse=True)[1]

    def _keep(self, live: torch.Tensor) -> None:
        """Drop the rows that are not live. A live row's partner is live."""
        kept = self._rows[live]
        row = torch.cumsum(live, 0) - 1
        places, holder = self._held_by(kept)
        held = self._held[places] < len(self._block_weights) - 1
        self._held = self._held[places[held]]
        self._sizes = torch.bincount(holder[held], minlength=len(kept))
        self._starts = self._sizes.cumsum(0) - self._sizes
        # In its own place: what a tile reads stands behind all that was written before it.
        for tile in self._tiles(self._rows[: len(kept)]):
            rows = self._shared.index_select(0, kept[tile]).index_select(1, kept)
            self._shared[tile[0] : tile[-1] + 1, : len(kept)] = rows
        self._shared = self._shared[: len(kept), : len(kept)]
        self._nodes, self._node_weights = self._nodes[kept], self._node_weights[kept]
        self._most, self._partner = self._most[kept], row[self._partner[kept]]
        self._rows = self._rows[: len(kept)]
        self._rank_weights()

    def _tiles(self, rows: torch.Tensor) -> Iterator[torch.Tensor]:
        """Cut rows so that a table of a part by all rows, or by all blocks, is no larger than a tile."""
        size = max(1, _TILE // max(len(self._rows), len(self._block_weights)))
        for start in range(0, len(rows), size):
            yield rows[start : start + size]
