from random import Random
from statistics import stdev

import pytest

from contextpilot_integrations.evaluation.bench.paired import (
    PrefillFit,
    Ratio,
    bootstrap_mean,
    bound_cached_tokens,
    fit_prefill,
    ratio_of_sums,
)


class TestRatioOfSums:
    def test_it_is_of_the_sums_not_a_mean_of_ratios(self):
        assert ratio_of_sums([10, 2], [2, 4]).value == 2.0

    def test_a_ratio_that_all_requests_share_has_an_interval_of_no_width(self):
        ratio = ratio_of_sums([2, 20, 6], [1, 10, 3])
        assert (ratio.value, ratio.low, ratio.high) == (2.0, 2.0, 2.0)

    def test_the_interval_is_that_of_the_bootstrap(self):
        # Of two requests a quarter of the draws holds one twice: the middle 95 % spans from one to the other.
        ratio = ratio_of_sums([1, 3], [1, 1])
        assert (ratio.low, ratio.value, ratio.high) == (1.0, 2.0, 3.0)

    def test_more_requests_narrow_it_as_the_normal_law_says(self):
        ratio = ratio_of_sums([1.0, 3.0] * 200, [1.0] * 400)
        # The mean of 400 draws has a standard deviation of 1/20.
        assert ratio.low == pytest.approx(2 - 1.96 / 20, abs=0.015)
        assert ratio.high == pytest.approx(2 + 1.96 / 20, abs=0.015)

    def test_the_same_figures_give_the_same_interval(self):
        figures = [1.0, 4.0, 2.0, 8.0], [2.0, 1.0, 3.0, 5.0]
        assert ratio_of_sums(*figures) == ratio_of_sums(*figures)

    def test_requests_stay_paired(self):
        lengths = [float(length) for length in range(1, 101)]
        ratio = ratio_of_sums([2 * length for length in lengths], lengths)
        assert (ratio.low, ratio.high) == (2.0, 2.0)

    def test_constants_are_added_whoever_is_drawn(self):
        ratio = ratio_of_sums([1, 1], [1, 1], constants=(4, 1))
        assert (ratio.low, ratio.value, ratio.high) == (2.0, 2.0, 2.0)

    def test_nothing_to_divide_by_is_no_ratio(self):
        assert ratio_of_sums([1, 2], [0, 0]) == Ratio()
        assert ratio_of_sums([0, 0], [0, 0]) == Ratio()
        assert ratio_of_sums([], []) == Ratio()
        # Half of all draws leave out the one that has something.
        assert ratio_of_sums([1, 1], [0, 1]).high is None

    def test_what_cannot_be_paired_is_refused(self):
        with pytest.raises(ValueError, match="2 numerators cannot be paired with 1"):
            ratio_of_sums([1, 2], [1])

    def test_the_share_of_the_bound(self):
        assert ratio_of_sums([4], [2], bound=8.0).bound_share == 0.25
        assert ratio_of_sums([4], [2]).bound_share is None
        assert ratio_of_sums([4], [0], bound=8.0).bound_share is None


TOKENS = dict(zip("abcd", (100, 50, 50, 10), strict=True))


class TestBound:
    def bound(self, contexts, rest, order="arrival", page_tokens=1):
        return bound_cached_tokens(contexts, rest, TOKENS.__getitem__, order=order, page_tokens=page_tokens)

    def test_what_all_share_and_the_heaviest_overlap(self):
        assert self.bound(["abc", "bcd", "ad"], [20, 20, 20]) == [0, 120, 120]

    def test_only_whole_pages_are_found(self):
        assert self.bound(["abc", "bcd", "ad"], [20, 20, 20], page_tokens=32) == [0, 96, 96]

    def test_offline_the_order_is_free(self):
        assert self.bound(["abcd", "ab", "cd"], [0, 0, 0], "arrival") == [0, 150, 60]
        assert self.bound(["ab", "abcd", "cd"], [0, 0, 0], "farthest") == [0, 150, 0]


class TestFit:
    PROMPTS = (100, 200, 300, 300, 400, 400)
    CACHED = (0, 0, 0, 200, 100, 300)

    def times(self, request, token, pair):
        return [
            request + token * (prompt - cached) + pair * sum(place + 0.5 for place in range(cached, prompt))
            for prompt, cached in zip(self.PROMPTS, self.CACHED, strict=True)
        ]

    def test_what_a_request_a_token_and_a_pair_take(self):
        fit = fit_prefill(self.PROMPTS, self.CACHED, self.times(0.1, 0.002, 1e-5))
        assert fit.seconds_per_request == pytest.approx(0.1)
        assert fit.seconds_per_token == pytest.approx(0.002)
        assert fit.seconds_per_pair == pytest.approx(1e-5)

    def test_cached_tokens_save_their_work_but_are_still_attended_to(self):
        fit = PrefillFit(0.1, 0.002, 1e-5)
        assert fit.saved(1000, 0, instead_of=0) == 0
        assert fit.saved(1000, 600, instead_of=0) == pytest.approx(600 * 0.002 + 180_000 * 1e-5)
        assert fit.saved(1000, 0, instead_of=600) == -fit.saved(1000, 600, instead_of=0)

    @pytest.mark.parametrize(("token", "pair"), [(0.002, -1e-7), (-1e-4, 1e-5)])
    def test_nothing_is_taken_to_make_it_faster(self, token, pair):
        fit = fit_prefill(self.PROMPTS, self.CACHED, self.times(0.1, token, pair))
        taken = fit.seconds_per_token, fit.seconds_per_pair
        assert min(taken) == 0 < max(taken)
        assert [cost == 0 for cost in taken] == [token < 0, pair < 0]

    def test_there_is_none_where_times_do_not_grow(self):
        assert fit_prefill([100, 200], [0, 0], [0.3, 0.1]) is None
        assert fit_prefill([100, 100], [0, 0], [0.1, 0.3]) is None
        assert fit_prefill([100], [0], [0.1]) is None
        assert fit_prefill([], [], []) is None


def test_the_same_values_give_the_same_interval_and_another_seed_one_close_by():
    random = Random(1)
    values = [random.gauss(0.5, 1) for _ in range(50)]
    assert bootstrap_mean(values) == bootstrap_mean(values)
    assert bootstrap_mean(values) != bootstrap_mean(values, seed=1)
    assert bootstrap_mean(values).low == pytest.approx(bootstrap_mean(values, seed=1).low, abs=0.05)


def test_the_interval_is_that_of_a_normal_mean_where_there_are_many_values():
    random = Random(0)
    values = [random.gauss(3, 2) for _ in range(400)]
    found = bootstrap_mean(values)
    half = 1.96 * stdev(values) / 20
    assert found.mean == pytest.approx(sum(values) / 400)
    assert found.low == pytest.approx(found.mean - half, abs=0.03)
    assert found.high == pytest.approx(found.mean + half, abs=0.03)


def test_about_95_of_100_intervals_hold_the_true_mean():
    random = Random(0)
    intervals = [bootstrap_mean([random.gauss(0, 1) for _ in range(40)], resamples=1000) for _ in range(200)]
    assert 0.89 <= sum(one.low <= 0 <= one.high for one in intervals) / 200 <= 0.98


def test_equal_values_leave_no_doubt_and_none_are_refused():
    assert bootstrap_mean([0.25] * 7).low == bootstrap_mean([0.25] * 7).high == 0.25
    with pytest.raises(ValueError, match="no values"):
        bootstrap_mean([])
