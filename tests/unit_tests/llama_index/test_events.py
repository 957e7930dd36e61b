from concurrent.futures import ThreadPoolExecutor

import pytest
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, CompletionResponse
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.dispatcher import instrument_tags
from llama_index.core.instrumentation.events.llm import (
    LLMChatEndEvent,
    LLMChatInProgressEvent,
    LLMChatStartEvent,
    LLMCompletionEndEvent,
)
from llama_index.core.llms import LLMMetadata
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.custom import CustomLLM

from contextpilot_integrations.engines.usage import Usage
from contextpilot_integrations.llama_index import ContextPilotEventHandler

ANSWER = {
    "usage": {"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 64}}
}
MESSAGE = ChatMessage("an answer", role="assistant")


def chat_end(raw, **fields):
    return LLMChatEndEvent(messages=[], response=ChatResponse(message=MESSAGE, raw=raw), **fields)


def completion_end(raw):
    return LLMCompletionEndEvent(prompt="", response=CompletionResponse(text="an answer", raw=raw))


@pytest.fixture
def handler():
    handler, dispatcher = ContextPilotEventHandler(), get_dispatcher()
    dispatcher.add_event_handler(handler)
    yield handler
    dispatcher.event_handlers.remove(handler)


class Engine(CustomLLM):
    """A completion model; only its last chunk has counts."""

    @property
    def metadata(self):
        return LLMMetadata()

    @llm_completion_callback()
    def complete(self, prompt, formatted=False, **kwargs):
        return CompletionResponse(text="an answer", raw=dict(ANSWER))

    @llm_completion_callback()
    def stream_complete(self, prompt, formatted=False, **kwargs):
        def chunks():
            yield CompletionResponse(text="an", delta="an", raw={"usage": None})
            yield CompletionResponse(text="an answer", delta=" answer", raw=dict(ANSWER))

        return chunks()


class ChatEngine(Engine):
    @llm_chat_callback()
    async def astream_chat(self, messages, **kwargs):
        async def chunks():
            yield ChatResponse(message=MESSAGE, raw={"usage": None})
            yield ChatResponse(message=MESSAGE, raw=dict(ANSWER))

        return chunks()


def usages(handler):
    return [call.usage for call in handler.observed]


class TestWhatIsRead:
    def test_of_a_call(self, handler):
        Engine().complete("question")
        assert usages(handler) == [Usage(100, 5, 64)]

    def test_of_a_stream(self, handler):
        list(Engine().stream_complete("question"))
        assert usages(handler) == [Usage(100, 5, 64)]

    async def test_of_an_asynchronous_stream(self, handler):
        stream = await ChatEngine().astream_chat([MESSAGE])
        assert [chunk async for chunk in stream]
        assert usages(handler) == [Usage(100, 5, 64)]

    def test_a_chat_that_a_completion_model_answers_counts_once(self, handler):
        Engine().chat([MESSAGE])
        list(Engine().stream_chat([MESSAGE]))
        assert usages(handler) == [Usage(100, 5, 64)] * 2

    @pytest.mark.parametrize("ends", [chat_end, completion_end])
    def test_answers_from_a_cache_count_each(self, handler, ends):
        for _ in range(3):
            handler.handle(ends(ANSWER))
        assert usages(handler) == [Usage(100, 5, 64)] * 3

    def test_chats_that_a_completion_model_answers_from_a_cache_count_each(self, handler):
        for _ in range(3):
            handler.handle(completion_end(ANSWER))
            handler.handle(chat_end(ANSWER))
        assert usages(handler) == [Usage(100, 5, 64)] * 3

    @pytest.mark.parametrize("raw", [None, {}, {"usage": None}, {"usage": {"prompt_tokens": 100}}])
    def test_what_the_engine_does_not_tell_is_not_zero(self, handler, raw):
        handler.handle(chat_end(raw))
        assert usages(handler)[0].cached_tokens is None

    def test_a_stream_without_a_chunk(self, handler):
        handler.handle(LLMChatEndEvent(messages=[], response=None))
        assert usages(handler) == [Usage()]

    def test_nothing_of_calls_that_go_on(self, handler):
        response = ChatResponse(message=MESSAGE, raw=ANSWER)
        handler.handle(LLMChatStartEvent(messages=[], additional_kwargs={}, model_dict={}))
        handler.handle(LLMChatInProgressEvent(messages=[], response=response))
        assert handler.observed == ()

    def test_spans_and_tags(self, handler):
        with instrument_tags({"session": "7"}):
            Engine().complete("question")
        (call,) = handler.observed
        assert call.span_id.startswith("Engine.complete-")
        assert call.tags == {"session": "7"}


class TestBounds:
    def test_the_latest_calls_are_kept(self):
        handler = ContextPilotEventHandler(max_calls=2)
        for number in range(5):
            handler.handle(chat_end({"usage": {"prompt_tokens": number}}))
        assert [usage.prompt_tokens for usage in usages(handler)] == [3, 4]
        with pytest.raises(ValueError, match="max_calls"):
            ContextPilotEventHandler(max_calls=0)

    def test_threads(self):
        handler = ContextPilotEventHandler(max_calls=10_000)

        def work(number):
            for _ in range(100):
                handler.handle(completion_end(dict(ANSWER)))

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
        assert len(handler.observed) == 800

    def test_class_name(self):
        assert ContextPilotEventHandler.class_name() == "ContextPilotEventHandler"
