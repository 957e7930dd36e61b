import asyncio

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document

from contextpilot_integrations import ContextPilot, Outcome
from contextpilot_integrations.langchain import ContextPilotAligner, ContextPilotRetriever, plan_metadata
from contextpilot_integrations.langchain.documents import to_block


def ids(documents):
    return [document.id for document in documents]


def turns(contexts):
    return [plan_metadata(context[0])["schedule_position"] for context in contexts]


@pytest.fixture
def batches(monkeypatch):
    """How many requests each offline plan had."""
    sizes = []
    original = ContextPilot.prepare_batch

    def counted(self, contexts, **kwargs):
        sizes.append(len(contexts))
        return original(self, contexts, **kwargs)

    monkeypatch.setattr(ContextPilot, "prepare_batch", counted)
    return sizes


class TestOnline:
    async def test_one_request(self, wrapped):
        aligner = ContextPilotAligner()
        chain = wrapped | aligner
        assert ids(chain.invoke("first")) == ["d1", "d2", "d3"]
        assert ids(await chain.ainvoke("second")) == ["d1", "d2", "d3", "d4"]
        assert turns([chain.invoke("third")]) == [None]

    @pytest.mark.parametrize("given", ["text", [Document("text"), "text"], {"a": 1}, None])
    async def test_what_is_no_list_of_documents(self, given):
        aligner = ContextPilotAligner()
        for call in (aligner.invoke, lambda value: asyncio.run(aligner.ainvoke(value))):
            with pytest.raises(TypeError, match="Document objects, not"):
                await asyncio.to_thread(call, given)


class TestOffline:
    async def test_a_chains_batch_is_one_plan(self, busy, batches):
        chain = busy | ContextPilotAligner()
        questions = list(busy.found)
        contexts = chain.batch(questions)
        assert batches == [40]
        assert sorted(turns(contexts)) == list(range(40))
        for question, context in zip(questions, contexts, strict=True):
            assert sorted(ids(context)) == sorted(f"d{n}" for n in busy.found[question])
        again = await (busy | ContextPilotAligner()).abatch(questions)
        assert batches == [40, 40]
        assert again == contexts

    def test_it_is_the_pilots_plan(self, busy):
        documents = [busy.invoke(question) for question in busy.found]
        expected = ContextPilot().prepare_batch([[to_block(d) for d in request] for request in documents])
        contexts = ContextPilotAligner().batch(documents)
        assert [tuple(ids(context)) for context in contexts] == [plan.block_ids for plan in expected.plans]
        by_turn = sorted(range(len(contexts)), key=turns(contexts).__getitem__)
        assert tuple(by_turn) == expected.schedule

    async def test_an_empty_batch(self, batches):
        aligner = ContextPilotAligner()
        assert aligner.batch([]) == await aligner.abatch([]) == []
        assert batches == []

    def test_empty_contexts(self, wrapped):
        contexts = (wrapped | ContextPilotAligner()).batch(["none", "first", "none"])
        assert [len(context) for context in contexts] == [0, 3, 0]

    @pytest.mark.parametrize("asynchronous", [False, True])
    async def test_a_bad_input(self, wrapped, asynchronous):
        aligner = ContextPilotAligner()
        inputs = [wrapped.invoke("first"), "text", wrapped.invoke("second")]

        async def batch(**kwargs):
            if asynchronous:
                return await aligner.abatch(inputs, **kwargs)
            return aligner.batch(inputs, **kwargs)

        first, error, second = await batch(return_exceptions=True)
        assert isinstance(error, TypeError)
        assert (sorted(ids(first)), sorted(ids(second))) == (["d1", "d2", "d3"], ["d1", "d2", "d3", "d4"])
        assert sorted(turns([first, second])) == [0, 1]
        with pytest.raises(TypeError, match="not str"):
            await batch()

    def test_a_question_that_finds_nothing_leaves_the_others_their_plan(self, wrapped, batches):
        chain = wrapped | ContextPilotAligner()
        first, error, second = chain.batch(["first", "unknown", "second"], return_exceptions=True)
        assert isinstance(error, LookupError)
        assert batches == [2]
        assert sorted(turns([first, second])) == [0, 1]

    def test_when_planning_fails_the_batch_goes_out_as_it_came(self, wrapped):
        def fails(text):
            raise RuntimeError("no tokenizer")

        pilot = ContextPilot(token_counter=fails, on_error="ignore")
        contexts = (wrapped | ContextPilotAligner(pilot=pilot)).batch(["first", "second"])
        assert list(map(ids, contexts)) == [["d1", "d2", "d3"], ["d3", "d2", "d1", "d4"]]
        assert turns(contexts) == [0, 1]
        assert pilot.outcomes[Outcome.FAILED] == 2

    def test_each_input_is_traced_under_its_own_config(self, wrapped):
        class Names(BaseCallbackHandler):
            def __init__(self):
                self.names = []

            def on_chain_start(self, serialized, inputs, **kwargs):
                self.names.append((kwargs["name"], kwargs["tags"]))

        names = Names()
        inputs = [wrapped.invoke("first"), wrapped.invoke("second")]
        configs = [{"callbacks": [names], "tags": [tag]} for tag in "ab"]
        ContextPilotAligner().batch(inputs, configs)
        assert names.names == [("ContextPilotAligner", ["a"]), ("ContextPilotAligner", ["b"])]


class TestPlannedBefore:
    @pytest.fixture
    def planned(self, wrapped):
        """Retrieved as 3 2 1 4, planned as 1 2 3 4."""
        retriever = ContextPilotRetriever(retriever=wrapped)
        retriever.invoke("first")
        planned = retriever.invoke("second")
        assert ids(planned) == ["d1", "d2", "d3", "d4"]
        return planned

    def test_the_order_of_relevance_is_restored(self, planned):
        for (again,) in (ContextPilotAligner().batch([planned]), [ContextPilotAligner().invoke(planned)]):
            assert ids(again) == ["d3", "d2", "d1", "d4"]
            assert [plan_metadata(document)["rank"] for document in again] == [0, 1, 2, 3]

    def test_ranks_stay_those_retrieved(self, planned):
        again = ContextPilotAligner().invoke([planned[0], planned[2], planned[3]])
        assert [(d.id, plan_metadata(d)["rank"]) for d in again] == [("d3", 0), ("d1", 2), ("d4", 3)]

    def test_who_reorders_has_the_last_word(self, planned):
        again = ContextPilotAligner().invoke([planned[3], planned[0]])
        assert [(d.id, plan_metadata(d)["rank"]) for d in again] == [("d4", 0), ("d1", 1)]
