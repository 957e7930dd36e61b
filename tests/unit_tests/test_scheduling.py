from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextpilot_integrations.scheduling import leaders, schedule


def test_a_subtree_is_finished_before_the_next_one():
    # By length alone, (0, 0, 0), (0, 1, 0), (0, 0, 1), … would alternate between two subtrees.
    paths = [(0, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1), (0, 0, 2)]
    assert schedule(paths) == (0, 2, 4, 1, 3)


def test_among_branches_the_deepest_then_the_larger_then_the_one_given_first_goes_first():
    paths = [(0, 0), (0, 1), (0, 1), (0, 2), (0, 2, 0)]
    assert schedule(paths) == (3, 4, 1, 2, 0)
    assert schedule([(0, 1), (0, 0)]) == (0, 1)


def test_a_prefix_that_no_two_requests_part_at_makes_none_deeper():
    assert schedule([(0, 1), (0, 2, 0, 0)]) == (0, 1)


def test_the_roots_children_go_by_size():
    assert schedule([(0, 0, 0, 0), (1,), (1,)]) == (1, 2, 0)


def test_a_request_at_an_inner_node_runs_before_those_that_extend_it():
    assert schedule([(0, 0), (0,)]) == (1, 0)


def test_equal_paths_run_in_the_order_given():
    assert schedule([(0,)] * 4) == (0, 1, 2, 3)


@pytest.mark.parametrize("paths", [[], [()], [(), ()]])
def test_without_paths(paths):
    assert schedule(paths) == tuple(range(len(paths)))


def test_a_tree_deeper_than_the_recursion_limit():
    assert schedule([(0,) * depth for depth in range(1500)]) == tuple(range(1500))


def test_a_request_waits_for_the_first_of_those_with_which_it_shares_most():
    contexts = ["abc", "ab", "abd", "abde", "abdf", "x", ""]
    assert leaders(contexts, range(7)) == [None, 0, 0, 2, 2, None, None]


def test_who_leads_depends_on_the_order():
    assert leaders(["abc", "abd", "abc"], [2, 1, 0]) == [2, 2, None]


@given(st.lists(st.text("abc", max_size=6), max_size=8).flatmap(lambda c: st.tuples(st.just(c), orders(c))))
def test_nobody_before_it_shares_more_than_its_leader(case):
    contexts, order = case
    for turn, place in enumerate(order):
        shared = [common(contexts[place], contexts[other]) for other in order[:turn]]
        best = max(shared, default=0)
        expected = order[shared.index(best)] if best else None
        assert leaders(contexts, order)[place] == expected


def common(left, right):
    return sum(takewhile(bool, (a == b for a, b in zip(left, right, strict=False))))


def orders(contexts):
    return st.permutations(range(len(contexts)))
