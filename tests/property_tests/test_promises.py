"""The promises that concern planning, on whatever Hypothesis can think of."""

import copy

from hypothesis import given
from hypothesis import strategies as st

from contextpilot_integrations import ContextBlock, ContextPilot, Namespace

ids = st.recursive(
    st.integers() | st.text(max_size=3),
    lambda parts: st.tuples(parts) | st.tuples(parts, parts),
    max_leaves=3,
)
blocks = st.builds(ContextBlock, ids, st.text(max_size=12))
few_blocks = st.builds(ContextBlock, st.integers(0, 9), st.sampled_from(["", "text", "a longer text"]))
contexts = st.lists(st.lists(blocks, max_size=6) | st.lists(few_blocks, max_size=8), max_size=8)
capacities = st.none() | st.integers(1, 30)


def check_plan(plan, context):
    """Nothing lost: a permutation of the request's blocks, less those that stand in it already."""
    assert [context[rank] for rank in plan.ranks] == list(plan.blocks)
    assert len(set(plan.blocks)) == len(plan.blocks)
    assert sorted([*plan.ranks, *plan.duplicates]) == list(range(len(context)))
    for duplicate in plan.duplicates:
        assert context[duplicate] in context[:duplicate]
    assert 0 <= plan.expected_cached_blocks <= len(plan.blocks)
    assert bool(plan.order_annotation) == (list(plan.ranks) != sorted(plan.ranks))


@given(contexts, capacities)
def test_nothing_is_lost_online(requests, capacity):
    pilot = ContextPilot(capacity=capacity, on_error="raise")
    for context in requests:
        check_plan(pilot.prepare(context), context)
        with pilot.index() as index:
            index.check_integrity()


@given(contexts, contexts, capacities)
def test_nothing_is_lost_in_a_batch_on_a_warm_index(before, requests, capacity):
    pilot = ContextPilot(capacity=capacity, on_error="raise")
    for context in before:
        pilot.prepare(context)
    batch = pilot.prepare_batch(requests)
    assert sorted(batch.schedule) == list(range(len(requests)))
    for plan, context in zip(batch.plans, requests, strict=True):
        check_plan(plan, context)
    with pilot.index() as index:
        index.check_integrity()


@given(contexts, contexts)
def test_equal_beginnings_are_one_node_after_a_batch_too(before, requests):
    pilot = ContextPilot(token_counter=lambda text: 1, on_error="raise")
    plans = [pilot.prepare(context) for context in before]
    plans += pilot.prepare_batch(requests).plans
    sent = _beginnings(tuple(block.digest for block in plan.blocks) for plan in plans)
    with pilot.index() as index:
        assert _beginnings(node.sequence for node in index) == sent
        assert index.total_weight == len(sent)


@given(contexts, contexts, st.integers(0, 8))
def test_no_block_moves_further_than_allowed(requests, batch, limit):
    pilot = ContextPilot(max_displacement=limit, on_error="raise")
    plans = [pilot.prepare(context) for context in requests]
    for plan, context in zip([*plans, *pilot.prepare_batch(batch).plans], [*requests, *batch], strict=True):
        check_plan(plan, context)
        for place, rank in enumerate(sorted(plan.ranks)):
            assert abs(plan.ranks.index(rank) - place) <= limit


@given(contexts)
def test_inputs_stay_untouched(requests):
    before = copy.deepcopy(requests)
    pilot = ContextPilot(on_error="raise")
    pilot.prepare_batch(requests)
    for context in requests:
        pilot.prepare(context)
    assert requests == before


@given(st.lists(blocks, max_size=8), st.randoms())
def test_a_block_has_the_same_bytes_in_whatever_place(context, random):
    shuffled = random.sample(context, len(context))
    pilot = ContextPilot(on_error="raise")
    written = {}
    for plan in (pilot.prepare(context), pilot.prepare(shuffled)):
        for block in plan.blocks:
            again = ContextBlock(block.id, block.text, {"score": random.random()})
            assert written.setdefault(block, again.render()) == block.render()


@given(contexts, contexts)
def test_a_tenant_gets_what_it_would_get_had_the_other_never_been(mine, theirs):
    shared, alone = ContextPilot(on_error="raise"), ContextPilot(on_error="raise")
    for place in range(max(len(mine), len(theirs))):
        if place < len(theirs):
            shared.prepare(theirs[place], namespace=Namespace(tenant="a"))
        if place < len(mine):
            plan = shared.prepare(mine[place], namespace=Namespace(tenant="b"))
            assert plan == alone.prepare(mine[place], namespace=Namespace(tenant="b"))


@given(contexts, contexts)
def test_the_same_requests_give_the_same_plans(requests, batch):
    first, second = ContextPilot(on_error="raise"), ContextPilot(on_error="raise")
    for context in requests:
        assert first.prepare(context) == second.prepare(context)
    assert first.prepare_batch(batch) == second.prepare_batch(batch)


@given(contexts, capacities)
def test_what_is_expected_is_what_was_sent_and_still_fits(requests, capacity):
    """Without a limit, the expected blocks are the longest beginning that an earlier request had too."""
    pilot = ContextPilot(capacity=capacity, on_error="raise")
    sent = []
    for context in requests:
        plan = pilot.prepare(context)
        digests = [block.digest for block in plan.blocks]
        shared = max((_common_beginning(digests, earlier) for earlier in sent), default=0)
        assert plan.expected_cached_blocks <= shared
        if capacity is None:
            assert plan.expected_cached_blocks == shared
        sent.append(digests)


def _beginnings(orders):
    return {order[:length] for order in orders for length in range(1, len(order) + 1)}


def _common_beginning(left, right):
    length = 0
    while length < min(len(left), len(right)) and left[length] == right[length]:
        length += 1
    return length
