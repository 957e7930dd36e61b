"""Other ways to order requests and blocks, to compare with in the same run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

__all__ = ["longest_prefix_match", "sort_by_frequency"]


def longest_prefix_match(contexts: Sequence[Sequence[Hashable]]) -> tuple[int, ...]:
    """Schedule a batch as SGLang's longest-prefix-match policy does; blocks keep their order.

    The policy always runs the waiting request that has the longest prefix in the cache, the earliest
    where several do. Here it runs one request at a time, and without SGLang's switch to first come,
    first served under a long queue: the policy at its best.

    Whatever prefix a waiting request has in the cache, the request that ran last has it too (else one
    that matched more would have run before it). So nothing that still counts is ever evicted, any cache
    that holds the longest request gives the same order, and that order is the trie of the batch walked
    depth-first, its branches in order of arrival.

    Args:
        contexts: Each request's blocks in the order sent.

    Returns:
        The execution order, as indices into ``contexts``.
    """
    arrivals: dict[tuple[Hashable, ...], int] = {}  # prefix → the first request that has it

    def branches(index: int) -> tuple[int, ...]:
        context = tuple(contexts[index])
        lengths = range(1, len(context) + 1)
        return (*(arrivals.setdefault(context[:length], index) for length in lengths), index)

    return tuple(sorted(range(len(contexts)), key=branches))


def sort_by_frequency(contexts: Sequence[Sequence[Hashable]]) -> tuple[tuple[Hashable, ...], ...]:
    """Sort each request's blocks by how often the batch has them, the most frequent first.

    Ties stand in the order in which the blocks were first seen.
    """
    frequencies = Counter(block for context in contexts for block in context)
    # Sorting is stable and a Counter keeps the order of first sight.
    places = {block: place for place, (block, _) in enumerate(frequencies.most_common())}
    return tuple(tuple(sorted(context, key=places.__getitem__)) for context in contexts)
