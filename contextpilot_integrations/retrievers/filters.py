"""Conditions on metadata, which mean the same in every store as far as types go along.

Numbers, strings and bools are compared each with its kind. Where a filter and the metadata hold different
kinds (2024 and "2024", True and "true"), FAISS finds nothing, and Elasticsearch goes by the field's mapping:
it may take one for the other, or refuse the request.

1 and 1.0 are one number. Where the retriever made the index, Elasticsearch compares numbers as float64, which
tells whole numbers apart up to 2**53: a filter by a greater one is refused there, so ids of that size are
better kept as strings. Strings of more than 8,191 characters are found by FAISS alone. An index that others
made goes by its own mapping: unless that says otherwise, a field whose first value is a whole number keeps no
fractions to compare with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, TypeAlias

from contextpilot_integrations.retrievers.json_paths import values_at

__all__ = ["Filter", "allowed_values", "matches"]

Scalar: TypeAlias = str | int | float | bool
Filter: TypeAlias = Mapping[str, Any]
"""What metadata must hold, key by key: a value, or one of a list of values.

A key with dots leads into nested metadata (`json_paths`). Where the metadata hold a list, of values, objects
or lists, one that fits is enough.
"""


def allowed_values(condition: Filter) -> dict[str, list[Scalar]]:
    """Return for each key the values that are allowed.

    Numbers of numpy's become such as JSON can hold.

    Raises:
        TypeError: If a key is no string, or a value anything but a string, a number or a bool.
        ValueError: If a number is not finite: it equals nothing, and JSON has none.
    """
    for key in condition:
        if not isinstance(key, str):
            raise TypeError(f"the keys of a filter must be strings, not {type(key).__name__}")
    allowed = {
        key: [*map(_plain, value if isinstance(value, list | tuple | set | frozenset) else [value])]
        for key, value in condition.items()
    }
    for key, values in allowed.items():
        for value in values:
            if not isinstance(value, str | int | float):
                raise TypeError(
                    f"filter[{key!r}] must be a string, a number, a bool or a list of them, "
                    f"not {type(value).__name__}"
                )
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"filter[{key!r}] must be finite, got {value}")
    return allowed


def matches(allowed: Mapping[str, list[Scalar]], metadata: Mapping[str, Any]) -> bool:
    """Say whether metadata hold an allowed value under each key."""
    return all(
        any(_same(value, one) for value in values_at(metadata, key) for one in values)
        for key, values in allowed.items()
    )


def _plain(value: Any) -> Any:
    if isinstance(value, int | float):
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


def _same(left: Any, right: Any) -> bool:
    # To Python True is 1; to JSON it is not.
    return bool(left == right) and isinstance(left, bool) == isinstance(right, bool)
