"""Which pages an engine holds, after which events."""

import pytest

from contextpilot_integrations.engines.kv_events import BlockRemoved, BlockStored
from contextpilot_integrations.engines.page_table import PageTable, Prompt


def stored(hashes, tokens, parent=None, size=2, **fields):
    return BlockStored(tuple(hashes), parent, tuple(tokens), size, **fields)


def removed(*hashes, **fields):
    return BlockRemoved(hashes, **fields)


@pytest.fixture
def table():
    """Three pages of two tokens, of which two were stored at once."""
    table = PageTable()
    table.store(stored([11, 12], [1, 2, 3, 4]))
    table.store(stored([13], [5, 6], parent=12))
    return table


def test_the_leading_pages_that_are_held_are_counted_in_tokens(table):
    assert table.cached_tokens(Prompt([1, 2, 3, 4, 5, 6, 7])) == 6
    assert table.cached_tokens(Prompt([1, 2, 3, 4, 5])) == 4
    assert table.cached_tokens(Prompt([1, 2, 9, 4, 5, 6])) == 2
    assert table.cached_tokens(Prompt([3, 4, 5, 6])) == 0
    assert table.cached_tokens(Prompt([])) == 0


def test_it_says_which_pages_they_are(table):
    assert table.held_pages(Prompt([1, 2, 3, 4, 9, 9])) == [11, 12]


def test_what_stands_behind_a_removed_page_is_out_of_reach(table):
    table.remove(removed(12))
    assert table.cached_tokens(Prompt([1, 2, 3, 4, 5, 6])) == 2
    assert len(table) == 2


def test_nothing_is_known_before_the_first_event():
    assert PageTable().cached_tokens(Prompt([1, 2, 3])) == 0


def test_stored_three_times_it_is_held_until_removed_three_times(table):
    for _ in range(2):
        table.store(stored([11], [1, 2]))
    gone = [table.remove(removed(11)) for _ in range(3)]
    assert [len(prefixes) for prefixes in gone] == [0, 0, 1]
    assert table.cached_tokens(Prompt([1, 2])) == 0
    assert table.strangers == 0
    assert table.remove(removed(11)) == []
    assert table.strangers == 1


def test_salts_are_apart_in_vllms_events():
    table = PageTable()
    table.store(stored([1, 2], [1, 2, 3, 4], extra_keys=(("a",), None)))
    table.store(stored([3], [1, 2]))
    assert table.held_pages(Prompt([1, 2, 3, 4], salt="a")) == [1, 2]
    assert table.held_pages(Prompt([1, 2, 3, 4])) == [3]
    assert table.held_pages(Prompt([1, 2, 3, 4], salt="b")) == []


def test_salts_are_apart_in_sglangs_events():
    table = PageTable()
    table.store(stored([1], [1, 2], cache_salt="a"))
    table.store(stored([2], [3, 4], parent=1, cache_salt="a"))
    assert table.held_pages(Prompt([1, 2, 3, 4], salt="a")) == [1, 2]
    assert table.held_pages(Prompt([1, 2, 3, 4])) == []


def test_adapters_are_apart():
    table = PageTable()
    table.store(stored([1, 2], [1, 2, 3, 4], lora_id=1, lora_name="x", extra_keys=(("x", "salt"), ("x",))))
    table.store(stored([3], [1, 2], lora_id=7))
    assert table.held_pages(Prompt([1, 2, 3, 4], lora="x", salt="salt")) == [1, 2]
    assert table.held_pages(Prompt([1, 2, 3, 4], lora=7)) == [3]
    assert table.held_pages(Prompt([1, 2, 3, 4])) == []


def test_an_image_in_the_prompt_is_part_of_its_page():
    table = PageTable()
    table.store(stored([1, 2], [1, 2, 3, 4], extra_keys=(None, (["image", 0],))))
    assert table.held_pages(Prompt([1, 2, 3, 4])) == [1]


def test_media_are_apart_and_a_page_is_held_while_one_has_it(table):
    table.store(stored([11], [], size=0, medium="CPU"))  # A copy on another medium names no tokens.
    assert table.remove(removed(11)) == []
    assert table.cached_tokens(Prompt([1, 2]), medium="CPU") == 2
    assert table.cached_tokens(Prompt([1, 2]), medium="GPU") == 0
    assert table.cached_tokens(Prompt([1, 2, 3, 4])) == 4
    assert len(table.remove(removed(11, medium="CPU"))) == 1


def test_a_copy_that_is_not_there_cannot_be_removed(table):
    assert table.remove(removed(11, medium="CPU")) == []
    assert table.cached_tokens(Prompt([1, 2])) == 2
    assert table.strangers == 1


def test_ranks_are_apart_and_a_page_is_gone_when_the_last_drops_it(table):
    table.store(stored([11], [1, 2]), rank=1)
    assert table.cached_tokens(Prompt([1, 2, 3, 4]), rank=1) == 2
    assert table.remove(removed(11)) == []
    assert table.cached_tokens(Prompt([1, 2])) == 0
    assert len(table.remove(removed(11), rank=1)) == 1


def test_a_rank_is_cleared_alone(table):
    table.store(stored([11], [1, 2]), rank=1)
    table.clear(rank=0)
    assert table.cached_tokens(Prompt([1, 2])) == 0
    assert table.cached_tokens(Prompt([1, 2]), rank=1) == 2


def test_a_cleared_table_may_learn_another_page_size(table):
    table.clear()
    table.store(stored([1], [1, 2, 3], size=3))
    assert table.cached_tokens(Prompt([1, 2, 3])) == 3


@pytest.mark.parametrize(
    "event",
    [
        stored([21], [7, 8], parent=99),  # Its parent was never seen.
        stored([21], [7, 8], group_idx=1),
        stored([21], [], size=0, medium="CPU"),
        stored([21], [7, 8, 9], size=3),
        stored([21], [7, 8, 9]),
        stored([21], [], size=0),
    ],
)
def test_strangers_are_counted_and_not_kept(table, event):
    table.store(event)
    assert (len(table), table.strangers) == (3, 1)
    assert table.remove(removed(21)) == []
    assert table.strangers == 2


def test_another_cache_groups_events_leave_a_page_alone(table):
    table.store(stored([11], [1, 2], group_idx=1))
    assert table.remove(removed(11, group_idx=1)) == []
    assert len(table.remove(removed(11, group_idx=0))) == 1


def test_in_doubt_nothing_is_held_yet_a_hash_is_known_when_it_is_named(table):
    table.doubt()
    assert table.cached_tokens(Prompt([1, 2, 3, 4])) == 0
    table.store(stored([14], [7, 8], parent=13))
    assert len(table.remove(removed(14))) == 1
    assert len(table.remove(removed(13))) == 1
    table.store(stored([11], [1, 2]))
    assert table.cached_tokens(Prompt([1, 2, 3, 4])) == 2


def test_the_number_of_pages_is_bounded():
    table = PageTable(max_pages=2)
    table.store(stored([1, 2], [1, 2, 3, 4]))
    with pytest.raises(OverflowError, match="the engine holds more than 2 pages"):
        table.store(stored([3], [5, 6], parent=2))
    assert len(table) == 0
    assert table.cached_tokens(Prompt([1, 2])) == 0


def test_there_must_be_room_for_a_page():
    with pytest.raises(ValueError, match="max_pages must be at least 1, got 0"):
        PageTable(max_pages=0)


@pytest.mark.parametrize("token", [-1, 2**32])
def test_a_token_id_that_no_engine_has_is_refused(table, token):
    with pytest.raises(OverflowError):
        table.cached_tokens(Prompt([1, token]))
