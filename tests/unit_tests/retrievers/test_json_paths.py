import pytest

pytest.importorskip("langchain_core")

from contextpilot_integrations.retrievers.json_paths import values_at, without


@pytest.mark.parametrize(
    ("held", "path", "expected"),
    [
        ({"a": 1}, "a", [1]),
        ({"a": 1}, "b", []),
        ({"a": {"b": 1}}, "a.b", [1]),
        ({"a.b": 1}, "a.b", [1]),
        ({"a": {"b.c": 1}, "a.b": {"c": 2}, "a.b.c": 3}, "a.b.c", [1, 2, 3]),
        ({"a": [{"b": [1, [2]]}, {"b": 3}, 4]}, "a.b", [1, 2, 3]),
        ({"a": {"b": {"c": 1}}}, "a.b", [{"c": 1}]),
        ({"a": None}, "a", [None]),
        ({"": 1, "a": {"": 2}}, "a.", [2]),
        ({"ab": 1}, "a", []),
        ("text", "a", []),
    ],
)
def test_values_at_a_path(held, path, expected):
    assert [*values_at(held, path)] == expected


@pytest.mark.parametrize(
    ("held", "path", "expected"),
    [
        ({"a": 1, "b": 2}, "a", {"b": 2}),
        ({"a": {"b": 1, "c": 2}}, "a.b", {"a": {"c": 2}}),
        ({"a.b": 1, "a": [{"b": 2, "c": 3}, 4]}, "a.b", {"a": [{"c": 3}, 4]}),
        ({"a": 1}, "a.b", {"a": 1}),
    ],
)
def test_without_what_stands_at_a_path(held, path, expected):
    before = repr(held)
    assert without(held, path) == expected
    assert repr(held) == before
    assert [*values_at(without(held, path), path)] == []
