import threading

import pytest

from contextpilot_integrations import ContextIndex


def filled(*sequences, **settings):
    index = ContextIndex(**settings)
    for sequence in sequences:
        index.insert(sequence)
    index.check_integrity()
    return index


class TestSearch:
    def test_an_empty_index_knows_nothing(self):
        match = ContextIndex().search([1, 2])
        assert (match.blocks, match.weight) == ((), 0)

    def test_an_empty_context_finds_nothing(self):
        assert filled([1, 2]).search([]).blocks == ()

    def test_it_is_exact_where_a_greedy_descent_is_not(self):
        index = filled([1, 2], [3, 4, 5, 6])
        assert index.search([1, 3, 4, 5, 7]).blocks == (3, 4, 5)

    def test_worth_is_counted_in_tokens(self):
        index = ContextIndex()
        index.insert([1, 2, 3], [1, 1, 1])
        index.insert([4], [10])
        match = index.search([1, 2, 3, 4])
        assert (match.blocks, match.weight) == ((4,), 10)

    def test_an_edge_is_followed_partly(self):
        index = filled([1, 2, 3, 4])
        assert index.search([4, 2, 1]).blocks == (1, 2)

    def test_a_block_behind_a_missing_one_is_out_of_reach(self):
        assert filled([1, 2, 3]).search([1, 3]).blocks == (1,)

    def test_of_equal_worth_the_lowest_position_wins(self):
        index = filled([1, 2], [3, 4])
        assert index.search([4, 3, 2, 1]).blocks == (1, 2)

    def test_the_number_of_visits_is_bounded(self):
        index = ContextIndex(max_visits=1)
        index.insert([1])
        assert index.search([1]).blocks == ()


class TestInsertion:
    def test_what_was_cached_is_reported(self):
        index = ContextIndex()
        assert index.insert([1, 2, 3], [5, 5, 5]).cached_blocks == 0
        again = index.insert([1, 2, 9], [5, 5, 5])
        assert (again.cached_blocks, again.cached_weight) == (2, 10)

    def test_duplicates_of_a_context_cost_no_node(self):
        index = filled(*[[1, 2, 3]] * 300)
        assert len(index) == 1
        assert index.traverse([0]).accesses == 300

    @pytest.mark.parametrize("order", [[[1, 2], [1, 2, 3]], [[1, 2, 3], [1, 2]]])
    def test_a_request_may_end_at_an_inner_node(self, order):
        index = filled(*order)
        assert sorted(node.sequence for node in index) == [(1, 2), (1, 2, 3)]

    def test_an_empty_sequence_ends_at_the_root(self):
        index = ContextIndex()
        assert index.insert([], request_id="r").node is index.root
        index.check_integrity()
        assert index.evict("r")
        index.check_integrity()

    def test_positions_are_never_given_twice(self):
        index = ContextIndex()
        index.insert([1], request_id="a")
        index.insert([2], request_id="b")
        index.evict("b")
        assert index.insert([3]).node.path == (2,)
        assert index.traverse([0]).sequence == (1,)

    def test_ids_of_mixed_types(self):
        index = filled([1, "1", (1,), "", 2**100])
        assert index.search(["1", (1,), 2**100, 1, ""]).blocks == (1, "1", (1,), "", 2**100)
        assert index.search(["1"]).blocks == ()

    def test_a_block_that_occurs_twice_is_refused(self):
        with pytest.raises(ValueError, match="collapse duplicates first"):
            ContextIndex().insert([1, 2, 1])

    @pytest.mark.parametrize("weights", [[1], [1, 0], [1, 1, 1]])
    def test_weights_that_do_not_fit_are_refused(self, weights):
        with pytest.raises(ValueError, match="weights must be 2 integers"):
            ContextIndex().insert([1, 2], weights)

    def test_a_thousand_disjoint_contexts_and_one_more(self):
        index = filled(*[[i, -i - 1] for i in range(1001)])
        assert len(index) == 1001
        assert index.insert([2000]).node.path == (1001,)

    def test_a_context_of_2000_blocks_and_its_reverse(self):
        forward = list(range(2000))
        index = filled(forward, forward[::-1])
        assert index.search(forward[::-1]).blocks == tuple(forward)
        nested = filled(*[forward[:length] for length in range(1, 2001, 2)])
        assert nested.search(forward).blocks == tuple(forward[:1999])
        assert nested.insert([*forward[:1999], -1]).node.path == (0,) * 1001


class TestEviction:
    def test_a_node_goes_with_its_last_request(self):
        index = ContextIndex()
        index.insert([1, 2], request_id="a")
        index.insert([1, 2], request_id="b")
        assert index.evict("a")
        assert index.search([1, 2]).blocks == (1, 2)
        assert index.evict("b")
        assert index.search([1, 2]).blocks == ()
        assert len(index) == 0

    def test_what_others_pass_through_stays(self):
        index = ContextIndex()
        index.insert([1, 2], request_id="a")
        index.insert([1, 2, 3], request_id="b")
        assert index.evict("a")
        assert index.search([1, 2]).blocks == (1, 2)
        assert index.evict("b")
        assert len(index) == 0

    def test_a_beginning_that_two_share_goes_with_the_last_of_them(self):
        index = ContextIndex()
        index.insert([1, 2, 3], request_id="a")
        index.insert([1, 2, 4], request_id="b")
        assert index.evict("a")
        assert [node.sequence for node in index] == [(1, 2), (1, 2, 4)]
        index.check_integrity()
        assert index.evict("b")
        assert len(index) == 0

    def test_an_unknown_request_and_the_same_one_twice(self):
        index = ContextIndex()
        index.insert([1], request_id="a")
        assert not index.evict("b")
        assert index.evict("a")
        assert not index.evict("a")
        index.check_integrity()

    def test_a_request_without_an_id_is_not_evicted_with_another_one(self):
        index = ContextIndex()
        index.insert([1, 2])
        index.insert([1, 2], request_id="a")
        index.evict("a")
        assert index.search([1, 2]).blocks == (1, 2)

    def test_an_id_that_is_used_again_names_the_later_request(self):
        index = ContextIndex()
        index.insert([1], request_id="a")
        index.insert([2], request_id="a")
        index.check_integrity()
        assert index.evict("a")
        assert index.search([1]).blocks == (1,)
        assert index.search([2]).blocks == ()

    def test_a_request_that_is_sent_twice_is_evicted_once(self):
        index = ContextIndex()
        index.insert([1, 2], request_id="a")
        index.insert([1, 2], request_id="a")
        assert index.evict("a")
        assert len(index) == 0

    def test_an_id_that_cannot_be_kept_changes_nothing(self):
        index = ContextIndex(capacity=3)
        with pytest.raises(TypeError, match="unhashable"):
            index.insert([1, 2], request_id=["a"])
        index.check_integrity()
        assert index.insert([1, 2, 3, 4]).cached_blocks == 0

    def test_the_number_of_ids_is_bounded(self):
        index = ContextIndex(max_requests=2)
        for request in range(5):
            index.insert([request], request_id=request)
        index.check_integrity()
        assert not index.evict(2)
        assert index.search([2]).blocks == (2,)
        assert index.evict(3)


class TestCut:
    def test_half_a_prefix_cut_is_half_a_prefix_kept(self):
        index = ContextIndex()
        index.insert([1, 2, 3, 4], [10, 20, 30, 40])
        assert index.cut([1, 2, 3, 4], 2) == 70
        assert index.search([1, 2, 3, 4]).blocks == (1, 2)
        index.check_integrity()

    def test_all_that_extends_the_block_goes_too(self):
        index = filled([1, 2, 3], [1, 2, 4], [1, 2, 4, 5], [1, 6])
        assert index.cut([1, 2, 9], 1) == 4
        assert [node.sequence for node in index] == [(1,), (1, 6)]
        index.check_integrity()

    def test_a_cut_at_the_first_block_leaves_nothing_of_it(self):
        index = filled([1, 2], [1, 3], [4])
        index.cut([1], 0)
        assert [node.sequence for node in index] == [(4,)]
        index.check_integrity()

    @pytest.mark.parametrize(
        ("sequence", "depth"),
        [([1, 2, 9], 2), ([1, 9, 3], 1), ([1, 9, 3], 2), ([9], 0), ([1, 2], 2), ([], 0)],
    )
    def test_what_is_not_stored_that_far_is_left_alone(self, sequence, depth):
        index = filled([1, 2, 3])
        assert index.cut(sequence, depth) == 0
        assert [node.sequence for node in index] == [(1, 2, 3)]
        index.check_integrity()

    def test_requests_in_what_is_cut_are_forgotten_and_no_others(self):
        index = ContextIndex()
        index.insert([1], request_id="short")
        index.insert([1, 2, 3], request_id="long")
        index.insert([1, 2, 3, 4], request_id="longer")
        index.cut([1, 2, 3, 4], 2)
        index.check_integrity()
        assert not index.evict("long")
        assert not index.evict("longer")
        assert index.evict("short")
        assert index.search([1, 2]).blocks == (1, 2)

    def test_no_eviction_by_id_prunes_what_a_cut_left(self):
        index = ContextIndex()
        index.insert([1, 2], request_id="a")
        index.cut([1, 2], 1)
        index.insert([1, 3], request_id="b")
        index.evict("b")
        assert index.search([1]).blocks == (1,)

    def test_recency_is_kept(self):
        index = ContextIndex(capacity=4)
        index.insert([1, 2])
        index.insert([3, 4])
        index.cut([1, 2], 1)
        index.insert([5, 6])
        assert [node.sequence for node in index] == [(3, 4), (5, 6)]

    def test_a_place_before_the_first_is_refused(self):
        with pytest.raises(ValueError, match="depth must be at least 0, got -1"):
            ContextIndex().cut([1], -1)


class TestCapacity:
    def test_the_least_recently_used_leaf_goes_from_its_end(self):
        index = filled([1, 2, 3], [4, 5, 6], capacity=5)
        assert index.search([1, 2, 3]).blocks == (1, 2)
        assert index.search([4, 5, 6]).blocks == (4, 5, 6)

    def test_a_used_prefix_outlives_an_unused_leaf(self):
        index = filled([1, 2], [3, 4], [1, 9], capacity=4)
        assert index.search([1, 2]).blocks == (1,)
        assert index.search([1, 9]).blocks == (1, 9)
        assert index.search([3, 4]).blocks == (3, 4)

    def test_a_request_larger_than_all_keeps_its_beginning(self):
        index = filled(list(range(10)), capacity=4)
        assert index.search(list(range(10))).blocks == (0, 1, 2, 3)

    def test_a_request_that_fell_out_is_unknown(self):
        index = ContextIndex(capacity=2)
        index.insert([1, 2], request_id="a")
        index.insert([3, 4], request_id="b")
        index.check_integrity()
        assert not index.evict("a")

    @pytest.mark.parametrize("name", ["capacity", "max_requests", "max_visits"])
    def test_a_limit_below_one_is_refused(self, name):
        with pytest.raises(ValueError, match=f"{name} must be at least 1"):
            ContextIndex(**{name: 0})


def test_clear_and_the_same_contexts_again():
    index = filled([1, 2, 3], [1, 4])
    before = [(node.path, node.sequence) for node in index]
    index.clear()
    assert (len(index), index.total_weight) == (0, 0)
    for sequence in ([1, 2, 3], [1, 4]):
        index.insert(sequence)
    assert [(node.path, node.sequence) for node in index] == before


class TestCheckIntegrity:
    def test_it_notices_a_wrong_weight(self):
        index = filled([1, 2, 3], [1, 4])
        index.total_weight += 1
        with pytest.raises(AssertionError, match="total weight"):
            index.check_integrity()

    def test_a_block_may_occur_in_each_branch_but_once_on_a_path(self):
        index = filled([1, 2, 3], [1, 2, 4, 3], [1, 4], [3, 2, 1], [4])
        node = index.traverse([0, 0, 1])
        node.blocks = (*node.blocks[:-1], 1)
        with pytest.raises(AssertionError, match="a block occurs once in a sequence"):
            index.check_integrity()


def test_a_caller_with_a_lock_may_share_it_between_threads():
    index, lock, threads = ContextIndex(capacity=300), threading.Lock(), 4

    def work(seed):
        for step in range(400):
            context = [(seed * step + place * place) % 50 for place in range(8)]
            context = list(dict.fromkeys(context))
            with lock:
                match = index.search(context)
                rest = [block for block in context if block not in match.blocks]
                index.insert([*match.blocks, *rest], request_id=(seed, step))
                index.evict((seed, step - 5))

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(1, threads + 1)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    index.check_integrity()
