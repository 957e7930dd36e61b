"""The rules of llama.cpp's slots and of the host's memory behind them, one by one."""

import copy

import pytest

from contextpilot_integrations import ContextBlock, ContextPilot, Slots
from contextpilot_integrations.index.slots import SlotCache


def serve(cache, order, request_id=None):
    served = cache.serve(tuple(order), [10] * len(order), request_id)
    return served.cached_blocks, {"".join(blocks): depth for blocks, depth in served.lost}


def test_a_slot_keeps_the_last_prompt_and_reuses_its_common_prefix():
    cache = SlotCache(Slots())
    assert serve(cache, "abc") == (0, {})
    assert serve(cache, "abd") == (2, {"abc": 2})
    assert serve(cache, "abc") == (2, {"abd": 2})
    assert serve(cache, "xyz") == (0, {"abc": 0})


def test_of_several_slots_the_most_similar_is_taken_else_the_least_recently_used():
    cache = SlotCache(Slots(2))
    assert serve(cache, "abc") == (0, {})
    assert serve(cache, "xyz") == (0, {})
    assert serve(cache, "abd") == (2, {"abc": 2})
    assert serve(cache, "xyw") == (2, {"xyz": 2})
    assert serve(cache, "klm") == (0, {"abd": 0})


def test_a_slot_is_similar_only_by_more_than_a_share_of_the_prompt():
    for share, hit in ((0.3, 1), (0.34, 0)):
        cache = SlotCache(Slots(2, slot_prompt_similarity=share))
        serve(cache, "abc")
        assert serve(cache, "axy")[0] == hit


def test_what_a_slot_would_lose_moves_to_the_host_and_back():
    cache = SlotCache(Slots(host_tokens=1_000))
    assert serve(cache, "abcd") == (0, {})
    assert serve(cache, "wxyz") == (0, {})
    assert serve(cache, "abce") == (3, {"abcd": 3})  # It came back, and lost its tail.
    assert serve(cache, "wxyv") == (3, {"wxyz": 3})


def test_a_prompt_of_which_half_is_reused_is_not_saved():
    cache = SlotCache(Slots(host_tokens=1_000))
    serve(cache, "abcd")
    assert serve(cache, "abxy") == (2, {"abcd": 2})
    assert serve(cache, "aklm") == (1, {})  # A quarter: what was there is saved.


def test_a_saved_prompt_of_which_less_than_a_quarter_is_of_use_stays_where_it_is():
    cache = SlotCache(Slots(host_tokens=1_000))
    serve(cache, "abcde")
    serve(cache, "v")
    assert serve(cache, "axyz") == (0, {})
    assert serve(cache, "abcde") == (5, {})


def test_the_host_drops_what_it_took_first_but_for_the_last():
    cache = SlotCache(Slots(host_tokens=50))
    serve(cache, "abc")
    serve(cache, "def")
    assert serve(cache, "ghi") == (0, {"abc": 0})
    cache = SlotCache(Slots(host_tokens=1))
    serve(cache, "abc")
    assert serve(cache, "def") == (0, {})


def test_with_one_buffer_for_all_slots_idle_ones_move_to_the_host():
    cache = SlotCache(Slots(2, host_tokens=60, kv_unified=True))
    serve(cache, "abc")
    serve(cache, "def")
    serve(cache, "ghi")
    # In slots of their own, two of the three would be safe.
    assert serve(cache, "jkl") == (0, {"abc": 0})


def test_the_length_of_a_request_is_what_was_measured():
    cache = SlotCache(Slots(host_tokens=1_000))
    serve(cache, "abcd", "r")
    cache.measured("r", 200)
    serve(cache, "v")
    assert serve(cache, "abxy") == (0, {})  # 20 of 200 are less than a quarter.
    cache.measured("unknown", 1)


def test_the_templates_tokens_are_the_least_that_was_cached_beyond_what_is_shared():
    cache = SlotCache(Slots(2), preamble=5, marker=1)
    serve(cache, "abc", "one")
    cache.measured("one", 60, 0)  # Nothing was there.
    assert serve(cache, "abd", "two")[0] == 2
    cache.measured("two", 60, 5 + 22 + 30)
    cache.measured("two", 60, 5 + 22 + 8)
    cache.measured("two", 60, 500)  # This was foretold wrongly, and says nothing.
    # 13 tokens are shared by all, of 13 + 11 that the prompt has: so the slot that was used last is similar.
    assert serve(cache, "x")[0] == 0
    assert cache._slots[0].blocks == ("x",)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_parallel": 0}, "n_parallel must be at least 1, got 0"),
        ({"host_tokens": -1}, "host_tokens must be at least 0, got -1"),
        ({"slot_prompt_similarity": 2.0}, "slot_prompt_similarity must be from 0 to 1"),
    ],
)
def test_a_number_out_of_range_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Slots(**arguments)


# The pilot


def blocks(names):
    return [ContextBlock(name, f"All about {name}.") for name in names]


def expected(pilot, names):
    return pilot.prepare(blocks(names)).expected_cached_blocks


def test_a_pilot_believes_what_the_slots_hold():
    pilot = ContextPilot(slots=Slots())
    assert [expected(pilot, names) for names in ("abc", "abd", "abc", "xyz", "abc")] == [0, 2, 2, 0, 0]
    with pilot.index() as index:
        index.check_integrity()
        assert len(index) == 1


def test_a_batch_leaves_what_its_last_request_left():
    pilot = ContextPilot(slots=Slots())
    batch = pilot.prepare_batch([blocks("abc"), blocks("xyz"), blocks("abd")])
    assert sum(plan.expected_cached_blocks for plan in batch.plans) == 2
    with pilot.index() as index:
        index.check_integrity()
        assert len(index) == 1


def test_a_request_that_was_evicted_is_not_expected():
    pilot = ContextPilot(slots=Slots())
    pilot.prepare(blocks("abc"), request_id="r")
    pilot.evict("r")
    assert expected(pilot, "abc") == 0


def test_slots_travel_with_the_settings():
    pilot = copy.copy(ContextPilot(slots=Slots()))
    assert [expected(pilot, names) for names in ("abc", "xyz", "abc")] == [0, 0, 0]


def test_a_restart_keeps_what_was_used_last(tmp_path):
    pilot, twin = ContextPilot(slots=Slots(2)), ContextPilot(slots=Slots(2))
    for names in ("abc", "xyz", "klm"):
        pilot.prepare(blocks(names))
    pilot.save(tmp_path / "saved")
    twin.load(tmp_path / "saved")
    for names in ("klx", "xya", "abz"):
        assert expected(pilot, names) == expected(twin, names)
