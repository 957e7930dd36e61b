"""Namespaces: requests of one namespace can share a prefix; requests of two never do."""

from __future__ import annotations

import hashlib
import logging
import re
from collections import OrderedDict
from dataclasses import dataclass, field

__all__ = ["Namespace", "PreambleWatch"]

logger = logging.getLogger(__name__)

_DIGEST = re.compile(r"([0-9a-f]{32})?")


@dataclass(frozen=True, slots=True)
class Namespace:
    """What must be equal before two prompts can share cached blocks.

    Args:
        endpoint: Where the engine is, for instance its base URL.
        model: The model's name there.
        tenant: Whoever must not share a cache with anyone else.
        preamble: All that stands before the first block: system prompt, tools, template. Only its
            digest counts and is shown.

    Attributes:
        preamble_digest: 32 hex digits; empty for an empty preamble.
    """

    endpoint: str = ""
    model: str = ""
    tenant: str = ""
    preamble: str = field(default="", repr=False, compare=False)
    preamble_digest: str = field(default="", init=False)

    def __post_init__(self) -> None:
        for name in ("endpoint", "model", "tenant", "preamble"):
            if not isinstance(value := getattr(self, name), str):
                raise TypeError(f"{name} must be a str, not {type(value).__name__}")
        if self.preamble:
            digest = hashlib.blake2b(self.preamble.encode("utf-8", "surrogatepass"), digest_size=16)
            object.__setattr__(self, "preamble_digest", digest.hexdigest())

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What namespaces are compared by: endpoint, model, tenant and the preamble's digest."""
        return self.endpoint, self.model, self.tenant, self.preamble_digest

    @classmethod
    def from_key(cls, key: object) -> Namespace:
        """Make a namespace equal to the one that had this key; the preamble's text is not known.

        Raises:
            ValueError: If it is no key.
        """
        if not (isinstance(key, tuple) and len(key) == 4 and all(isinstance(part, str) for part in key)):
            raise ValueError("a namespace's key must be a tuple of four str")
        *names, digest = key
        if not _DIGEST.fullmatch(digest):
            raise ValueError("a preamble's digest must be 32 hex digits, or empty")
        namespace = cls(*names)
        object.__setattr__(namespace, "preamble_digest", digest)
        return namespace


class PreambleWatch:
    """Notices a preamble that is new on every request, which leaves nothing to reuse. Takes no lock.

    Args:
        limit: How many endpoints, models and tenants are watched, the least recent forgotten first.
    """

    NEW_IN_A_ROW = 4

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._last: OrderedDict[tuple[str, str, str], tuple[str, int]] = OrderedDict()
        self._warned = False

    def notice(self, namespace: Namespace, *, known: bool) -> None:
        """Take note of a request; warn once when the preambles of four in a row were never seen before.

        Args:
            namespace: The request's.
            known: Whether the namespace had a request before.
        """
        caller = (namespace.endpoint, namespace.model, namespace.tenant)
        before, new_in_a_row = self._last.get(caller, ("", 0))
        # A namespace may also be new because its index was dropped.
        same = caller in self._last and before == namespace.preamble
        new_in_a_row = 0 if known or same else new_in_a_row + 1
        self._last[caller] = (namespace.preamble, new_in_a_row)
        self._last.move_to_end(caller)
        if len(self._last) > self._limit:
            self._last.popitem(last=False)
        if new_in_a_row >= self.NEW_IN_A_ROW and not self._warned:
            self._warned = True
            place = _first_difference(before, namespace.preamble)
            logger.warning(
                "the preamble changed on each of the last %d requests, so no prompt can reuse another's "
                "cache; it first differs at character %d (%r, before it was %r). Move what changes (a date, "
                "a user's name) behind the context blocks",
                new_in_a_row,
                place,
                namespace.preamble[place : place + 1],
                before[place : place + 1],
            )


def _first_difference(left: str, right: str) -> int:
    for place, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return place
    return min(len(left), len(right))
