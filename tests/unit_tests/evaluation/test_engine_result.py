"""Figures of passes whose samples are given."""

from dataclasses import replace

import pytest

from contextpilot_integrations.evaluation.bench.engine_report import comparison_tables
from contextpilot_integrations.evaluation.bench.engine_result import EnginePass, EngineResult, Sample
from contextpilot_integrations.evaluation.bench.plots import plot_engine

FAILED = Sample(error="TimeoutError: late")


def answered(uncached, cached):
    """A request whose first token takes 0.1 s, and a millisecond for each token that is not cached."""
    ttft = 0.1 + 0.001 * uncached
    return Sample(ttft, ttft + 0.05, uncached + cached, cached)


ORIGINAL = EnginePass("original", ((answered(1000, 0), answered(900, 100)),), (2.2,))
OURS = EnginePass("ours", ((answered(1010, 0), answered(310, 700)),), (1.65,))


def result(*passes, bound=(0, 800), **settings):
    defaults = {"mode": "offline", "sessions": 1, "repeats": 1, "model": "m"}
    return EngineResult(
        **{**defaults, **settings}, cold_start="a reset", cache_tokens=None, passes=passes, bound=bound
    )


def test_the_figures_of_a_pass():
    figures = result(ORIGINAL, OURS).to_dict()
    assert figures["prompt_tokens_original"] == 2000
    assert figures["cached_tokens_original"] == 100
    assert figures["cached_share_original"] == 0.05
    assert figures["ttft_p50_s_original"] == pytest.approx(1.05)
    assert figures["ttft_total_s_original"] == pytest.approx(2.1)
    assert figures["seconds_original"] == 2.2
    assert figures["failed_original"] == 0


def test_ratios_and_the_largest_possible_ones():
    figures = result(ORIGINAL, OURS).to_dict()
    assert figures["ttft_ratio"] == pytest.approx(2.1 / 1.52)
    # At best 1,000 and 200 tokens of the original's prompts are computed.
    assert figures["ttft_ratio_bound"] == pytest.approx(2.1 / 1.4)
    assert figures["cached_tokens_ratio"] == 7.0
    assert figures["cached_tokens_ratio_bound"] == 8.0
    assert figures["cached_tokens_ratio_bound_share"] == 0.875
    assert figures["seconds_ratio"] == pytest.approx(2.2 / 1.65)
    assert figures["seconds_ratio_bound"] == pytest.approx(2.2 / 1.5)
    assert figures["cached_tokens_bound"] == 800
    assert figures["ttft_fit_s"] == pytest.approx(0.1)
    assert figures["ttft_fit_s_per_1000_tokens"] == pytest.approx(1.0)


def test_where_no_more_can_be_found_nothing_can_be_faster():
    slower = tuple(replace(sample, ttft=1.5 * sample.ttft) for sample in ORIGINAL.samples[0])
    figures = result(ORIGINAL, EnginePass("ours", (slower,), (3.3,)), bound=(0, 100)).to_dict()
    assert figures["ttft_ratio"] == pytest.approx(1 / 1.5)
    assert figures["ttft_ratio_bound"] == figures["seconds_ratio_bound"] == 1


def test_that_needs_no_fit():
    alike = EnginePass("original", ((answered(1000, 0), answered(1000, 0)),), (2.2,))
    figures = result(alike, EnginePass("ours", alike.samples, (2.1,)), bound=(0, 0)).to_dict()
    assert figures["ttft_fit_s"] is None
    assert figures["ttft_ratio_bound"] == figures["seconds_ratio_bound"] == 1


def test_repeats_are_averaged():
    slow = tuple(replace(sample, ttft=3 * sample.ttft) for sample in ORIGINAL.samples[0])
    twice = EnginePass("original", (ORIGINAL.samples[0], slow), (2.0, 6.0))
    ours = EnginePass("ours", OURS.samples * 2, OURS.repeat_seconds * 2)
    figures = result(twice, ours, repeats=2).to_dict()
    assert figures["ttft_total_s_original"] == pytest.approx(2 * 2.1)
    assert figures["ttft_ratio"] == pytest.approx(2 * 2.1 / 1.52)
    assert figures["seconds_original"] == 4.0
    assert figures["cached_tokens_original"] == 100


def test_with_several_in_flight_waiting_is_no_prefill():
    figures = result(ORIGINAL, OURS, sessions=2).to_dict()
    assert figures["ttft_ratio_bound"] is figures["ttft_fit_s"] is None
    assert figures["cached_tokens_ratio_bound"] == 8.0
    assert figures["seconds_ratio"] == pytest.approx(2.2 / 1.65)


def test_a_failed_request_is_counted_and_compared_with_nothing():
    ours = EnginePass("ours", ((OURS.samples[0][0], FAILED),), (1.2,))
    figures = result(ORIGINAL, ours).to_dict()
    assert (figures["failed_original"], figures["failed_ours"]) == (0, 1)
    assert figures["ttft_ratio"] == pytest.approx(1.1 / 1.11)


def test_where_all_fail_there_are_no_figures():
    failed = [EnginePass(name, ((FAILED, FAILED),), (1.0,)) for name in ("original", "ours")]
    figures = result(*failed, bound=None).to_dict()
    assert figures["failed_ours"] == 2
    assert figures["ttft_ratio"] is figures["prompt_tokens_ours"] is figures["cached_tokens_ours"] is None
    comparison_tables(result(*failed, bound=None))


def test_counts_that_nobody_told_are_unknown():
    silent = [
        EnginePass(one.name, (tuple(replace(s, cached_tokens=None) for s in one.samples[0]),), (1.0,))
        for one in (ORIGINAL, OURS)
    ]
    figures = result(*silent).to_dict()
    assert figures["cached_tokens_ours"] is figures["cached_tokens_ratio"] is None
    assert figures["ttft_ratio_bound"] is None


def test_a_count_left_out_beside_others_is_zero():
    left_out = EnginePass(
        "original", (tuple(replace(s, cached_tokens=None) for s in ORIGINAL.samples[0]),), (2.2,)
    )
    assert result(left_out, OURS).to_dict()["cached_tokens_original"] == 0
    assert result(left_out, OURS).to_dict()["cached_tokens_ratio"] is None


def test_a_third_pass_has_figures_of_its_own(tmp_path):
    three = result(ORIGINAL, OURS, replace(OURS, name="ours_events", repeat_seconds=(1.1,)))
    figures = three.to_dict()
    assert figures["events_seconds_ratio"] == pytest.approx(2.0)
    assert figures["seconds_ours_events"] == 1.1
    assert [len(table.columns) for table in comparison_tables(three)] == [4, 5]
    pytest.importorskip("matplotlib")
    plot_engine(three, tmp_path / "engine.svg")
    assert "with KV events" in (tmp_path / "engine.svg").read_text()
