"""The system's worked examples, each as it is told."""

import pytest

from contextpilot_integrations import ContextBlock, ContextIndex, ContextPilot
from contextpilot_integrations.annotation import order_annotation
from contextpilot_integrations.index.distance import context_distance, pairwise_distances
from contextpilot_integrations.scheduling import schedule

C1, C2, C3 = [2, 1, 3], [2, 6, 1], [4, 1, 0]
C6, C7, C8 = [2, 1, 4], [5, 7, 8], [1, 2, 9]


def blocks(ids):
    return [ContextBlock(id) for id in ids]


@pytest.fixture
def pilot():
    """A pilot that has planned C1, C2 and C3 offline, as in Figure 4."""
    pilot = ContextPilot()
    pilot.prepare_batch([blocks(C1), blocks(C2), blocks(C3)])
    return pilot


def digests(ids):
    return tuple(ContextBlock(id).digest for id in ids)


class TestDistance:
    A, B, C, D = [3, 5, 1, 7], [2, 6, 3, 5], [3, 5, 8, 9], [2, 6, 4, 0]

    def test_b_and_d_are_nearest_since_their_shared_blocks_stand_at_the_same_positions(self):
        assert context_distance(self.A, self.B) == 1 - 2 / 4 + 0.001 * (2 + 2) / 2 == 0.502
        assert context_distance(self.B, self.C) == 0.502
        assert context_distance(self.B, self.D) == 0.500
        assert context_distance(self.A, self.C) == 0.500

    def test_on_torch(self):
        distances = pairwise_distances([self.A, self.B, self.C, self.D])
        assert distances[0, 1] == distances[1, 2] == 0.502
        assert distances[1, 3] == distances[0, 2] == 0.500
        assert distances[0, 3] == 1.0


class TestConstruction:
    def test_figure_4(self, pilot):
        with pilot.index() as index:
            assert index.root.sequence == ()
            (c5,) = index.root.children.values()
            assert (c5.path, c5.sequence) == ((0,), digests([1]))
            c4, c3 = c5.children.values()
            assert (c4.path, c4.sequence) == ((0, 0), digests([1, 2]))
            assert (c3.path, c3.sequence) == ((0, 1), digests([1, 4, 0]))
            c1, c2 = c4.children.values()
            assert c1.sequence == digests([1, 2, 3])
            assert c2.sequence == digests([1, 2, 6])

    def test_a_node_keeps_what_a_node_keeps(self, pilot):
        with pilot.index() as index:
            c4 = index.traverse([0, 0])
            assert c4.sequence == digests([1, 2])
            assert c4.path == (0, 0)
            assert c4.accesses == 2
            assert c4.distance == context_distance([1, 2, 3], [1, 2, 6])


class TestSearchAndInsertion:
    def test_c6_ties_between_c4_and_c3_and_becomes_child_2_of_c4(self, pilot):
        assert context_distance(C6, [1, 2]) == pytest.approx(0.33433, abs=1e-5)
        assert context_distance(C6, [1, 4, 0]) == pytest.approx(0.33433, abs=1e-5)
        with pilot.index() as index:
            match = index.search(digests(C6))
            assert match.node.path == (0, 0)
            assert match.blocks == digests([1, 2])
        assert pilot.prepare(blocks(C6)).search_path == (0, 0, 2)

    def test_c8_lands_beside_it_and_c7_overlaps_nothing(self, pilot):
        pilot.prepare(blocks(C6))
        assert pilot.prepare(blocks(C8)).search_path == (0, 0, 3)
        assert pilot.prepare(blocks(C7)).search_path == (1,)

    def test_traversal_follows_a_path_until_its_node_is_gone(self):
        index = ContextIndex()
        index.insert([1, 2, 3], request_id="r")
        assert index.traverse([0]).sequence == (1, 2, 3)
        index.evict("r")
        with pytest.raises(LookupError, match=r"search path \(0,\) is gone"):
            index.traverse([0])


class TestAlignment:
    def test_figure_5(self, pilot):
        batch = ContextPilot().prepare_batch([blocks(C1), blocks(C2), blocks(C3)])
        assert [plan.block_ids for plan in batch.plans] == [(1, 2, 3), (1, 2, 6), (1, 4, 0)]
        assert pilot.prepare(blocks(C6)).block_ids == (1, 2, 4)
        assert pilot.prepare(blocks(C7)).block_ids == (5, 7, 8)
        assert pilot.prepare(blocks(C8)).block_ids == (1, 2, 9)


class TestScheduling:
    def test_figure_6(self):
        paths = {"C6": (0, 0, 2), "C3": (0, 1), "C7": (1,), "C8": (0, 0, 3)}
        order = schedule(list(paths.values()))
        assert [list(paths)[place] for place in order] == ["C6", "C8", "C3", "C7"]


class TestAnnotation:
    def test_order(self, pilot):
        sentence = (
            "Please read the context in the following priority order: [CB_2] > [CB_1] > [CB_4] "
            "and answer the question."
        )
        assert order_annotation(blocks(C6)) == sentence
        assert pilot.prepare(blocks(C6)).order_annotation == sentence
