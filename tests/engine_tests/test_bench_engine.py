"""`contextpilot bench engine` on the small model: what it says of vLLM holds."""

import sys
from contextlib import ExitStack

import pytest
from transformers import AutoTokenizer

from contextpilot_integrations.evaluation.bench import engine, engine_passes
from contextpilot_integrations.evaluation.bench.engine import bench_engine
from contextpilot_integrations.evaluation.bench.engine_requests import (
    demo_requests,
    prompt_parts,
    without_overlap,
)
from contextpilot_integrations.evaluation.bench.engine_server import OwnServer, own_servers
from contextpilot_integrations.evaluation.vllm_server import VLLMServer


@pytest.fixture(scope="module")
def requests():
    return demo_requests()[:12]


@pytest.fixture(scope="module")
def warm_servers(warm_server):
    """One for each pass that takes turns."""
    with ExitStack() as stack:
        more = [VLLMServer(warm_server.model, blocks=warm_server.blocks) for _ in range(2)]
        yield [warm_server, *map(stack.enter_context, more)]


@pytest.fixture
def own(warm_servers, model):
    """Lend servers as such that are measured with requests."""
    tokenizer = AutoTokenizer.from_pretrained(model)

    def own(requests, number=2):
        parts = {part: text for request in requests for part, text in prompt_parts(request).items()}
        tokens = {part: len(tokenizer.encode(text)) for part, text in parts.items()}
        return [OwnServer(server, tokens) for server in warm_servers[:number]]

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


def test_each_repeat_starts_cold_and_the_servers_change_places(own, requests, monkeypatch):
    started = []

    def cold_pass(name, mode, requests, server):
        started.append((name, server.base_url))
        return engine_passes.cold_pass(name, mode, requests, server)

    monkeypatch.setattr(engine, "cold_pass", cold_pass)
    one, other = servers = own(requests)
    result = bench_engine(requests, servers, mode="online", repeats=2)
    assert started[2:] == [  # After the two that warm up.
        ("original", one.base_url),
        ("ours", other.base_url),
        ("ours", one.base_url),
        ("original", other.base_url),
    ]
    for one in result.passes:
        first, second = ([sample.cached_tokens for sample in repeat] for repeat in one.samples)
        assert first == second
        assert not first[0]


def test_following_events_loses_nothing_where_nothing_is_evicted(own, requests):
    result = bench_engine(requests, own(requests, 3), mode="online", events=True)
    _, ours, followed = result.passes
    assert followed.failed == 0
    assert 0.9 * ours.cached_tokens <= followed.cached_tokens <= sum(result.bound)


def test_several_in_flight_find_no_more_than_the_bound(own, requests):
    result = bench_engine(requests, own(requests, 1), sessions=4)
    original, ours = result.passes
    assert original.failed == ours.failed == 0
    assert original.cached_tokens < ours.cached_tokens <= sum(result.bound)


def test_without_overlap_nothing_is_found_and_nothing_could_be(own, requests):
    apart = without_overlap(requests)
    result = bench_engine(apart, own(apart))
    original, ours = result.passes
    assert sum(result.bound) == ours.cached_tokens == original.cached_tokens == 0
    assert ours.prompt_tokens == original.prompt_tokens
    possible = result.compare(ours)
    assert (possible.ttft.bound, possible.seconds.bound) == (1, 1)


def test_passes_that_take_turns_need_a_cache_each(own, requests):
    with pytest.raises(ValueError, match="servers must be 2, not 1"):
        bench_engine(requests, own(requests, 1))


def test_caches_that_the_machine_cannot_hold_are_refused(requests):
    with (
        pytest.raises(ValueError, match=r"GiB are available; .* --cache-share, or fewer --requests"),
        own_servers(requests, number=10_000, python=sys.executable),
    ):
        pytest.fail("they were started")
