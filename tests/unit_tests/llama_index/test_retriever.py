import pickle

import pytest
from llama_index.core.bridge.pydantic import Field
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events.retrieval import RetrievalEndEvent
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import IndexNode, NodeWithScore, TextNode

from contextpilot_integrations import ContextPilot
from contextpilot_integrations.llama_index import (
    ContextPilotRetriever,
    ContextPilotSynthesizer,
    format_nodes,
    plan_metadata,
)


class Broken(BaseRetriever):
    def _retrieve(self, query_bundle):
        raise LookupError("no index")


def test_what_is_found_is_put_in_the_cached_order(retriever):
    wrapped = ContextPilotRetriever(retriever)
    wrapped.retrieve("12: one")
    found = wrapped.retrieve("312: two")
    assert [item.node_id for item in found] == ["1", "2", "3"]
    assert [plan_metadata(item)["rank"] for item in found] == [1, 2, 0]


async def test_the_async_twin_awaits_the_wrapped_one(retriever):
    class OnlyAsync(type(retriever)):
        def _retrieve(self, query_bundle):
            raise AssertionError("this blocks the loop")

        async def _aretrieve(self, query_bundle):
            return super()._retrieve(query_bundle)

    found = await ContextPilotRetriever(OnlyAsync()).aretrieve("21: one")
    assert format_nodes(found).startswith("[CB_2] The text of page 2.")


@pytest.mark.parametrize("way", ["sync", "async"])
async def test_references_are_followed_once_and_planned_where_they_lead(retriever, way):
    class Follows(BaseRetriever):
        def _retrieve(self, query_bundle):
            return [
                NodeWithScore(
                    node=IndexNode(id_="i", text="see", index_id="pages", obj=retriever), score=0.5
                ),
                NodeWithScore(node=TextNode(id_="t", text="text"), score=0.25),
            ]

    wrapped = ContextPilotRetriever(Follows())
    found = wrapped.retrieve("12: one") if way == "sync" else await wrapped.aretrieve("12: one")
    assert [item.node_id for item in found] == ["1", "2", "t"]
    assert all(plan_metadata(item) for item in found)


def test_its_errors_go_through():
    with pytest.raises(LookupError, match="no index"):
        ContextPilotRetriever(Broken()).retrieve("question")


def test_one_pilot_is_shared_and_tenants_are_kept_apart(retriever):
    pilot = ContextPilot()
    acme, other = (ContextPilotRetriever(retriever, pilot, tenant=tenant) for tenant in ("acme", "other"))
    acme.retrieve("12: one")
    assert [item.node_id for item in other.retrieve("21: one")] == ["2", "1"]
    assert [item.node_id for item in acme.retrieve("21: one")] == ["1", "2"]


def test_one_name_is_no_list_of_names(retriever):
    with pytest.raises(TypeError, match=r"metadata_keys .* pass \['title'\]"):
        ContextPilotRetriever(retriever, metadata_keys="title")


def test_pickling_says_what_it_cannot_and_leaves_the_pilot(retriever):
    wrapped = ContextPilotRetriever(retriever, ContextPilot(token_counter=lambda text: len(text)))
    with pytest.raises(TypeError, match="token_counter"):
        pickle.dumps(wrapped)
    assert [item.node_id for item in wrapped.retrieve("12: one")] == ["1", "2"]


def test_both_retrievals_are_seen_by_event_handlers(retriever):
    class Events(BaseEventHandler):
        seen: list = Field(default_factory=list)

        def handle(self, event, **kwargs):
            if isinstance(event, RetrievalEndEvent):
                self.seen.append([item.node_id for item in event.nodes])

    handler, dispatcher = Events(), get_dispatcher()
    dispatcher.add_event_handler(handler)
    try:
        wrapped = ContextPilotRetriever(retriever)
        wrapped.retrieve("12: one")
        wrapped.retrieve("21: two")
    finally:
        dispatcher.event_handlers.remove(handler)
    assert handler.seen == [["1", "2"], ["1", "2"], ["2", "1"], ["1", "2"]]


def test_in_a_query_engine(retriever, llm):
    synthesizer = ContextPilotSynthesizer(get_response_synthesizer(llm=llm))
    engine = RetrieverQueryEngine(ContextPilotRetriever(retriever), synthesizer)
    engine.query("12: one")
    response = engine.query("21: two")
    assert [item.node_id for item in response.source_nodes] == ["1", "2"]
    assert "priority order: [CB_2] > [CB_1] and answer the question.\n\n21: two" in llm.prompts[-1]
