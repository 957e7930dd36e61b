"""A pilot that follows an engine never believes in blocks of which it dropped a page that they fill."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from contextpilot_integrations import ContextBlock, ContextPilot
from contextpilot_integrations.engines.cache_follower import CacheFollower
from contextpilot_integrations.engines.page_table import Prompt

BLOCKS = [ContextBlock(str(number), f"passage {number}") for number in range(5)]
LENGTHS = dict(zip(BLOCKS, (1, 2, 3, 5, 8), strict=True))
PREAMBLE, SIZE = [0, 0, 0], 4

contexts = st.lists(st.sampled_from(BLOCKS), min_size=1, max_size=4, unique=True)


class Engine:
    """Caches every prompt page by page, and says so."""

    def __init__(self):
        self.pages = {}

    def run(self, tokens):
        chain = [tuple(tokens[:end]) for end in range(SIZE, len(tokens) + 1, SIZE)]
        cached = 0
        while cached < len(chain) and chain[cached] in self.pages:
            cached += 1
        events = []
        for page in chain[cached:]:
            # One that lies behind a dropped page is there still, and is stored a second time.
            self.pages[page] = self.pages.get(page, 0) + 1
            parent = hash(page[:-SIZE]) if len(page) > SIZE else None
            events.append(
                {
                    "type": "BlockStored",
                    "block_hashes": [hash(page)],
                    "parent_block_hash": parent,
                    "token_ids": page[-SIZE:],
                    "block_size": SIZE,
                }
            )
        return events

    def drop(self, choice):
        page = [*self.pages][choice % len(self.pages)]
        self.pages[page] -= 1
        if not self.pages[page]:
            del self.pages[page]
        return [{"type": "BlockRemoved", "block_hashes": [hash(page)]}]

    def holds(self, tokens):
        """How many of the leading tokens lie in pages, or in the last one, which they do not fill."""
        for end in range(SIZE, len(tokens) + 1, SIZE):
            if tuple(tokens[:end]) not in self.pages:
                return end - SIZE
        return len(tokens)


@settings(deadline=None)
@given(st.lists(contexts | st.integers(0, 1_000), max_size=20))
def test_it_never_believes_more_than_the_engine_holds(steps):
    pilot, engine = ContextPilot(), Engine()
    follower = CacheFollower(pilot)
    orders = set()
    for step in steps:
        if isinstance(step, list):
            plan = pilot.prepare(step)
            orders.add(plan.blocks)
            tokens, ends = written(plan.blocks)
            follower.track(plan, Prompt(tokens), ends)
            events = engine.run(tokens)
            assert believed(pilot, plan.blocks) == len(plan.blocks)
        else:
            events = engine.drop(step) if engine.pages else []
        follower.take(msgspec.msgpack.encode([0.0, events]))
        for order in orders:
            tokens, ends = written(order)
            if count := believed(pilot, order):
                # Of a page in which the last of them ends, nobody knows how it goes on.
                assert engine.holds(tokens[: ends[count - 1]]) == ends[count - 1]
            assert follower.cached_tokens(Prompt(tokens)) == engine.holds(tokens) // SIZE * SIZE
    assert follower.strangers == 0


def written(order):
    tokens, ends = [*PREAMBLE], []
    for block in order:
        tokens += [int(block.id) + 1] * LENGTHS[block]
        ends.append(len(tokens))
    return tokens, ends


def believed(pilot, order):
    """How many leading blocks of this very order the index holds."""
    with pilot.index() as index:
        index.check_integrity()
        node, depth = index.root, 0
        digests = [block.digest for block in order]
        while depth < len(digests) and (child := node.by_first_block.get(digests[depth])) is not None:
            for block in child.blocks:
                if depth == len(digests) or block != digests[depth]:
                    return depth
                depth += 1
            node = child
        return depth
