"""LlamaIndex on a real engine: what the model has seen is found cached."""

import logging
from itertools import pairwise

import pytest

for package in ("bm25s", "gguf", "llama_index.llms.openai_like", "xllamacpp"):
    pytest.importorskip(package)

from llama_index.core.chat_engine import ContextChatEngine
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.llms.openai_like import OpenAILike

from contextpilot_integrations.demo.bm25 import BM25Retriever
from contextpilot_integrations.demo.handbook import passages, questions
from contextpilot_integrations.demo.llama_server import LlamaServer
from contextpilot_integrations.demo.weights import packaged_weights
from contextpilot_integrations.llama_index import (
    ContextPilotChatEngine,
    ContextPilotEventHandler,
    ContextPilotPostprocessor,
    ContextPilotSynthesizer,
)

try:
    packaged_weights()
except ImportError as missing:
    pytest.skip(str(missing), allow_module_level=True)

pytestmark = pytest.mark.model
logger = logging.getLogger(__name__)

SYSTEM = "Answer from the handbook, in a few words."
TURNS = 10


class Handbook(BaseRetriever):
    """Finds three pages."""

    def __init__(self, *, backwards=False):
        super().__init__()
        self._found = BM25Retriever(passages(), k=3)
        self.backwards = backwards

    def _retrieve(self, query_bundle):
        documents = self._found.invoke(query_bundle.query_str)
        nodes = [
            NodeWithScore(node=TextNode(id_=document.id, text=document.page_content))
            for document in documents
        ]
        return nodes[::-1] if self.backwards else nodes

    async def _aretrieve(self, query_bundle):
        return self._retrieve(query_bundle)


@pytest.fixture(scope="module")
def server():
    with LlamaServer(packaged_weights(), n_ctx=8192) as server:
        yield server


@pytest.fixture
def handler():
    handler, dispatcher = ContextPilotEventHandler(), get_dispatcher()
    dispatcher.add_event_handler(handler)
    yield handler
    dispatcher.event_handlers.remove(handler)


def model(server, window=8192):
    return OpenAILike(
        model=server.model,
        api_base=server.base_url,
        api_key="none",
        is_chat_model=True,
        context_window=window,
        max_tokens=8,
        temperature=0,
        timeout=600,  # A request that was sent again would find itself cached.
        additional_kwargs={"stream_options": {"include_usage": True}},
    )


def asked(turns):
    theme = [question.question for question in questions() if question.theme == "bicycle hire"]
    return [*theme, *theme][:turns]


def usages(handler):
    return [call.usage for call in handler.observed]


def computed(usages):
    return sum(usage.prompt_tokens - usage.cached_tokens for usage in usages)


def test_twice_as_much_is_cached_as_where_the_context_comes_first(handler):
    """The same ten turns on the same engine, each from a cold cache."""
    counts = {}
    for kind in (ContextChatEngine, ContextPilotChatEngine):
        with LlamaServer(packaged_weights(), n_ctx=8192) as server:
            engine = kind.from_defaults(Handbook(), llm=model(server), system_prompt=SYSTEM)
            before = len(handler.observed)
            for question in asked(TURNS):
                assert len(engine.chat(question).source_nodes) == 3
        counts[kind] = usages(handler)[before:]
        logger.info(
            "%s: %d of %d tokens were cached",
            kind.__name__,
            sum(usage.cached_tokens for usage in counts[kind]),
            sum(usage.prompt_tokens for usage in counts[kind]),
        )
    theirs, ours = counts.values()
    assert len(theirs) == len(ours) == TURNS
    assert sum(usage.cached_tokens for usage in ours) >= 2 * sum(usage.cached_tokens for usage in theirs)
    # Not merely since there is more to find: fewer are left to compute, too.
    assert 2 * computed(ours) < computed(theirs)
    for before, usage in pairwise(ours):
        assert usage.cached_tokens >= 0.9 * before.prompt_tokens


@pytest.mark.parametrize("streamed", [False, True])
async def test_later_turns_are_cached_under_async_too(server, handler, streamed):
    engine = ContextPilotChatEngine.from_defaults(Handbook(), llm=model(server), system_prompt=SYSTEM)
    for question in asked(3):
        if streamed:
            response = await engine.astream_chat(question)
            text = "".join([delta async for delta in response.async_response_gen()])
        else:
            text = str(await engine.achat(question))
        assert text.strip()
    assert len(usages(handler)) == 3
    for before, usage in pairwise(usages(handler)):
        assert usage.cached_tokens >= 0.9 * before.prompt_tokens


def test_a_stream_tells_its_counts(server, handler):
    engine = ContextPilotChatEngine.from_defaults(Handbook(), llm=model(server), system_prompt=SYSTEM)
    for question in asked(2):
        assert "".join(engine.stream_chat(question).response_gen).strip()
    one, two = usages(handler)
    assert two.cached_tokens >= 0.9 * one.prompt_tokens


def test_a_conversation_that_outgrows_the_window(handler):
    """The engine refuses what is too large: the oldest turns go in time, some at once."""
    with LlamaServer(packaged_weights(), n_ctx=1024) as server:
        engine = ContextPilotChatEngine.from_defaults(
            Handbook(), llm=model(server, 1024), system_prompt=SYSTEM
        )
        for question in questions()[::5][:6]:
            assert engine.chat(question.question).source_nodes
    sent = [usage.prompt_tokens for usage in usages(handler)]
    assert 512 < max(sent) <= 1024 - 8
    assert any(after < before for before, after in pairwise(sent))
    for before, usage in pairwise(usages(handler)):
        if usage.prompt_tokens > before.prompt_tokens:
            assert usage.cached_tokens >= 0.9 * before.prompt_tokens


def test_a_query_engine_finds_the_same_pages_cached_in_any_order(server, handler):
    retriever = Handbook()
    engine = RetrieverQueryEngine(
        retriever,
        ContextPilotSynthesizer(get_response_synthesizer(llm=model(server))),
        node_postprocessors=[ContextPilotPostprocessor()],
    )
    (question,) = asked(1)
    first = engine.query(question)
    retriever.backwards = True
    second = engine.query(question)
    assert [item.node_id for item in second.source_nodes] == [item.node_id for item in first.source_nodes]
    one, two = usages(handler)
    # All but the annotation, the question and what is written around it.
    assert two.cached_tokens >= 0.8 * one.prompt_tokens
