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
    """Return whose memories these filters select, as JSON: never equal for filters that name others.

    It is equal where the same entities are named in another order, under AND or beside each other, or with
    "eq" or an "in" of one instead of the value. What is said in yet another way may be a tenant of its own,
    which then shares no index. Filters that name entities within AND, OR or NOT keep just what leads to
    them. What else is filtered by, such as a category, makes no other tenant.

    Args:
        filters: Mem0's.
        owner: Whose store it is, where a pilot serves several.
    """
    scope = {**({"owner": owner} if owner else {}), **(_entities(filters) or {})}
    return _as_json(scope) if scope else ""


def _entities(filters: object) -> Any:
    """Return what of filters names entities; something false if nothing does."""
    if isinstance(filters, Mapping):
        named = {str(key): _value(v) if key in _ENTITIES else _entities(v) for key, v in filters.items()}
        kept = {key: value for key, value in named.items() if value or key in _ENTITIES}
        return _without_and(kept)
    if isinstance(filters, list | tuple):
        return sorted((found for part in filters if (found := _entities(part))), key=_as_json)
    return None


def _without_and(named: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of AND beside what stands beside it, where no key occurs twice."""
    parts = named.get("AND")
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        return named
    beside = {key: value for key, value in named.items() if key != "AND"}
    merged = {key: value for part in (beside, *parts) for key, value in part.items()}
    return merged if len(merged) == sum(map(len, (beside, *parts))) else named


def _value(value: object) -> object:
    if isinstance(value, Mapping):  # A comparison, such as {"in": [...]}.
        compared = {str(key): _value(part) for key, part in value.items()}
        match compared:
            # A "*" by itself means all.
            case {"eq": str(one)} | {"in": [str(one)]} if len(compared) == 1 and one != "*":
                return one
        return compared
    if isinstance(value, list | tuple):
        values = {_as_json(part): part for part in map(_value, value)}
        return [values[key] for key in sorted(values)]
    # As Mem0 has it: 7 and " 7" are the user "7".
    return None if value is None else str(value).strip()


def _as_json(scope: object) -> str:
    return json.dumps(scope, sort_keys=True, ensure_ascii=False, default=repr)
