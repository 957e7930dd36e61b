import random

import pytest
import torch

from contextpilot_integrations.index.clustering import cluster

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]


def leaves(roots):
    stack, found = list(roots), []
    while stack:
        node = stack.pop()
        stack.extend(node.children)
        if not node.children:
            found.append(node)
    return found


def test_the_largest_intersection_merges_first():
    (root,) = cluster([[2, 1, 3], [2, 6, 1], [4, 1, 0]])
    assert root.blocks == (1,)
    inner, third = root.children
    assert set(inner.blocks) == {1, 2}
    assert third.blocks == (4, 1, 0)
    assert [leaf.members for leaf in inner.children] == [(0,), (1,)]


def test_tokens_count_where_weights_are_given():
    contexts = [[1, 2, 3], [1, 2, 4], [3, 5, 6]]
    assert [root.blocks for root in cluster(contexts)] == [(1, 2), (3, 5, 6)]
    heavy = {1: 1, 2: 1, 3: 100, 4: 1, 5: 1, 6: 1}
    assert [root.blocks for root in cluster(contexts, heavy)] == [(3,), (1, 2, 4)]


def test_of_equal_intersections_the_lighter_pair_merges_first():
    roots = cluster([[1, 2, 3, 4, 5], [1, 2, 6, 7, 8], [1, 2, 9]])
    (root,) = roots
    assert sorted(leaf.members for leaf in leaves(roots)) == [(0,), (1,), (2,)]
    inner = next(node for node in root.children if node.children)
    assert (2,) in {leaf.members for leaf in leaves([inner])}


def test_equal_contexts_share_a_leaf_in_whatever_order():
    (root,) = cluster([[1, 2], [2, 1], [1, 2]])
    assert (root.blocks, root.members) == ((1, 2), (0, 1, 2))


def test_contexts_that_share_nothing_stay_apart_and_empty_ones_have_no_leaf():
    assert [root.blocks for root in cluster([[1], [], [2, 3]])] == [(1,), (2, 3)]


@pytest.mark.parametrize("contexts", [[], [[]], [[], []]])
def test_nothing_to_cluster(contexts):
    assert cluster(contexts) == ()


def test_a_corpus_of_one():
    (root,) = cluster([["only"]] * 5)
    assert root.members == (0, 1, 2, 3, 4)


def test_subsets_merge_into_the_smaller_one():
    (root,) = cluster([[1, 2, 3], [2, 1]])
    assert set(root.blocks) == {1, 2}


@pytest.mark.parametrize("device", DEVICES)
def test_every_run_and_device_gives_the_same(device):
    generator = random.Random(1)
    contexts = [generator.sample(range(40), 8) for _ in range(700)]
    assert cluster(contexts, device=device) == cluster(contexts)


@pytest.mark.parametrize("device", DEVICES)
def test_equal_distances_everywhere_pair_neighbours_and_take_few_rounds(device):
    contexts = [[0, *range(10 * i + 1, 10 * i + 8)] for i in range(256)]
    (root,) = cluster(contexts, device=device)
    assert [leaf.members for leaf in reversed(leaves([root]))] == [(i,) for i in range(256)]
    depth, level = 0, [root]
    while level := [child for node in level for child in node.children]:
        depth += 1
    assert depth == 8  # pairs of neighbours, then pairs of pairs: log2(256)


def test_weights_beyond_the_exact_integers_of_float32():
    heavy = {block: 2**23 + block for block in range(6)}
    (root,) = cluster([[0, 1, 2, 3], [0, 1, 2, 4], [3, 5, 0, 1]], heavy)
    assert {leaf.members for leaf in leaves([root])} == {(0,), (1,), (2,)}
