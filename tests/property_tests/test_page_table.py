"""The page table against a list of copies that is searched from end to end."""

from hypothesis import given, settings
from hypothesis import strategies as st

from contextpilot_integrations.engines.kv_events import BlockRemoved, BlockStored
from contextpilot_integrations.engines.page_table import PageTable, Prompt

SIZE = 2
prompts = st.lists(st.integers(0, 1), min_size=2, max_size=8).map(lambda t: tuple(t[: len(t) // SIZE * SIZE]))
origins = st.tuples(st.sampled_from([None, "salt"]), st.sampled_from([None, "lora"]))
places = st.tuples(st.integers(0, 1), st.sampled_from(["GPU", "CPU"]))
stores = st.tuples(st.just("store"), prompts, origins, places, st.integers(0, 3))
removals = st.tuples(st.just("remove"), st.integers(0, 10**6))


class Copies:
    """One entry a copy of a page: its salt and adapter, all tokens up to its end, rank and medium."""

    def __init__(self):
        self.all = []
        self.hashes = {}

    def hash_of(self, origin, tokens):
        return self.hashes.setdefault((origin, tokens), len(self.hashes))

    def held(self, origin, tokens, rank, medium=None):
        ends = range(SIZE, len(tokens) + 1, SIZE)
        for end in ends:
            if not any(c[:3] == (origin, tokens[:end], rank) and medium in (None, c[3]) for c in self.all):
                return end - SIZE
        return len(tokens)


@settings(deadline=None)
@given(st.lists(stores | removals, max_size=25))
def test_it_holds_what_was_stored_and_not_removed(steps):
    table, model = PageTable(), Copies()
    for step in steps:
        if step[0] == "store":
            _, tokens, origin, (rank, medium), skipped = step
            # Pages whose parent is held are what an engine stores; the first ones may be there already.
            start = min(skipped * SIZE, model.held(origin, tokens, rank))
            chain = [tokens[:end] for end in range(start + SIZE, len(tokens) + 1, SIZE)]
            salt, lora = origin
            event = BlockStored(
                block_hashes=tuple(model.hash_of(origin, page) for page in chain),
                parent_block_hash=model.hash_of(origin, tokens[:start]) if start else None,
                token_ids=tokens[start:],
                block_size=SIZE,
                medium=medium,
                lora_name=lora,
                extra_keys=tuple(
                    tuple(key for key in (lora, salt if len(page) == SIZE else None) if key) or None
                    for page in chain
                ),
            )
            table.store(event, rank)
            model.all += [(origin, page, rank, medium) for page in chain]
        elif model.all:
            _, choice = step
            copy = model.all.pop(choice % len(model.all))
            origin, tokens, rank, medium = copy
            gone = table.remove(BlockRemoved((model.hash_of(origin, tokens),), medium), rank)
            assert len(gone) == (not any(c[:2] == (origin, tokens) for c in model.all))
        for origin, tokens in model.hashes:
            for rank in (0, 1):
                for medium in (None, "GPU", "CPU"):
                    prompt = Prompt(tokens, *origin)
                    held = table.cached_tokens(prompt, rank=rank, medium=medium)
                    assert held == model.held(origin, tokens, rank, medium)
    assert len(table) == len({copy[:3] for copy in model.all})
    assert table.strangers == 0
