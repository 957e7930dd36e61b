from contextpilot_integrations.evaluation.baselines import longest_prefix_match, sort_by_frequency


def test_the_longest_cached_prefix_runs_next():
    assert longest_prefix_match(["abc", "xyz", "ab", "abcd", "xy"]) == (0, 3, 2, 1, 4)


def test_ties_and_requests_without_blocks_run_in_arrival_order():
    assert longest_prefix_match(["a", "", "b", "c", ""]) == (0, 1, 2, 3, 4)
    assert longest_prefix_match([]) == ()


def test_frequent_blocks_stand_first():
    assert sort_by_frequency(["xa", "ba", "cab"]) == (("a", "x"), ("a", "b"), ("a", "b", "c"))


def test_equally_frequent_blocks_stand_in_order_of_first_sight():
    assert sort_by_frequency([[3, "b"], ["a", "b", 3]]) == ((3, "b"), (3, "b", "a"))
