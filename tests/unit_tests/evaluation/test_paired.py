from random import Random
from statistics import stdev

import pytest

from contextpilot_integrations.evaluation.bench.paired import bootstrap_mean


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
