"""The prefix-cache simulator, the bounds and the baselines against plain references."""

from copy import deepcopy

from hypothesis import given
from hypothesis import strategies as st

from contextpilot_integrations.evaluation.baselines import longest_prefix_match, sort_by_frequency
from contextpilot_integrations.evaluation.bound import reuse_bound
from contextpilot_integrations.evaluation.simulator import PrefixCache, simulate, simulate_tokens

# Few different units, so that prefixes are shared and evicted all the time.
units = st.integers(0, 3)
requests = st.lists(st.lists(units, max_size=6).map(tuple), max_size=15)
contexts = st.lists(st.lists(st.integers(0, 7), unique=True, max_size=6).map(tuple), max_size=10)
capacities = st.integers(0, 12)


def prefixes(request):
    return [request[:length] for length in range(1, len(request) + 1)]


def leading_hits(request, cached):
    hits = 0
    while hits < len(request) and request[: hits + 1] in cached:
        hits += 1
    return hits


def evicting_leaves(requests, capacity):
    """Keep prefixes with the time of their last use; when full, drop the leaf that was unused longest."""
    last_use = {}
    hits = []
    for now, request in enumerate(requests):
        hits.append(leading_hits(request, last_use))
        for prefix in prefixes(request[:capacity]):
            last_use[prefix] = now
        while len(last_use) > capacity:
            parents = {prefix[:-1] for prefix in last_use}
            leaves = [prefix for prefix in last_use if prefix not in parents]
            del last_use[min(leaves, key=last_use.__getitem__)]
    return tuple(hits)


@given(requests)
def test_an_unlimited_cache_finds_every_prefix_ever_sent(requests):
    seen = set()
    expected = []
    for request in requests:
        expected.append(leading_hits(request, seen))
        seen.update(prefixes(request))
    result = simulate(requests)
    assert result.hits_per_request == tuple(expected)
    # What was not found is stored: all units less the nodes of the trie.
    assert result.hits == result.total - len(seen)


@given(requests, capacities)
def test_a_full_cache_evicts_the_least_recently_used_leaf(requests, capacity):
    assert simulate(requests, capacity).hits_per_request == evicting_leaves(requests, capacity)


@given(requests, capacities)
def test_a_cache_never_holds_more_than_its_capacity(requests, capacity):
    cache = PrefixCache(capacity)
    for request in requests:
        cache.request(request)
        assert len(cache) <= capacity
        assert deepcopy(cache).request(request) == min(len(request), capacity)


@given(requests, capacities, st.integers(1, 5))
def test_a_larger_cache_never_hits_less(requests, capacity, more):
    small = simulate(requests, capacity).hits_per_request
    large = simulate(requests, capacity + more).hits_per_request
    unlimited = simulate(requests).hits_per_request
    assert all(a <= b <= c for a, b, c in zip(small, large, unlimited, strict=True))


@given(requests, capacities)
def test_pages_of_one_token_are_units(requests, capacity):
    assert simulate_tokens(requests, capacity, page_size=1) == simulate(requests, capacity)


@given(contexts, st.integers(1, 40), st.randoms(use_true_random=False))
def test_no_order_of_blocks_beats_the_online_bound(contexts, capacity, random):
    bound = reuse_bound(contexts).hits
    ordered = [random.sample(context, len(context)) for context in contexts]
    assert simulate(ordered).hits <= bound
    assert simulate(ordered, capacity).hits <= bound
    assert simulate(sort_by_frequency(contexts)).hits <= bound


@given(contexts, st.integers(1, 40), st.randoms(use_true_random=False))
def test_no_order_of_blocks_and_requests_beats_the_offline_bound(contexts, capacity, random):
    bound = reuse_bound(contexts, order="farthest").hits
    ordered = [random.sample(context, len(context)) for context in random.sample(contexts, len(contexts))]
    assert simulate(ordered).hits <= bound
    assert simulate(ordered, capacity).hits <= bound
    assert simulate(sort_by_frequency(contexts)).hits <= bound


@given(contexts, st.sampled_from(["arrival", "farthest"]))
def test_the_bound_is_the_sum_of_the_largest_overlaps(contexts, order):
    def overlap(request, served):
        return max((len({*request} & {*earlier}) for earlier in served), default=0)

    waiting = list(contexts)
    served = []
    hits = 0
    while waiting:
        # min() takes the earliest of equals.
        chosen = (
            waiting[0] if order == "arrival" else min(waiting, key=lambda request: overlap(request, served))
        )
        waiting.remove(chosen)
        hits += overlap(chosen, served)
        served.append(chosen)
    assert reuse_bound(contexts, order=order).hits == hits


@given(requests, st.none() | st.integers(6, 12))
def test_longest_prefix_match_always_runs_the_longest_match(requests, capacity):
    cache = PrefixCache(capacity)  # holds the longest request, which has six units
    waiting = list(range(len(requests)))
    expected = []
    while waiting:
        chosen = max(waiting, key=lambda index: (deepcopy(cache).request(requests[index]), -index))
        cache.request(requests[chosen])
        waiting.remove(chosen)
        expected.append(chosen)
    assert longest_prefix_match(requests) == tuple(expected)


@given(contexts)
def test_sorting_by_frequency_loses_nothing(contexts):
    ordered = sort_by_frequency(contexts)
    assert [sorted(context) for context in ordered] == [sorted(context) for context in contexts]
