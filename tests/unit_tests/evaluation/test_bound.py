import pytest

from contextpilot_integrations.evaluation.bound import ReuseBound, reuse_bound


def test_each_request_reuses_at_most_its_largest_overlap_with_an_earlier_one():
    # 0, then 2 ("ab" or "bc" of the first), then 2 ("cd" of the second; both together have 3).
    assert reuse_bound(["abc", "bcd", "acd"]) == ReuseBound(hits=4, total=9)


def test_arrival_order_looks_only_back():
    assert reuse_bound(["ab", "cd", "abcd"]).hits == 2
    assert reuse_bound(["abcd", "ab", "cd"]).hits == 4


def test_farthest_first_runs_the_small_ones_before_what_unites_them():
    # Behind "abcd" the next is "ef" (overlap 0), then "cd" (2), then "abef" (2, not its 2 + 2).
    assert reuse_bound(["abcd", "cd", "abef", "ef"], order="farthest").hits == 0 + 0 + 2 + 2
    assert reuse_bound(["abcd", "cd", "abef", "ef"]).hits == 0 + 2 + 2 + 2


def test_farthest_first_takes_the_earliest_of_equals():
    # Behind "a" all have overlap 0. "d" and "b" come first; "bd" before them would make it 2.
    assert reuse_bound(["a", "d", "b", "bd"], order="farthest").hits == 1


def test_duplicates_inside_a_request_count_once():
    assert reuse_bound(["aab", "aab"]) == ReuseBound(hits=2, total=4)


@pytest.mark.parametrize("order", ["arrival", "farthest"])
def test_nothing_to_reuse(order):
    assert reuse_bound([], order=order) == ReuseBound(0, 0)
    assert reuse_bound(["", ""], order=order).hit_ratio == 0.0
    assert reuse_bound(["", "a", "", "a"], order=order) == ReuseBound(1, 2)


def test_another_order_is_refused():
    with pytest.raises(ValueError, match='order must be "arrival" or "farthest"'):
        reuse_bound(["a"], order="nearest")  # type: ignore[arg-type]


def test_weighed_blocks_count_their_weight():
    weights = {"a": 5, "b": 1, "c": 1, "d": 7}
    bound = reuse_bound(["abc", "bcd", "acd"], weigh=weights.__getitem__)
    # 0, then "bc", then "cd" of the second (8) rather than "ac" of the first (6).
    assert bound == ReuseBound(hits=10, total=29)
    assert bound.hits_per_request == (0, 2, 8)


def test_farthest_first_goes_by_weight():
    weights = {"a": 1, "b": 1, "c": 9}
    # Behind "abc", "ab" overlaps in two blocks, but in less weight than "c"; both then find themselves whole.
    bound = reuse_bound(["abc", "c", "ab", "ac"], order="farthest", weigh=weights.__getitem__)
    assert bound.hits_per_request == (0, 9, 2, 10)


def test_each_request_has_its_part_wherever_it_was_executed():
    assert reuse_bound(["abcd", "cd", "abef", "ef"], order="farthest").hits_per_request == (0, 2, 2, 0)
