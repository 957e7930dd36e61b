"""Where the tenant is taken from: the entities that the filters of a search name."""

import json
from types import SimpleNamespace

import pytest

from contextpilot_integrations.mem0 import ContextPilotMemory
from contextpilot_integrations.mem0.scope import search_filters, tenant_of


@pytest.mark.parametrize(
    ("filters", "scope"),
    [
        ({"user_id": "ada"}, {"user_id": "ada"}),
        ({"user_id": 7}, {"user_id": "7"}),
        ({"user_id": " ada "}, {"user_id": "ada"}),
        ({"run_id": "r", "agent_id": "a", "user_id": "u"}, {"agent_id": "a", "run_id": "r", "user_id": "u"}),
        ({"user_id": "ada", "app_id": "shop"}, {"app_id": "shop", "user_id": "ada"}),
        ({"user_id": "ada", "category": "food", "created_at": {"gte": "2026"}}, {"user_id": "ada"}),
        ({"AND": [{"user_id": "ada"}, {"category": "food"}]}, {"user_id": "ada"}),
        ({"AND": [{"user_id": "a"}, {"user_id": "b"}]}, {"AND": [{"user_id": "a"}, {"user_id": "b"}]}),
        (
            {"OR": [{"user_id": "a"}, {"NOT": [{"run_id": "r"}]}]},
            {"OR": [{"NOT": [{"run_id": "r"}]}, {"user_id": "a"}]},
        ),
        ({"user_id": {"in": ["a", 1, "1"]}}, {"user_id": {"in": ["1", "a"]}}),
        ({"user_id": "*"}, {"user_id": "*"}),
        ({"user_id": None, "run_id": "r"}, {"run_id": "r", "user_id": None}),
    ],
)
def test_the_entities_alone_are_the_tenant(filters, scope):
    assert json.loads(tenant_of(filters)) == scope


@pytest.mark.parametrize("filters", [None, {}, {"category": "food"}, {"AND": [{"category": "food"}]}, "ada"])
def test_filters_that_name_no_entity_name_no_tenant(filters):
    assert tenant_of(filters) == ""


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({"user_id": "a", "run_id": "r"}, {"run_id": "r", "user_id": "a"}),
        ({"user_id": {"in": ["a", "b"]}}, {"user_id": {"in": ["b", "a"]}}),
        ({"user_id": {"in": ["a"]}}, {"user_id": "a"}),
        ({"user_id": {"eq": " a"}}, {"user_id": "a"}),
        ({"AND": [{"user_id": "a"}]}, {"user_id": "a"}),
        ({"AND": [{"run_id": "r"}, {"AND": [{"user_id": {"eq": "a"}}]}]}, {"user_id": "a", "run_id": "r"}),
        ({"AND": [{"run_id": "r"}], "user_id": "a"}, {"user_id": "a", "run_id": "r"}),
        ({"OR": [{"user_id": "a"}, {"user_id": "b"}]}, {"OR": [{"user_id": "b"}, {"user_id": "a"}]}),
        ({"AND": [{"user_id": "a"}, {"user_id": "b"}]}, {"AND": [{"user_id": "b"}, {"user_id": "a"}]}),
    ],
)
def test_one_scope_said_in_two_ways_is_one_tenant(left, right):
    assert tenant_of(left) == tenant_of(right)
    assert tenant_of(left, "shop") == tenant_of(right, "shop")


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({"user_id": "a"}, {"user_id": "b"}),
        ({"user_id": "a"}, {"agent_id": "a"}),
        ({"user_id": "a"}, {"user_id": "a", "run_id": "a"}),
        ({"user_id": 'a", "run_id": "b'}, {"user_id": "a", "run_id": "b"}),
        ({"user_id": "None"}, {"user_id": None}),
        ({"user_id": "{'in': ['a']}"}, {"user_id": {"in": ["a"]}}),
        ({"AND": [{"user_id": "a"}]}, {"OR": [{"user_id": "a"}]}),
        ({"user_id": "a"}, {"OR": [{"user_id": "a"}, {"category": "food"}]}),
        ({"user_id": "a"}, {"NOT": [{"user_id": "a"}]}),
        ({"user_id": "a"}, {"user_id": {"ne": "a"}}),
        ({"user_id": "a"}, {"user_id": {"eq": "a", "ne": "b"}}),
        ({"user_id": "*"}, {"user_id": {"eq": "*"}}),
        ({"user_id": "*"}, {"user_id": {"in": ["*"]}}),
        ({"user_id": None}, {"user_id": {"in": [None]}}),
        ({"user_id": {"in": ["a"]}}, {"user_id": {"in": ["a", "b"]}}),
        ({"user_id": {"in": ["a, b"]}}, {"user_id": {"in": ["a", "b"]}}),
        ({"AND": [{"user_id": "a"}, {"user_id": "b"}]}, {"user_id": "a"}),
        ({"AND": [{"user_id": "b"}], "user_id": "a"}, {"user_id": "a"}),
        ({"AND": [{"OR": [{"user_id": "a"}]}, {"OR": [{"run_id": "r"}]}]}, {"OR": [{"user_id": "a"}]}),
    ],
)
def test_no_two_scopes_are_one_tenant(left, right):
    assert tenant_of(left) != tenant_of(right)


def test_two_stores_may_know_different_people_by_one_name():
    assert len({tenant_of({"user_id": "1"}, owner) for owner in ("", "shop", "clinic")}) == 3


def test_filters_are_found_by_name_and_in_the_clients_options():
    options = SimpleNamespace(filters={"user_id": "ada"})
    assert search_filters((), {"filters": {"user_id": "ada"}, "top_k": 3}) == {"user_id": "ada"}
    assert search_filters((options,), {}) == {"user_id": "ada"}
    assert search_filters((), {"options": options}) == {"user_id": "ada"}
    assert search_filters((options,), {"filters": {"user_id": "bob"}}) == {"user_id": "bob"}
    assert search_filters((), {}) is None


def test_the_plan_tells_the_tenant(store, memory):
    remembers = ContextPilotMemory(store(memory("tea", "Ada drinks tea.")), tenant="shop")
    found = remembers.search("drinks", filters={"user_id": "ada"})
    turn = remembers.turn_context("drinks", filters={"user_id": "ada"})
    assert json.loads(found["contextpilot"]["tenant"]) == {"owner": "shop", "user_id": "ada"}
    assert turn.plan.namespace.tenant == found["contextpilot"]["tenant"]


def test_one_users_order_says_nothing_about_anothers(store, memory):
    tea, cake = memory("tea", "Ada drinks tea."), memory("cake", "Ada bakes cake.")
    seen = store(tea, cake)
    remembers = ContextPilotMemory(seen)
    remembers.search("drinks", filters={"user_id": "ada"})
    seen.found = {"results": [cake, tea]}
    order = [
        remembers.search("cake", filters=filters)["contextpilot"]["order"]
        for filters in ({"user_id": "bob"}, {"user_id": "ada", "run_id": "1"}, {"user_id": "ada"})
    ]
    assert order == [[0, 1], [0, 1], [1, 0]]
