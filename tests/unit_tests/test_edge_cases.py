"""Contexts that break an index made for ordinary ones: one by one, and as a batch."""

import pytest

from contextpilot_integrations import ContextBlock, ContextPilot, Outcome

IDS = ["", 1, "1", 2**64, -(2**64), 10**5000, (), ("", 1), ("", "1")]


def blocks(*ids):
    return [ContextBlock(id) for id in ids]


def one_by_one(pilot, contexts):
    return [pilot.prepare(context) for context in contexts]


def as_a_batch(pilot, contexts):
    return [*pilot.prepare_batch(contexts).plans]


both_ways = pytest.mark.parametrize("planned", [one_by_one, as_a_batch])


def sequences(pilot):
    """The sequences of all nodes, depth first, in digests."""
    with pilot.index() as index:
        index.check_integrity()
        return [node.sequence for node in index]


def digests(*ids):
    return tuple(block.digest for block in blocks(*ids))


@pytest.fixture
def pilot():
    return ContextPilot(on_error="raise")


@both_ways
def test_a_thousand_disjoint_contexts_and_one_more(pilot, planned):
    contexts = [blocks(n, -n - 1) for n in range(1001)]
    plans = planned(pilot, contexts)
    assert [[*plan.blocks] for plan in plans] == contexts
    assert [plan.search_path for plan in plans] == [(n,) for n in range(1001)]
    (one_more,) = planned(pilot, [blocks("one", "more")])
    assert one_more.search_path == (1001,)
    assert len(sequences(pilot)) == 1002


@both_ways
def test_the_same_context_300_times_makes_one_node(pilot, planned):
    plans = planned(pilot, [blocks(3, 1, 2)] * 300)
    assert {(plan.block_ids, plan.search_path) for plan in plans} == {((3, 1, 2), (0,))}
    assert [plan.expected_cached_blocks for plan in plans] == [0] + [3] * 299
    assert sequences(pilot) == [digests(3, 1, 2)]


@both_ways
@pytest.mark.parametrize("contexts", [[(1, 2), (2, 1, 3)], [(2, 1, 3), (1, 2)]])
def test_a_subset_ends_on_the_way_to_the_larger_context(pilot, planned, contexts):
    planned(pilot, [blocks(*context) for context in contexts])
    # One by one the first stays as it was sent; of a batch, the smaller one stays as it is.
    first, second = contexts[0][:2] if planned is one_by_one else (1, 2)
    assert sequences(pilot) == [digests(first, second), digests(first, second, 3)]


@both_ways
@pytest.mark.parametrize("contexts", [[()], [(1,)], [(7, 7, 7)], [(), (1,), (7, 7, 7), (2, 1), (7,), ()]])
def test_nothing_one_block_and_only_duplicates(pilot, planned, contexts):
    plans = planned(pilot, [blocks(*context) for context in contexts])
    for plan, context in zip(plans, contexts, strict=True):
        assert sorted(plan.block_ids) == sorted(set(context))
        assert len(plan.duplicates) == len(context) - len(set(context))
        assert bool(plan.search_path) == bool(context)
    assert len(sequences(pilot)) == len({frozenset(context) for context in contexts if context})


@both_ways
def test_ids_that_look_alike_share_no_cached_block_after_a_restart_either(pilot, planned, tmp_path):
    contexts = [blocks(id) for id in IDS]
    assert {plan.expected_cached_blocks for plan in planned(pilot, contexts)} == {0}
    assert len(sequences(pilot)) == len(IDS)
    pilot.save(tmp_path / "saved")
    restarted = ContextPilot(on_error="raise")
    restarted.load(tmp_path / "saved")
    assert planned(restarted, contexts) == planned(pilot, contexts)
    assert sequences(restarted) == sequences(pilot)
    assert len(sequences(restarted)) == len(IDS)


@both_ways
def test_ids_of_every_kind_in_one_request(pilot, planned):
    (plan,) = planned(pilot, [blocks(*IDS)])
    assert plan.block_ids == tuple(IDS)
    assert plan.outcome is Outcome.LABEL_COLLISION  # 1 and "1" are both written [CB_1].
    told_apart = [id for id in IDS if id != "1"]
    backwards, plan = planned(pilot, [blocks(*told_apart[::-1]), blocks(*told_apart)])
    assert plan.block_ids == backwards.block_ids
    assert {*plan.block_ids} == {*told_apart}
    assert plan.expected_cached_blocks == len(told_apart)


@both_ways
def test_after_clear_the_same_contexts_get_the_same_plans(pilot, planned):
    # What the last one holds of the one before it goes first, though no beginning of that fits.
    contexts = [blocks(*ids) for ids in [(1, 2, 3), (3, 2, 9), (9, 1), (4, 8, 5), (6, 5, 7, 8)]]
    before = planned(pilot, contexts)
    assert planned(pilot, contexts) != before
    pilot.clear()
    assert planned(pilot, contexts) == before


@both_ways
def test_a_context_of_2000_blocks_and_its_reverse(pilot, planned):
    forward = range(2000)
    plans = planned(pilot, [blocks(*forward), blocks(*reversed(forward))])
    assert [plan.block_ids for plan in plans] == [tuple(forward)] * 2
    assert [plan.expected_cached_blocks for plan in plans] == [0, 2000]
    assert plans[1].ranks == tuple(reversed(forward))
    assert len(sequences(pilot)) == 1


def test_the_common_beginning_of_siblings_becomes_one_node(pilot):
    pilot.prepare(blocks(1, 2, 3))
    # Apart they find more cached than as a cluster of 1, so they become siblings that both begin with it.
    batch = pilot.prepare_batch([blocks(9, 3, 2, 1), blocks(5, 4, 1)])
    assert [plan.block_ids for plan in batch.plans] == [(1, 2, 3, 9), (1, 5, 4)]
    assert [plan.search_path for plan in batch.plans] == [(0, 0, 0), (0, 1)]
    assert sequences(pilot) == [digests(1), digests(1, 2, 3), digests(1, 2, 3, 9), digests(1, 5, 4)]


def test_a_request_that_fails_leaves_nothing_behind():
    pilot, twin = ContextPilot(on_error="ignore"), ContextPilot()
    contexts = [blocks(n, n + 1, 5) for n in range(4)]
    batch = pilot.prepare_batch(contexts, request_ids=[1, 2, [3], 4])
    assert {plan.outcome for plan in (*batch.plans, pilot.prepare(blocks(7, 8, 9), request_id=[]))} == {
        Outcome.FAILED
    }
    assert sequences(pilot) == []
    assert pilot.prepare(blocks(3, 9, 8)) == twin.prepare(blocks(3, 9, 8))
