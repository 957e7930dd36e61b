"""Published figures of real traces: hit ratio of the original order, and the bounds."""

import pytest

from contextpilot_integrations.evaluation import (
    analyze,
    build_prompt,
    parse_capacity,
    read_trace,
    reuse_bound,
    simulate,
    simulate_tokens,
    tokenize,
)


@pytest.mark.parametrize(
    ("name", "unlimited", "at_10_percent", "offline", "online"),
    [
        ("2wikimultihopqa_psirag_k5", 0.007, 0.002, 0.163, 0.182),
        ("graphragbench_novel_bm25_k15", 0.071, 0.067, 0.505, 0.559),
        ("graphragbench_novel_lsa_k15", 0.103, 0.098, 0.724, 0.767),
        ("hotpotqa_psirag_k5", 0.001, 0.000, 0.064, 0.070),
        ("mtrag_clapnq_elser_questions_k10", 0.242, 0.237, 0.662, 0.695),
        ("multihoprag_proxy_bm25_k15", 0.047, 0.015, 0.346, 0.383),
        ("qasper_bm25_256tok_k15", 0.036, 0.013, 0.297, 0.347),
    ],
)
def test_block_hit_ratios_and_bounds(data_dir, name, unlimited, at_10_percent, offline, online):
    contexts = [request.blocks for request in read_trace(data_dir / "traces" / f"{name}.jsonl")]
    result = simulate(contexts)
    tenth = simulate(contexts, parse_capacity("10%", result.total))
    assert result.hit_ratio == pytest.approx(unlimited, abs=0.0005)
    assert tenth.hit_ratio == pytest.approx(at_10_percent, abs=0.0005)
    assert reuse_bound(contexts, order="farthest").hit_ratio == pytest.approx(offline, abs=0.0005)
    assert reuse_bound(contexts).hit_ratio == pytest.approx(online, abs=0.0005)


def test_overlap_figures(data_dir):
    figures = analyze(read_trace(data_dir / "traces" / "mtrag_clapnq_elser_questions_k10.jsonl"))
    assert (figures.requests, figures.accesses, figures.distinct_blocks) == (208, 2080, 570)
    assert figures.top20pct_accessed_share == pytest.approx(0.455, abs=0.0005)
    assert figures.seen_before_ratio == pytest.approx(0.726, abs=0.0005)
    assert figures.turn_repeat_share == pytest.approx(0.832, abs=0.0005)


def test_tokens_follow_blocks(data_dir):
    """Blocks differ in length and the prompt has other parts, but the two ratios are of one size."""
    pytest.importorskip("bpe_openai")
    trace = read_trace(
        data_dir / "traces" / "mtrag_clapnq_elser_questions_k10.jsonl",
        data_dir / "blocks" / "mtrag_clapnq.jsonl",
    )
    prompts = [tokenize(build_prompt(request.blocks, query=request.query)) for request in trace]
    assert simulate_tokens(prompts).hit_ratio == pytest.approx(0.242, abs=0.02)
