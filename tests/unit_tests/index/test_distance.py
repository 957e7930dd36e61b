import random

import pytest
import torch

from contextpilot_integrations.index.distance import context_distance, pairwise_distances

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]


def contexts(count, seed=0):
    generator = random.Random(seed)
    return [generator.sample(range(30), generator.randint(0, 12)) for _ in range(count)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("tile", [1, 7, 512])
def test_all_pairs_equal_the_definition_bit_for_bit(device, tile):
    batch = contexts(40)
    distances = pairwise_distances(batch, alpha=0.007, device=device, tile=tile).cpu()
    assert distances.dtype == torch.float64
    for i, left in enumerate(batch):
        for j, right in enumerate(batch):
            assert distances[i, j].item() == context_distance(left, right, alpha=0.007)


def test_nothing_shared_and_empty_contexts_are_at_one():
    assert context_distance([1, 2], [3]) == 1.0
    assert context_distance([], [3]) == 1.0
    assert context_distance([], []) == 1.0
    assert pairwise_distances([[1], [2], []]).tolist() == [[0, 1, 1], [1, 0, 1], [1, 1, 1]]


def test_the_position_term_can_pass_one_for_very_long_contexts():
    forward = list(range(3000))
    assert context_distance(forward, forward[::-1]) > 1.0


def test_no_contexts():
    assert pairwise_distances([]).shape == (0, 0)


def test_ids_of_mixed_types():
    assert context_distance(["1", 1], [1, "1"]) == pytest.approx(0.001)
