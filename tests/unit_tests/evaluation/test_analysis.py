from contextpilot_integrations.block import ContextBlock
from contextpilot_integrations.evaluation.analysis import TraceAnalysis, analyze
from contextpilot_integrations.evaluation.traces import TraceRequest


def request(ids, session="s", text=""):
    return TraceRequest("q", session, 0, None, tuple(ContextBlock(block_id, text) for block_id in ids))


def test_a_trace_worked_by_hand():
    trace = [
        request("abc", "s1"),
        request("abd", "s1"),
        request("", "s3"),
        request("eab", "s2"),
        request("ba", "s2"),
    ]
    # In order: the second request finds "ab", the others nothing. Bound: 2 for each but the first.
    # Farthest-first puts the empty request next; the overlaps stay 2 each.
    # Of the accesses in second turns (abd, ba) those given before are a, b and b, a.
    assert analyze(trace) == TraceAnalysis(
        requests=5,
        accesses=11,
        distinct_blocks=5,
        mean_k=11 / 4,
        top20pct_accessed_share=4 / 11,
        seen_before_ratio=6 / 11,
        prefix_hit_original=2 / 11,
        bound_online=6 / 11,
        bound_offline=6 / 11,
        turn_repeat_share=4 / 5,
    )


def test_without_second_turns_there_is_no_turn_repeat_share():
    assert analyze([request("a", "s1"), request("a", "s2")]).turn_repeat_share is None


def test_a_turn_repeats_any_earlier_turn_of_its_session():
    assert analyze([request("ab"), request("c"), request("cad")]).turn_repeat_share == 2 / 4


def test_duplicates_inside_a_request_count_once():
    assert analyze([request("aab")]) == analyze([request("ab")])


def test_the_same_id_with_another_text_is_another_block():
    figures = analyze([request("ab", text="old"), request("ab", text="new")])
    assert figures.distinct_blocks == 4
    assert figures.bound_online == 0.0


def test_an_empty_trace_has_figures():
    assert set(analyze([]).to_dict().values()) == {0, None}


def test_figures_stand_under_plain_names():
    assert list(analyze([request("a")]).to_dict()) == [
        "requests",
        "accesses",
        "distinct_blocks",
        "mean_k",
        "top20pct_accessed_share",
        "seen_before_ratio",
        "prefix_hit_original",
        "bound_online",
        "bound_offline",
        "turn_repeat_share",
    ]
