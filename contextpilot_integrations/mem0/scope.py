"""Whose memories a search is about: the tenant, taken from Mem0's filters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["search_filters", "tenant_of"]

_ENTITIES = frozenset({"user_id", "agent_id", "run_id", "app_id"})


def search_filters(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
    """Return the filters of a search, wherever among its arguments they stand.

    Args:
        args: Those behind the query: the platform's client takes its options there.
        kwargs: Those by name, which come first.
    """
    if kwargs.get("filters") is not None:
        return kwargs["filters"]
    options = args[0] if args else kwargs.get("options")
    return getattr(options, "filters", None)


def tenant_of(filters: object, owner: str = "") -> str:
    """Return whose memories these filters select, as JSON: equal for the same entities and for no others.

    Filters that name entities within AND, OR or NOT keep just what leads to them. What else is filtered by,
    such as a category, makes no other tenant.

    Args:
        filters: Mem0's.
        owner: Whose store it is, where a pilot serves several.
    """
    scope = {**({"owner": owner} if owner else {}), **(_entities(filters) or {})}
    return json.dumps(scope, sort_keys=True, ensure_ascii=False, default=repr) if scope else ""


def _entities(filters: object) -> Any:
    """Return what of filters names entities; something false if nothing does."""
    if isinstance(filters, Mapping):
        named = {str(key): _value(v) if key in _ENTITIES else _entities(v) for key, v in filters.items()}
        return {key: value for key, value in named.items() if value or key in _ENTITIES}
    if isinstance(filters, list | tuple):
        return [found for part in filters if (found := _entities(part))]
    return None


def _value(value: object) -> object:
    if isinstance(value, Mapping):  # A comparison, such as {"in": [...]}.
        return {str(key): _value(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_value(part) for part in value]
    # As Mem0 has it: 7 and " 7" are the user "7".
    return None if value is None else str(value).strip()
