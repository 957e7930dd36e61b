"""A simulated prefix cache: how much of each request an engine would find already computed.

One simulator counts blocks and tokens alike. Its units are block ids, or pages of tokens; a unit is
found only where everything before it is found too.
"""

from __future__ import annotations

import re
from array import array
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

__all__ = [
    "PAGE_SIZE",
    "PrefixCache",
    "SimulationResult",
    "pages",
    "parse_capacity",
    "simulate",
    "simulate_tokens",
]

PAGE_SIZE = 16
"""Tokens in a page, the unit in which vLLM shares its cache by default."""

_CAPACITY = re.compile(r"([0-9]{1,18})|([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*%")


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """What a run of requests found in the cache. All counts are in one unit, blocks or tokens.

    Attributes:
        hits: How many units were found.
        total: How many were asked for.
        capacity: The cache's size; None is unlimited.
        hits_per_request: The hits of each request, in the order served.
    """

    hits: int
    total: int
    capacity: int | None
    hits_per_request: tuple[int, ...]

    @property
    def hit_ratio(self) -> float:
        """Hits over total; 0.0 where nothing was asked for."""
        return self.hits / self.total if self.total else 0.0


class PrefixCache:
    """A trie of units that forgets the least recently used leaf first, as RadixCache and vLLM do.

    Args:
        capacity: The most units it keeps; None is unlimited, 0 keeps nothing.

    Raises:
        ValueError: If the capacity is negative.
    """

    def __init__(self, capacity: int | None = None) -> None:
        if capacity is not None and capacity < 0:
            raise ValueError(f"capacity must be at least 0, or None for unlimited, not {capacity}")
        self.capacity = capacity
        self._nodes: dict[tuple[int, Hashable], int] = {}  # (parent, unit) → node; 0 is the root
        # node → its key above, the least recently used first. A request touches its path from the
        # deepest node up, so every node stands before its parent: the first is always a leaf, and of a
        # request that is too large the leading part stays.
        self._keys: OrderedDict[int, tuple[int, Hashable]] = OrderedDict()
        self._last_node = 0

    def __len__(self) -> int:
        return len(self._nodes)

    def request(self, units: Sequence[Hashable]) -> int:
        """Serve a request: count its hits, then keep all of it, or the leading part that fits.

        Returns:
            How many leading units were cached before.
        """
        path: list[int] = []
        parent = 0
        for unit in units:
            node = self._nodes.get((parent, unit))
            if node is None:
                break
            path.append(node)
            parent = node
        hits = len(path)
        for unit in units[hits:]:
            key = (parent, unit)
            self._last_node = parent = self._last_node + 1
            self._nodes[key] = parent
            self._keys[parent] = key
            path.append(parent)
        for node in reversed(path):
            self._keys.move_to_end(node)
        if self.capacity is not None:
            while len(self._keys) > self.capacity:
                _, key = self._keys.popitem(last=False)
                del self._nodes[key]
        return hits


def simulate(requests: Iterable[Sequence[Hashable]], capacity: int | None = None) -> SimulationResult:
    """Serve requests one after another from an empty cache.

    Args:
        requests: Each request's units in the order sent.
        capacity: The cache's size in units; None is unlimited.

    Raises:
        ValueError: If the capacity is negative.
    """
    cache = PrefixCache(capacity)
    total = 0
    hits = []
    for units in requests:
        total += len(units)
        hits.append(cache.request(units))
    return SimulationResult(sum(hits), total, capacity, tuple(hits))


def simulate_tokens(
    prompts: Iterable[Sequence[int]], capacity: int | None = None, *, page_size: int = PAGE_SIZE
) -> SimulationResult:
    """Serve prompts one after another from an empty cache of token pages.

    Args:
        prompts: Each prompt's tokens, all of them from the first on.
        capacity: The cache's size in tokens, of which it uses whole pages; None is unlimited.
        page_size: Tokens in a page.

    Returns:
        Counts in tokens. The total counts every token, also those that fill no page.

    Raises:
        ValueError: If the capacity is negative or the page size less than 1.
    """
    _check_page_size(page_size)
    cache = PrefixCache(None if capacity is None else capacity // page_size)
    total = 0
    hits = []
    for prompt in prompts:
        total += len(prompt)
        hits.append(cache.request(pages(prompt, page_size)) * page_size)
    return SimulationResult(sum(hits), total, capacity, tuple(hits))


def pages(prompt_tokens: Sequence[int], page_size: int = PAGE_SIZE) -> list[bytes]:
    """Cut a prompt into full pages; what is left at the end fills none and is never shared.

    A page is named by its tokens alone: its place in the trie says what stands before it.

    Args:
        prompt_tokens: The tokens, each from 0 to 2**32 - 1.
        page_size: Tokens in a page.

    Raises:
        ValueError: If the page size is less than 1.
    """
    _check_page_size(page_size)
    tokens = array("I", prompt_tokens)
    raw = tokens.tobytes()  # bytes hash faster than tuples, and remember their hash
    step = page_size * tokens.itemsize
    return [raw[start : start + step] for start in range(0, len(raw) - step + 1, step)]


def parse_capacity(text: str | None, total: int) -> int | None:
    """Read a cache size: "200" is 200 units, "10%" is a tenth of all units sent, rounded down.

    All units sent means every place of every request (requests × k), repeats included: the published
    comparisons at 10 % read it so. A share of the *distinct* blocks would be a far smaller cache.

    Args:
        text: The size; None is unlimited.
        total: How many units all requests have together.

    Raises:
        ValueError: If the text is neither.
    """
    if text is None:
        return None
    found = _CAPACITY.fullmatch(text.strip())
    if found is None:
        raise ValueError(
            f"capacity must be a number of units such as 200, or a share such as 10%, not {text!r}"
        )
    count, percent = found.groups()
    return int(count) if count else int(Fraction(percent) * total // 100)


def _check_page_size(page_size: int) -> None:
    if page_size < 1:
        raise ValueError(f"page_size must be at least 1, not {page_size}")
