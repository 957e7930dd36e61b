"""The contract over all inputs."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from contextpilot_integrations import ContextPilot

IDS = st.none() | st.sampled_from(["a", "b", "c", "d"]) | st.text(max_size=12)
TEXTS = st.sampled_from(["", "one", "two"]) | st.text(max_size=30)
SCORES = st.none() | st.floats(allow_nan=False)
REQUESTS = st.lists(st.lists(st.tuples(IDS, TEXTS, SCORES), max_size=8), max_size=6)


@given(requests=REQUESTS)
def test_each_distinct_block_once_and_inputs_untouched(driver, item, requests):
    adapter = driver(ContextPilot())
    for request in requests:
        given = adapter.reaching([item(*values) for values in request])
        natives = [adapter.native(item(*values)) for values in request]
        before = adapter.snapshot(natives)
        sent = adapter.send(natives)
        prompt = adapter.prompt(sent)
        assert adapter.snapshot(natives) == before
        seen = adapter.seen(sent)
        expected = {(i.id, i.text) for i in given}
        # A missing id is made from the text, so it may equal no other; each distinct block goes out once.
        assert Counter((s.id, s.text) for s in seen) == Counter(expected)
        assert all(adapter.written(s.text) in prompt for s in seen)
        assert all((given[s.rank].id, given[s.rank].text) == (s.id, s.text) for s in seen)
        best = {(i.id, i.text): rank for rank, i in reversed(list(enumerate(given)))}
        assert all(best[s.id, s.text] == s.rank for s in seen)


@given(requests=REQUESTS)
def test_a_prompt_is_its_blocks_and_at_most_one_annotation(driver, item, requests):
    adapter = driver(ContextPilot())
    for request in requests:
        sent = adapter.send([adapter.native(item(*values)) for values in request])
        seen = adapter.seen(sent)
        shown = [(s, adapter.written(s.text)) for s in seen]
        blocks = "\n\n".join(f"[CB_{s.label}] {text}" if text else f"[CB_{s.label}]" for s, text in shown)
        prompt = adapter.prompt(sent)
        assert prompt.startswith(blocks)
        ranks = [s.rank for s in seen]
        assert (prompt == blocks) == (ranks == sorted(ranks))
