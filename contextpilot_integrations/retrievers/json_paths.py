"""Paths with dots into JSON, read as Elasticsearch reads them.

A dot leads into an object, whether the object is nested or its name and the key are joined by a dot already:
``{"a": {"b": 1}}`` and ``{"a.b": 1}`` hold the same. A list stands for each of its members.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["values_at", "without"]


def values_at(held: Any, path: str | None) -> Iterator[Any]:
    """Yield what stands at a path, in order, lists member by member.

    Args:
        held: What JSON can hold.
        path: Keys joined by dots; None: ``held`` itself is what stands there.
    """
    if isinstance(held, list):
        for one in held:
            yield from values_at(one, path)
    elif path is None:
        yield held
    elif isinstance(held, Mapping):
        for key, value in held.items():
            if key == path:
                yield from values_at(value, None)
            elif path.startswith(f"{key}."):
                yield from values_at(value, path[len(key) + 1 :])


def without(held: Any, path: str) -> Any:
    """Return what JSON can hold without what stands at a path; nothing is changed in place."""
    if isinstance(held, list):
        return [without(one, path) for one in held]
    if not isinstance(held, Mapping):
        return held
    return {
        key: without(value, path[len(key) + 1 :]) if path.startswith(f"{key}.") else value
        for key, value in held.items()
        if key != path
    }
