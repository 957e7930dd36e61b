import json

import numpy as np
import pytest

pytest.importorskip("langchain_core")

from contextpilot_integrations.retrievers.filters import allowed_values, matches

METADATA = {
    "lang": "en",
    "year": 2024,
    "tags": ["a", "b"],
    "source": {"page": 3, "line.first": 7},
    "a.b": 1,
    "a": {"b": 2},
    "c.d": {"e": 5},
    "draft": False,
    "authors": [{"name": "ada"}, {"name": "ben", "towns": ["bern", ["rome"]]}],
    "nested": [["x"], [["y"]]],
}


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ({}, True),
        ({"lang": "en"}, True),
        ({"lang": "de"}, False),
        ({"lang": ["de", "en"]}, True),
        ({"lang": []}, False),
        ({"lang": "en", "year": 2025}, False),
        ({"tags": "b"}, True),
        ({"tags": ["c", "a"]}, True),
        ({"source.page": 3}, True),
        ({"source.line": 3}, False),
        ({"lang.page": 3}, False),
        ({"a.b": 1}, True),
        ({"a.b": 2}, True),
        ({"a.b": 3}, False),
        ({"c.d.e": 5}, True),
        ({"source.line.first": 7}, True),
        ({"source.line": 7}, False),
        ({"source": 3}, False),
        ({"authors.name": "ben"}, True),
        ({"authors.name": "eve"}, False),
        ({"authors.towns": "rome"}, True),
        ({"authors": "ada"}, False),
        ({"nested": "x"}, True),
        ({"nested": ["y", "z"]}, True),
        ({"missing": "x"}, False),
        ({"draft": False}, True),
        ({"draft": 0}, False),
        ({"year": 2024.0}, True),
        ({"year": "2024"}, False),
        ({"year": np.int64(2024)}, True),
        ({"year": [np.float32(2024), 7]}, True),
        ({"year": np.uint8(1)}, False),
        ({"draft": np.int8(0)}, False),
        ({"lang": np.str_("en")}, True),
        ({"draft": [False, np.int8(7)]}, True),
    ],
)
def test_all_keys_must_hold_an_allowed_value(condition, expected):
    assert matches(allowed_values(condition), METADATA) is expected


@pytest.mark.parametrize(
    "value", [None, {"gte": 3}, [1, None], b"x", np.datetime64("2026-01-01"), np.ones(2)]
)
def test_what_cannot_be_compared(value):
    with pytest.raises(TypeError, match=r"filter\['key'\] must be a string, a number, a bool"):
        allowed_values({"key": value})


def test_what_is_no_key():
    with pytest.raises(TypeError, match="keys of a filter must be strings, not int"):
        allowed_values({1: "x"})


@pytest.mark.parametrize("value", [float("nan"), np.float32("nan"), float("inf"), [1.0, float("-inf")]])
def test_what_equals_nothing(value):
    with pytest.raises(ValueError, match=r"filter\['key'\] must be finite, got (nan|-?inf)"):
        allowed_values({"key": value})


def test_numbers_of_numpys_become_what_json_can_hold():
    allowed = allowed_values({"n": [np.int64(1), np.float32(0.5), np.float64(2), True]})
    assert json.dumps(allowed) == '{"n": [1, 0.5, 2.0, true]}'
