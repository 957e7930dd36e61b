import pytest

from contextpilot_integrations import ContextIndex
from contextpilot_integrations.index.rendering import render


def figure_4():
    index = ContextIndex()
    index.insert([1, 2, 3], request_id="r1")
    index.insert([1, 2, 6], request_id="r2")
    index.insert([1, 4, 0], request_id="r3")
    index.insert([5, "7", b"\xab\xcd\xef\x01"])
    return index


def test_the_tree_with_its_branches():
    assert str(figure_4()) == (
        "context index: 6 nodes, 9 tokens\n"
        "├─ [0] 1 · 3 accesses, 0 requests\n"
        "│  ├─ [0] 2 · 2 accesses, 0 requests\n"
        "│  │  ├─ [0] 3 · 1 access, 1 request\n"
        "│  │  └─ [1] 6 · 1 access, 1 request\n"
        "│  └─ [1] 4 0 · 1 access, 1 request\n"
        "└─ [1] 5 '7' abcdef · 1 access, 0 requests + unnamed"
    )


def test_labels_and_a_limit():
    drawn = render(figure_4(), label=lambda id: f"<{id}>", max_nodes=2)
    assert drawn.splitlines()[1:] == [
        "├─ [0] <1> · 3 accesses, 0 requests",
        "│  ├─ [0] <2> · 2 accesses, 0 requests",
        "… and 4 more",
    ]


def test_nothing_to_draw():
    assert str(ContextIndex()) == "context index: 0 nodes, 0 tokens"
    assert render(figure_4(), max_nodes=0).splitlines()[1:] == ["… and 6 more"]
    with pytest.raises(ValueError, match="max_nodes must be at least 0, got -1"):
        render(figure_4(), max_nodes=-1)


def test_long_nodes_and_long_ids_are_shortened():
    index = ContextIndex()
    index.insert([10**5000, "x" * 99, *range(9)])
    assert str(index).splitlines()[1] == (
        "└─ [0] an int of 16610 bits 'xxxxxxx...xxxxxxxx' 0 1 2 3 4 5 … 3 more"
        " · 1 access, 0 requests + unnamed"
    )
