import pytest

pytest.importorskip("langchain_core")

from contextpilot_integrations.retrievers.filters import allowed_values, matches

METADATA = {"lang": "en", "year": 2024, "tags": ["a", "b"], "source": {"page": 3}, "a.b": 1, "draft": False}


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
        ({"missing": "x"}, False),
        ({"draft": False}, True),
        ({"draft": 0}, False),
        ({"year": 2024.0}, True),
        ({"year": "2024"}, False),
    ],
)
def test_all_keys_must_hold_an_allowed_value(condition, expected):
    assert matches(allowed_values(condition), METADATA) is expected


@pytest.mark.parametrize("value", [None, {"gte": 3}, [1, None], b"x"])
def test_what_cannot_be_compared(value):
    with pytest.raises(TypeError, match=r"filter\['key'\] must be a string, a number, a bool"):
        allowed_values({"key": value})
