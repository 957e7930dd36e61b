"""A pilot's belief ends where the engine's cache was cut."""

import logging

import msgspec
import pytest

from contextpilot_integrations import ContextBlock, ContextPilot
from contextpilot_integrations.engines.cache_follower import CacheFollower, Noticed, estimate_block_ends
from contextpilot_integrations.engines.page_table import Prompt
from contextpilot_integrations.namespace import Namespace

# Four blocks of 4 tokens behind a preamble of 3, a question of 2 behind them, in pages of 4:
#   tokens  0 1 2 | 3 4 5 6 | 7 8 9 10 | 11 12 13 14 | 15 16 17 18 | 19 20
#   pages   0 1 2 3 | 4 5 6 7 | 8 9 10 11 | 12 13 14 15 | 16 17 18 19 |
BLOCKS = [ContextBlock(str(i), f"passage {i}") for i in range(4)]
ENDS = [7, 11, 15, 19]
TOKENS = list(range(100, 121))
HASHES = [1, 2, 3, 4, 5]


def payload(*events, rank=0):
    return msgspec.msgpack.encode([1.0, list(events), rank])


def stored(hashes, tokens, parent=None, size=4, **fields):
    return {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": parent,
        "token_ids": tokens,
        "block_size": size,
        "medium": "GPU",
        **fields,
    }


def removed(*hashes):
    return {"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU"}


CLEARED = {"type": "AllBlocksCleared"}
ALL_STORED = payload(stored(HASHES, TOKENS[:20]))


def believed(pilot, blocks=BLOCKS, namespace=Namespace()):
    with pilot.index(namespace) as index:
        index.check_integrity()
        return len(index.search([block.digest for block in blocks]).blocks)


@pytest.fixture
def pilot():
    return ContextPilot()


@pytest.fixture
def follower(pilot):
    return CacheFollower(pilot)


@pytest.fixture
def sent(pilot, follower):
    plan = pilot.prepare(BLOCKS)
    follower.track(plan, Prompt(TOKENS), ENDS)
    return plan


@pytest.mark.parametrize(
    ("page", "blocks_left"),
    [(1, 0), (2, 1), (3, 2), (4, 3)],
    ids=["preamble and first", "first and second", "second and third", "third and fourth"],
)
@pytest.mark.usefixtures("sent")
def test_the_belief_ends_before_the_block_in_which_a_removed_page_ends(pilot, follower, page, blocks_left):
    follower.take(ALL_STORED)
    assert believed(pilot) == 4
    follower.take(payload(removed(page)))
    assert believed(pilot) == blocks_left
    assert follower.noticed[Noticed.CUT] == 1


@pytest.mark.parametrize(("ends", "blocks_left"), [([4, 8, 11, 16], 3), ([4, 8, 12, 16], 2)])
def test_the_last_token_of_the_removed_page_decides(pilot, follower, ends, blocks_left):
    follower.track(pilot.prepare(BLOCKS), Prompt(TOKENS), ends)
    follower.take(ALL_STORED)
    follower.take(payload(removed(3)))  # Tokens 8 to 11.
    assert believed(pilot) == blocks_left


def test_a_page_that_only_one_continuation_fills_is_no_loss_to_another(pilot, follower):
    """Both begin with one block of 6 tokens; the page in which it ends is another one in each."""
    one, two = BLOCKS[:2], [BLOCKS[0], BLOCKS[2]]
    for blocks, token in ((one, 2), (two, 3)):
        follower.track(pilot.prepare(blocks), Prompt([1] * 6 + [token] * 6), [6, 12])
    follower.take(payload(stored([1, 2, 3], [1] * 6 + [2] * 6)))
    follower.take(payload(stored([4, 5], [1] * 2 + [3] * 6, parent=1)))
    follower.take(payload(removed(3, 2)))
    assert [believed(pilot, blocks) for blocks in (one, two)] == [1, 2]


@pytest.mark.usefixtures("sent")
def test_half_a_prefix_evicted_is_half_a_prefix_believed(pilot, follower):
    follower.take(ALL_STORED)
    follower.take(payload(removed(5, 4)))
    assert believed(pilot) == 3
    assert follower.cached_tokens(Prompt(TOKENS)) == 12


def test_a_page_behind_the_last_block_does_not_matter(pilot, follower):
    follower.track(pilot.prepare(BLOCKS), Prompt(TOKENS), [3, 6, 9, 16])
    follower.take(ALL_STORED)
    follower.take(payload(removed(5)))
    assert believed(pilot) == 4


def test_events_may_come_before_the_prompt_is_tracked(pilot, follower):
    plan = pilot.prepare(BLOCKS)
    follower.take(ALL_STORED)
    follower.track(plan, Prompt(TOKENS), ENDS)
    follower.take(payload(removed(4)))
    assert believed(pilot) == 3


@pytest.mark.usefixtures("sent")
def test_a_page_stored_three_times_ends_the_belief_when_removed_three_times(pilot, follower):
    for _ in range(3):
        follower.take(ALL_STORED)
    for expected in (4, 4, 1):
        follower.take(payload(removed(2)))
        assert believed(pilot) == expected


def test_all_requests_that_share_the_page_are_cut_and_no_others(pilot, follower):
    one, two = BLOCKS[:2], [BLOCKS[0], BLOCKS[2]]
    other = BLOCKS[3:]
    for blocks, tokens in ((one, [1] * 8 + [2] * 4), (two, [1] * 8 + [3] * 4), (other, [9] * 12)):
        ends = [8, 12][: len(blocks)]
        follower.track(pilot.prepare(blocks), Prompt(tokens), ends)
    follower.take(payload(stored([1, 2, 3], [1] * 8 + [2] * 4), stored([4], [3] * 4, parent=2)))
    follower.take(payload(stored([7, 8, 9], [9] * 12)))
    follower.take(payload(removed(3)))
    assert [believed(pilot, blocks) for blocks in (one, two, other)] == [1, 2, 1]
    follower.take(payload(removed(2)))
    assert [believed(pilot, blocks) for blocks in (one, two, other)] == [0, 0, 1]


def test_tenants_with_the_same_tokens_are_apart(pilot, follower):
    ours, theirs = Namespace(tenant="a"), Namespace(tenant="b")
    for namespace in (ours, theirs):
        plan = pilot.prepare(BLOCKS, namespace=namespace)
        follower.track(plan, Prompt(TOKENS, salt=namespace.tenant), ENDS)
    salted = stored([11, 12], TOKENS[:8], extra_keys=[["a"], None])
    follower.take(payload(salted, stored([21, 22], TOKENS[:8], cache_salt="b"), removed(12)))
    assert believed(pilot, namespace=ours) == 1
    assert believed(pilot, namespace=theirs) == 4


@pytest.mark.usefixtures("sent")
def test_what_another_rank_still_holds_is_believed(pilot, follower):
    follower.take(ALL_STORED)
    follower.take(payload(stored(HASHES, TOKENS[:20]), rank=1))
    follower.take(payload(removed(4)))
    assert believed(pilot) == 4
    follower.take(payload(removed(4), rank=1))
    assert believed(pilot) == 3


@pytest.mark.usefixtures("sent")
def test_strangers_are_counted(pilot, follower):
    follower.take(payload(stored([99], [1, 2, 3, 4], parent=98), removed(97)))
    assert follower.strangers == 2
    assert believed(pilot) == 4


@pytest.mark.usefixtures("sent")
def test_when_the_engine_clears_its_cache_nothing_is_believed(pilot, follower):
    follower.take(ALL_STORED)
    follower.take(payload(CLEARED))
    assert believed(pilot) == 0
    assert follower.cached_tokens(Prompt(TOKENS)) == 0
    assert follower.noticed[Noticed.CLEARED] == 1


@pytest.mark.parametrize(
    ("bad", "noticed"),
    [
        (b"secret", Noticed.GARBAGE),
        (payload(stored([1], ["secret"])), Noticed.GARBAGE),
        (b"secret" * 1000, Noticed.TOO_LARGE),
    ],
)
def test_what_cannot_be_read_ends_all_belief_and_is_logged_once(pilot, caplog, bad, noticed):
    follower = CacheFollower(pilot, max_payload_bytes=1000)
    for times in (1, 2):
        follower.track(pilot.prepare(BLOCKS), Prompt(TOKENS), ENDS)
        follower.take(ALL_STORED)
        follower.take(bad)
        assert believed(pilot) == 0
        assert follower.cached_tokens(Prompt(TOKENS)) == 0
        assert follower.noticed[noticed] == times
    assert len(caplog.records) == 1
    assert "secret" not in caplog.text


@pytest.mark.usefixtures("sent")
def test_after_a_doubt_the_pages_of_before_are_still_known(pilot, follower):
    follower.take(ALL_STORED)
    follower.doubt(Noticed.LOST)
    follower.track(pilot.prepare(BLOCKS), Prompt(TOKENS), ENDS)  # A hit, about which no event tells.
    follower.take(payload(removed(4)))
    assert believed(pilot) == 3


@pytest.mark.usefixtures("sent")
def test_an_unknown_type_is_passed_over_and_logged_once(pilot, follower, caplog):
    follower.take(payload({"type": "BlockMoved"}, {"type": "BlockMoved"}))
    follower.take(payload({"type": "BlockMoved"}))
    assert follower.noticed[Noticed.UNKNOWN_EVENT] == 3
    assert believed(pilot) == 4
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_more_pages_than_allowed_start_cold(pilot):
    follower = CacheFollower(pilot, max_pages=4)
    follower.track(pilot.prepare(BLOCKS), Prompt(TOKENS), ENDS)
    follower.take(ALL_STORED)
    assert believed(pilot) == 0
    assert follower.noticed[Noticed.TOO_MANY_PAGES] == 1


def test_what_is_no_longer_followed_is_no_longer_believed(pilot):
    follower = CacheFollower(pilot, max_pages=4)
    follower.take(payload(stored([50], [5, 5, 5, 5])))
    one, two, three = BLOCKS[:1], BLOCKS[1:2], BLOCKS[2:3]
    for blocks in (one, two, one, three):  # Two pages each, so the least recently sent has to go.
        follower.track(pilot.prepare(blocks), Prompt([int(blocks[0].id)] * 8), [8])
    assert [believed(pilot, blocks) for blocks in (one, two, three)] == [1, 0, 1]


def test_an_end_a_block_is_needed(pilot, follower):
    plan = pilot.prepare(BLOCKS)
    with pytest.raises(ValueError, match="block_ends has 3 ends for 4 blocks"):
        follower.track(plan, Prompt(TOKENS), ENDS[:3])
    with pytest.raises(ValueError, match="block_ends must ascend"):
        follower.track(plan, Prompt(TOKENS), [7, 3, 15, 19])
    with pytest.raises(OverflowError):
        follower.track(plan, Prompt([-1]), ENDS)


def test_a_limit_of_nothing_is_refused(pilot):
    with pytest.raises(ValueError, match="max_payload_bytes must be at least 1"):
        CacheFollower(pilot, max_payload_bytes=0)


def test_a_prompt_that_is_tracked_tells_what_the_engine_has_of_it(pilot, follower):
    plan = pilot.prepare(BLOCKS)
    assert follower.track(plan, Prompt(TOKENS), ENDS) == 0
    follower.take(ALL_STORED)
    assert follower.track(plan, Prompt(TOKENS), ENDS) == 20
    assert follower.track(plan, Prompt(TOKENS[:20]), ENDS) == 16  # Its last token is computed in any case.
    follower.take(payload(removed(4)))
    assert follower.track(plan, Prompt(TOKENS), ENDS) == 12


@pytest.mark.parametrize("unit", [1, 3])
def test_ends_are_estimated_from_the_proportions_of_the_parts(pilot, unit):
    plan = pilot.prepare([ContextBlock("a", "x" * 10), ContextBlock("b", "x" * 30)])

    def count(block):
        return unit * len(block.text)

    # Between tokens 5 and 105 stand 10, 30 and 60 parts of a hundred.
    assert estimate_block_ends(plan, count, start=5, stop=105, behind=unit * 60) == (15, 45)
    assert estimate_block_ends(plan, count, start=5, stop=45) == (15, 45)


def test_a_plan_without_blocks_has_no_ends(pilot):
    assert estimate_block_ends(pilot.prepare([]), len, start=5, stop=9) == ()
