"""The context index against definitions that are obviously right."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from contextpilot_integrations import ContextIndex
from contextpilot_integrations.alignment import align_batch
from contextpilot_integrations.index.clustering import cluster

sequences = st.lists(st.integers(0, 7), unique=True, max_size=6)
weights = st.lists(st.integers(1, 5), min_size=8, max_size=8)


@given(st.lists(sequences, max_size=12), sequences, weights)
def test_search_finds_the_sequence_worth_most_and_of_equals_the_lowest_path(cached, context, weight):
    index = ContextIndex()
    for sequence in cached:
        index.insert(sequence, [weight[block] for block in sequence])
    match = index.search(context)
    best = max(
        (
            sum(weight[block] for block in sequence[:length])
            for sequence in cached
            for length in range(len(sequence) + 1)
            if set(sequence[:length]) <= set(context)
        ),
        default=0,
    )
    assert match.weight == best == sum(weight[block] for block in match.blocks)
    assert set(match.blocks) <= set(context)
    rivals = [
        node.path
        for node in index
        for inside in [list(itertools.takewhile(lambda block: block in context, node.sequence))]
        if sum(weight[block] for block in inside) == best
        and len(inside) > len(node.sequence) - len(node.blocks)
    ]
    assert match.node.path == min(rivals, default=())


@given(st.lists(sequences, max_size=12))
def test_children_differ_in_their_first_block_and_equal_prefixes_share_nodes(cached):
    index = ContextIndex()
    for sequence in cached:
        index.insert(sequence)
    index.check_integrity()
    prefixes = {tuple(s[:length]) for s in cached for length in range(1, len(s) + 1)}
    assert index.total_weight == len(prefixes)
    assert len(index) <= 2 * len(cached)


@given(st.lists(sequences, max_size=14))
def test_clustering_keeps_every_context_and_only_what_is_shared(contexts):
    stack, seen = list(cluster(contexts)), []
    for left, right in itertools.combinations(stack, 2):
        assert not set(left.blocks) & set(right.blocks)
    while stack:
        node = stack.pop()
        if node.children:
            left, right = node.children
            assert set(node.blocks) == set(left.blocks) & set(right.blocks) != set()
            assert not node.members
            stack.extend(node.children)
        else:
            seen.extend(node.members)
            assert all(set(contexts[place]) == set(node.blocks) for place in node.members)
    assert sorted(seen) == [place for place, context in enumerate(contexts) if context]


@given(st.lists(sequences, max_size=14), st.lists(sequences, max_size=4), st.integers(1, 6))
def test_a_batch_in_whatever_windows_loses_nothing(contexts, cached, window):
    index = ContextIndex()
    for sequence in cached:
        index.insert(sequence)
    orders = align_batch(contexts, dict.fromkeys(range(8), 1), index.search, window=window)
    assert [sorted(order) for order in orders] == [sorted(context) for context in contexts]


@given(st.lists(sequences, max_size=12), sequences, st.integers(0, 7), weights)
def test_a_cut_forgets_what_starts_with_the_block_and_nothing_else(cached, cut, depth, weight):
    index = ContextIndex()
    for request, sequence in enumerate(cached):
        index.insert(sequence, [weight[block] for block in sequence], request)
    prefixes = {tuple(s[:length]) for s in cached for length in range(1, len(s) + 1)}
    gone = {p for p in prefixes if depth < len(cut) and p[: depth + 1] == tuple(cut[: depth + 1])}
    assert index.cut(cut, depth) == sum(weight[prefix[-1]] for prefix in gone)
    index.check_integrity()
    stored = {node.sequence[:length] for node in index for length in range(1, len(node.sequence) + 1)}
    assert stored == prefixes - gone
    last = {request: tuple(sequence) for request, sequence in enumerate(cached)}
    assert {request for request in last if index.evict(request)} == {r for r in last if last[r] not in gone}
    index.check_integrity()


class IndexMachine(RuleBasedStateMachine):
    """Whatever is done to an index, its invariants hold, and without a limit it forgets nothing."""

    @initialize(capacity=st.none() | st.integers(1, 15), max_requests=st.integers(1, 5))
    def start(self, capacity, max_requests):
        self.index = ContextIndex(capacity=capacity, max_requests=max_requests)

    @rule(sequence=sequences, request=st.none() | st.integers(0, 6), weight=st.integers(1, 4))
    def insert(self, sequence, request, weight):
        inserted = self.index.insert(sequence, [weight] * len(sequence), request)
        if self.index.capacity is None:
            assert inserted.node.sequence == tuple(sequence)
            assert self.index.insert(sequence, [weight] * len(sequence)).cached_blocks == len(sequence)

    @rule(context=sequences)
    def search(self, context):
        match = self.index.search(context)
        assert set(match.blocks) <= set(context)

    @rule(request=st.integers(0, 6))
    def evict(self, request):
        self.index.evict(request)
        assert not self.index.evict(request)

    @rule(sequence=sequences, depth=st.integers(0, 6))
    def cut(self, sequence, depth):
        self.index.cut(sequence, depth)
        assert self.index.cut(sequence, depth) == 0

    @rule()
    def follow_all_paths(self):
        for node in self.index:
            assert self.index.traverse(node.path) is node

    @rule()
    def clear(self):
        self.index.clear()

    @invariant()
    def integrity(self):
        self.index.check_integrity()


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
