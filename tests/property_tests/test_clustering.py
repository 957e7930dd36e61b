"""The clustering on tensors against the same rules in plain Python."""

from hypothesis import given
from hypothesis import strategies as st

from contextpilot_integrations.index import overlaps
from contextpilot_integrations.index.clustering import ClusterNode, cluster

CONTEXTS = st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=6, unique=True), max_size=24)
WEIGHTS = st.lists(st.integers(1, 3), min_size=13, max_size=13)


def clustered(contexts, weights):
    """Merge, round by round, all pairs that are each other's best partner; rows are numbered by leaf."""
    members = {}
    for place, context in enumerate(contexts):
        members.setdefault(frozenset(context), []).append(place)
    nodes = dict(enumerate(ClusterNode(tuple(contexts[m[0]]), members=tuple(m)) for m in members.values()))

    def weight(blocks):
        return sum(weights[block] for block in blocks)

    def shared(row, other):
        return weight(set(nodes[row].blocks) & set(nodes[other].blocks))

    def best(row):
        partners = [other for other in nodes if other != row and shared(row, other)]
        order = {other: (-shared(row, other), weight(nodes[other].blocks), row ^ other) for other in partners}
        return min(order, key=order.get, default=None)

    while True:
        partner = {row: best(row) for row in nodes}
        pairs = [(a, b) for a, b in partner.items() if b is not None and a < b and partner[b] == a]
        if not pairs:
            return tuple(nodes[row] for row in sorted(nodes))
        for lower, higher in pairs:
            inside = set(nodes[higher].blocks) < set(nodes[lower].blocks)
            staying, ending = (higher, lower) if inside else (lower, higher)
            a, b = nodes[staying], nodes.pop(ending)
            nodes[staying] = ClusterNode(tuple(block for block in a.blocks if block in b.blocks), (a, b))


@given(contexts=CONTEXTS, weights=WEIGHTS, tile=st.sampled_from([1, 40, 1 << 20]))
def test_the_clusters_are_those_of_the_rules(contexts, weights, tile):
    whole, overlaps._TILE = overlaps._TILE, tile
    try:
        found = cluster(contexts, dict(enumerate(weights)))
    finally:
        overlaps._TILE = whole
    assert found == clustered(contexts, weights)


@given(order=st.permutations(range(1, 20)))
def test_contexts_that_contain_one_another_become_a_line(order):
    (node,) = cluster([list(range(length)) for length in order])
    for length in range(1, 19):
        assert set(node.blocks) == set(range(length))
        leaf, node = sorted(node.children, key=lambda child: len(child.blocks))
        assert leaf.members == (order.index(length),)
    assert set(node.blocks) == set(range(19))
