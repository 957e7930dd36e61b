"""Conditions on metadata that mean the same in every store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

__all__ = ["Filter", "allowed_values", "matches"]

Scalar: TypeAlias = str | int | float | bool
Filter: TypeAlias = Mapping[str, Any]
"""What metadata must hold, key by key: a value, or one of a list of values.

A key with dots leads into nested metadata. Where the metadata hold a list, one of its values is enough.
"""


def allowed_values(condition: Filter) -> dict[str, list[Scalar]]:
    """Return for each key the values that are allowed.

    Raises:
        TypeError: If one is anything but a string, a number or a bool.
    """
    allowed = {
        key: list(value) if isinstance(value, list | tuple | set | frozenset) else [value]
        for key, value in condition.items()
    }
    for key, values in allowed.items():
        for value in values:
            if not isinstance(value, str | int | float):
                raise TypeError(
                    f"filter[{key!r}] must be a string, a number, a bool or a list of them, "
                    f"not {type(value).__name__}"
                )
    return allowed


def matches(allowed: Mapping[str, list[Scalar]], metadata: Mapping[str, Any]) -> bool:
    """Say whether metadata hold an allowed value under each key."""
    return all(
        any(_same(value, one) for value in _values(metadata, key) for one in values)
        for key, values in allowed.items()
    )


def _values(metadata: Mapping[str, Any], key: str) -> list[Any]:
    found: Any = metadata
    if key in metadata:
        found = metadata[key]
    else:
        for part in key.split("."):
            if not isinstance(found, Mapping) or part not in found:
                return []
            found = found[part]
    return found if isinstance(found, list) else [found]


def _same(left: Any, right: Any) -> bool:
    # To Python True is 1; to JSON it is not.
    return bool(left == right) and isinstance(left, bool) == isinstance(right, bool)
