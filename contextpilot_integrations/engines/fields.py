"""Reading what an engine answers, be it a mapping or an object of the openai client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["get_count", "get_field"]


def get_field(holder: object, name: str) -> Any:
    """Return a field's value; None where it is not there."""
    if isinstance(holder, Mapping):
        return holder.get(name)
    return getattr(holder, name, None)


def get_count(holder: object, name: str) -> int | None:
    """Return a field's value if it is an integer that can count, else None: unknown is not zero."""
    value = get_field(holder, name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
