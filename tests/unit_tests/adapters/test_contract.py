"""The promises that every adapter keeps, whatever its ecosystem."""

import asyncio
import logging
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from contextpilot_integrations import ContextPilot, Outcome


@pytest.fixture
def adapter(driver):
    return driver(ContextPilot())


def send(adapter, items):
    return adapter.send([adapter.native(item) for item in items])


def paragraphs(adapter, sent):
    return [part for part in adapter.prompt(sent).split("\n\n") if part.startswith("[CB_")]


def ids(adapter, sent):
    return [seen.id for seen in adapter.seen(sent)]


class TestNothingLost:
    def test_a_permutation_goes_out(self, adapter, traffic):
        for items in traffic:
            sent = adapter.seen(send(adapter, items))
            assert Counter((s.id, s.text) for s in sent) == Counter((i.id, i.text) for i in items)
        assert adapter.pilot.outcomes[Outcome.ALIGNED] > len(traffic) / 2

    def test_ranks_are_those_retrieved(self, adapter, traffic):
        for items in traffic:
            for seen in adapter.seen(send(adapter, items)):
                assert items[seen.rank].id == seen.id

    def test_the_annotation_names_the_order_of_relevance(self, adapter, traffic):
        send(adapter, traffic[0])
        backwards = traffic[0][::-1]
        sent = send(adapter, backwards)
        order = " > ".join(f"[CB_{item.id}]" for item in backwards)
        assert adapter.prompt(sent).endswith(f"priority order: {order} and answer the question.")

    def test_markers_agree_in_prompt_annotation_and_label(self, adapter, item):
        items = [item(None, "no id"), item("an id too long to show", "long id"), item("short", "plain id")]
        send(adapter, items)
        sent = send(adapter, items[::-1])
        prompt = adapter.prompt(sent)
        assert len({seen.label for seen in adapter.seen(sent)}) == 3
        for seen in adapter.seen(sent):
            assert f"[CB_{seen.label}] {seen.text}" in prompt
            assert prompt.count(f"[CB_{seen.label}]") == 2  # in front of the text, and in the annotation

    def test_an_empty_request(self, adapter):
        assert send(adapter, []) == []
        assert adapter.prompt([]) == ""

    def test_a_single_block(self, adapter, item):
        sent = send(adapter, [item("one", "alone")])
        assert adapter.prompt(sent) == "[CB_one] alone"

    def test_a_block_without_text(self, adapter, item):
        sent = send(adapter, [item("a", ""), item("b", "text"), item(None, "")])
        assert [seen.text for seen in adapter.seen(sent)] == ["", "text", ""]
        assert adapter.prompt(sent).startswith("[CB_a]\n\n[CB_b] text\n\n[CB_")

    def test_duplicates_collapse_to_the_best_rank(self, adapter, item):
        a, b = item("a", "one", 0.9), item("b", "two", 0.5)
        sent = send(adapter, [a, b, item("a", "one", 0.1), b])
        assert [(seen.id, seen.rank) for seen in adapter.seen(sent)] == [("a", 0), ("b", 1)]

    def test_emoji(self, adapter, item):
        long = item("emoji", "👩‍🚀🌍" * 2_500)
        assert len(long.text) == 10_000
        sent = send(adapter, [long, item("b", "two")])
        assert long.text in adapter.prompt(sent)

    def test_one_id_with_two_texts_stays_as_retrieved(self, adapter, item):
        a, b, other = item("a", "one"), item("b", "two"), item("a", "another")
        send(adapter, [b, a])
        if len(adapter.reaching([a, b, other])) < 3:
            pytest.skip("one of them is all that ever reaches this adapter")
        sent = send(adapter, [a, b, other])
        assert [seen.text for seen in adapter.seen(sent)] == ["one", "two", "another"]
        assert "priority order" not in adapter.prompt(sent)
        assert adapter.pilot.outcomes[Outcome.LABEL_COLLISION] == 1


class TestStableBytes:
    def test_a_block_looks_the_same_in_every_prompt(self, adapter, traffic):
        rendered = {}
        for items in traffic:
            for seen, text in zip(*_seen_and_rendered(adapter, items), strict=True):
                assert rendered.setdefault(seen.id, text) == text

    def test_neither_rank_nor_score_shows(self, driver, item):
        scores = (None, 0.25, -1.0, float("nan"))
        prompts = []
        for score in scores:
            adapter = driver(ContextPilot())
            prompts.append(adapter.prompt(send(adapter, [item("a", "one", score), item("b", "two", score)])))
        assert set(prompts) == {"[CB_a] one\n\n[CB_b] two"}

    def test_the_prefix_is_shared(self, adapter, traffic):
        first = paragraphs(adapter, send(adapter, traffic[0]))
        again = paragraphs(adapter, send(adapter, traffic[0][::-1]))
        assert again == first

    def test_the_same_requests_give_the_same_prompts(self, driver, traffic):
        def prompts():
            adapter = driver(ContextPilot())
            return [adapter.prompt(send(adapter, items)) for items in traffic]

        assert prompts() == prompts()


class TestInputsUntouched:
    def test_inputs_are_not_changed(self, adapter, traffic):
        for items in traffic[:10]:
            natives = [adapter.native(item) for item in items]
            before = adapter.snapshot(natives)
            adapter.prompt(adapter.send(natives))
            assert adapter.snapshot(natives) == before

    def test_what_comes_out_is_not_what_went_in(self, adapter, traffic):
        natives = [adapter.native(item) for item in traffic[0]]
        sent = adapter.send(natives)
        assert not {id(native) for native in natives} & {id(out) for out in sent}


class TestTenants:
    def test_a_tenants_prompts_do_not_depend_on_another(self, driver, traffic):
        alone, shared = ContextPilot(), ContextPilot()
        first, second = driver(shared, tenant="a"), driver(shared, tenant="b")
        only = driver(alone, tenant="b")
        for items in traffic:
            send(first, items[::-1])
            expected, sent = send(only, items), send(second, items)
            assert second.prompt(sent) == only.prompt(expected)
            assert second.seen(sent) == only.seen(expected)

    def test_tenants_would_interfere_if_they_were_one(self, driver, traffic):
        alone, shared = driver(ContextPilot()), driver(ContextPilot())
        send(shared, traffic[0][::-1])
        assert shared.prompt(send(shared, traffic[0])) != alone.prompt(send(alone, traffic[0]))


class TestNeverWorse:
    def test_a_failing_token_counter(self, driver, item, caplog):
        def fails(text):
            raise RuntimeError("no tokenizer")

        adapter = driver(ContextPilot(token_counter=fails))
        a, b = item("a", "one"), item("b", "two")
        with caplog.at_level(logging.WARNING):
            sent = send(adapter, [b, a, b])
        given = adapter.reaching([b, a, b])
        in_order = [(i.id, rank) for rank, i in enumerate(given)]
        assert [(seen.id, seen.rank) for seen in adapter.seen(sent)] == in_order
        assert adapter.prompt(sent) == "\n\n".join(f"[CB_{i.id}] {i.text}" for i in given)
        assert len(caplog.records) == 1
        assert "RuntimeError" in caplog.text
        assert adapter.pilot.outcomes[Outcome.FAILED] == 1

    def test_on_error_raise(self, driver, item):
        def fails(text):
            raise RuntimeError("no tokenizer")

        adapter = driver(ContextPilot(token_counter=fails, on_error="raise"))
        with pytest.raises(RuntimeError, match="no tokenizer"):
            send(adapter, [item("a", "one")])

    def test_a_preamble_that_always_changes_warns_once(self, driver, traffic, caplog):
        pilot = ContextPilot()
        with caplog.at_level(logging.WARNING):
            for number, items in enumerate(traffic[:20]):
                send(driver(pilot, preamble=f"It is {number} o'clock."), items)
        assert len(caplog.records) == 1
        assert "preamble" in caplog.text


class TestTogether:
    def test_threads(self, driver, traffic):
        adapter = driver(ContextPilot())
        barrier = Barrier(16)

        def work(offset):
            barrier.wait()
            requests = traffic[offset:] + traffic[:offset]
            return [(items, ids(adapter, send(adapter, items))) for items in requests[:20]]

        with ThreadPoolExecutor(16) as pool:
            for results in pool.map(work, range(16)):
                for items, sent in results:
                    assert Counter(sent) == Counter(item.id for item in items)
        assert sum(adapter.pilot.outcomes.values()) == 16 * 20
        assert adapter.pilot.outcomes[Outcome.FAILED] == 0
        with adapter.pilot.index() as index:
            index.check_integrity()

    async def test_tasks(self, driver, traffic):
        adapter = driver(ContextPilot())
        requests = (traffic * 2)[:100]

        async def work(items):
            return ids(adapter, await adapter.asend([adapter.native(item) for item in items]))

        results = await asyncio.gather(*(work(items) for items in requests))
        for items, sent in zip(requests, results, strict=True):
            assert Counter(sent) == Counter(item.id for item in items)
        assert sum(adapter.pilot.outcomes.values()) == 100
        with adapter.pilot.index() as index:
            index.check_integrity()

    async def test_sync_and_async_behave_alike(self, driver, traffic):
        left, right = driver(ContextPilot()), driver(ContextPilot())
        for items in [*traffic, []]:
            sync = send(left, items)
            asynchronous = await right.asend([right.native(item) for item in items])
            assert type(sync) is type(asynchronous)
            assert left.prompt(sync) == right.prompt(asynchronous)
            assert left.seen(sync) == right.seen(asynchronous)


def _seen_and_rendered(adapter, items):
    sent = send(adapter, items)
    return adapter.seen(sent), paragraphs(adapter, sent)
