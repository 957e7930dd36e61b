"""`contextpilot bench engine` on the small model: what it says of vLLM holds."""

import pytest
from transformers import AutoTokenizer

from contextpilot_integrations.evaluation.bench.engine import bench_engine
from contextpilot_integrations.evaluation.bench.engine_requests import (
    demo_requests,
    prompt_parts,
    without_overlap,
)
from contextpilot_integrations.evaluation.bench.engine_server import OwnServer


@pytest.fixture(scope="module")
def requests():
    return demo_requests()[:12]


@pytest.fixture
def own(server, model):
    """Lend the server as one that is measured with requests."""
    tokenizer = AutoTokenizer.from_pretrained(model)

    def own(requests):
        parts = {part: text for request in requests for part, text in prompt_parts(request).items()}
        return OwnServer(server, {part: len(tokenizer.encode(text)) for part, text in parts.items()})

    return own


@pytest.mark.parametrize("mode", ["offline", "online"])
def test_ours_finds_more_cached_than_the_original_and_never_more_than_the_bound(own, requests, mode):
    result = bench_engine(requests, own(requests), mode=mode)
    original, ours = result.passes
    assert original.failed == ours.failed == 0
    assert 2 * original.cached_tokens < ours.cached_tokens <= sum(result.bound)
    assert original.cached_tokens <= sum(result.bound)
    # The annotation is all that ours has more.
    assert original.prompt_tokens < ours.prompt_tokens < 1.25 * original.prompt_tokens


def test_each_repeat_starts_cold(own, requests):
    result = bench_engine(requests, own(requests), mode="online", repeats=2)
    for one in result.passes:
        first, second = ([sample.cached_tokens for sample in repeat] for repeat in one.samples)
        assert first == second
        assert not first[0]


def test_following_events_loses_nothing_where_nothing_is_evicted(own, requests):
    result = bench_engine(requests, own(requests), mode="online", events=True)
    _, ours, followed = result.passes
    assert followed.failed == 0
    assert 0.9 * ours.cached_tokens <= followed.cached_tokens <= sum(result.bound)


def test_several_in_flight_find_no_more_than_the_bound(own, requests):
    result = bench_engine(requests, own(requests), sessions=4)
    original, ours = result.passes
    assert original.failed == ours.failed == 0
    assert original.cached_tokens < ours.cached_tokens <= sum(result.bound)


def test_without_overlap_nothing_is_found_and_nothing_could_be(own, requests):
    apart = without_overlap(requests)
    result = bench_engine(apart, own(apart))
    original, ours = result.passes
    assert sum(result.bound) == ours.cached_tokens == original.cached_tokens == 0
    assert ours.prompt_tokens == original.prompt_tokens
