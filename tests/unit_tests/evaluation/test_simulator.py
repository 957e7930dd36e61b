from copy import deepcopy

import pytest

from contextpilot_integrations.evaluation.simulator import (
    PrefixCache,
    pages,
    parse_capacity,
    simulate,
    simulate_tokens,
)


def cached(cache, units):
    """How many leading units are cached; asking leaves no trace."""
    return deepcopy(cache).request(units)


def test_hits_are_the_leading_units_already_there():
    result = simulate(["abc", "abd", "ba", "abc"])
    assert result.hits_per_request == (0, 2, 0, 3)
    assert (result.hits, result.total) == (5, 11)
    assert result.hit_ratio == 5 / 11


def test_a_unit_is_found_only_behind_the_same_prefix():
    cache = PrefixCache()
    cache.request("abc")
    assert cached(cache, "bc") == 0
    assert cached(cache, "ac") == 1
    assert len(cache) == 3


def test_the_least_recently_used_leaf_goes_first():
    cache = PrefixCache(4)
    cache.request("ab")
    cache.request("ac")
    cache.request("ab")
    cache.request("de")  # 5 units: "ac" was used before "ab", and "a" is no leaf
    assert len(cache) == 4
    assert cached(cache, "ac") == 1
    assert cached(cache, "ab") == 2
    assert cached(cache, "de") == 2


def test_an_inner_node_goes_after_its_children():
    cache = PrefixCache(3)
    cache.request("abc")
    cache.request("d")
    assert cached(cache, "abc") == 2
    cache.request("e")
    assert cached(cache, "abc") == 1


def test_a_request_larger_than_the_cache_keeps_its_leading_part():
    cache = PrefixCache(3)
    assert cache.request("abcde") == 0
    assert cache.request("abcde") == 3


def test_a_cache_of_nothing_never_hits():
    assert simulate(["ab", "ab"], 0).hits_per_request == (0, 0)


def test_a_negative_capacity_is_refused():
    with pytest.raises(ValueError, match="capacity must be at least 0"):
        PrefixCache(-1)


@pytest.mark.parametrize("requests", [[], [""]])
def test_an_empty_run_has_a_hit_ratio(requests):
    assert simulate(requests).hit_ratio == 0.0


def test_only_full_pages_count():
    one = pages(range(16))
    assert len(one) == 1
    assert pages(range(31)) == one
    assert pages(range(15)) == []
    assert pages(range(32))[0] == one[0]
    assert pages([1, 2, 3, 4], page_size=2) == [*pages([1, 2], 2), *pages([3, 4], 2)]


def test_tokens_are_hit_by_the_page_and_all_counted():
    prompt = list(range(40))
    result = simulate_tokens([prompt, prompt, [*prompt[:20], *range(100, 120)]])
    assert result.hits_per_request == (0, 32, 16)
    assert result.total == 120


def test_the_same_page_elsewhere_is_not_found():
    page = list(range(16))
    assert simulate_tokens([page + page, [7] * 16 + page]).hits == 0


def test_a_capacity_in_tokens_holds_whole_pages():
    prompt = list(range(64))
    assert simulate_tokens([prompt, prompt], 47).hits == 32
    assert simulate_tokens([prompt, prompt], 48).hits == 48
    assert simulate_tokens([prompt, prompt], 48, page_size=1).hits == 48
    assert simulate_tokens([prompt, prompt], 48).capacity == 48


@pytest.mark.parametrize("use", [pages, lambda tokens, size: simulate_tokens([tokens], 32, page_size=size)])
def test_a_page_has_at_least_one_token(use):
    with pytest.raises(ValueError, match="page_size must be at least 1"):
        use([1, 2], 0)


@pytest.mark.parametrize(
    ("text", "capacity"),
    [(None, None), ("200", 200), ("0", 0), ("10%", 259), ("12.5 %", 324), ("100%", 2595), (" 5% ", 129)],
)
def test_a_capacity_is_a_number_or_a_share_of_all_units_sent(text, capacity):
    assert parse_capacity(text, 2595) == capacity


def test_a_share_is_exact():
    assert parse_capacity("29%", 100) == 29  # 0.29 * 100 is 28.999999999999996


@pytest.mark.parametrize("text", ["", "%", "ten", "-5", "-5%", "1e3", "10%%", "0.5", "1.%", "nan%"])
def test_other_capacities_are_refused(text):
    with pytest.raises(
        ValueError, match="capacity must be a number of units such as 200, or a share such as 10%"
    ):
        parse_capacity(text, 100)
