from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, CompletionResponse, LLMMetadata
from llama_index.core.bridge.pydantic import Field
from llama_index.core.llms.custom import CustomLLM
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, TextNode


class RecordingLLM(CustomLLM):
    """Answers "an answer", a word at a time where it streams, and keeps what it was asked.

    Attributes:
        window: Its context window in tokens.
        prompts: What it was asked.
        fails: Whether the engine is gone.
        chats: Whether it is a chat model.
        reported: Returns for a chat's messages how many tokens it says they have. None: it says nothing.
    """

    window: int = 4096
    prompts: list[Any] = Field(default_factory=list)
    fails: bool = False
    chats: bool = False
    reported: Any = None

    @property
    def metadata(self):
        return LLMMetadata(context_window=self.window, num_output=64, is_chat_model=self.chats)

    def complete(self, prompt, formatted=False, **kwargs):
        self.prompts.append(prompt)
        return CompletionResponse(text="an answer")

    def stream_complete(self, prompt, formatted=False, **kwargs):
        self.prompts.append(prompt)
        return (CompletionResponse(text="an answer"[:end], delta=d) for end, d in ((2, "an"), (9, " answer")))

    def chat(self, messages, **kwargs):
        self.prompts.append(list(messages))
        if self.fails:
            raise ConnectionError("no engine")
        return ChatResponse(message=ChatMessage("an answer", role="assistant"), raw=self.raw(messages))

    def stream_chat(self, messages, **kwargs):
        self.prompts.append(list(messages))

        def chunks():
            text = ""
            for delta in ("an", " answer"):
                text += delta
                yield ChatResponse(message=ChatMessage(text, role="assistant"), delta=delta)
                if self.fails:
                    raise ConnectionError("no engine")
            if self.reported:
                yield ChatResponse(
                    message=ChatMessage(text, role="assistant"), delta="", raw=self.raw(messages)
                )

        return chunks()

    def raw(self, messages):
        return self.reported and {"usage": {"prompt_tokens": self.reported(messages)}}

    async def achat(self, messages, **kwargs):
        return self.chat(messages)

    async def astream_chat(self, messages, **kwargs):
        async def chunks():
            for chunk in self.stream_chat(messages):
                yield chunk

        return chunks()


class Pages(BaseRetriever):
    """Finds the pages whose numbers the question begins with."""

    def _retrieve(self, query_bundle):
        return [page(number) for number in query_bundle.query_str.split(":")[0]]

    async def _aretrieve(self, query_bundle):
        return self._retrieve(query_bundle)


def page(number, score=0.5, **fields):
    return NodeWithScore(node=TextNode(id_=str(number), text=text_of(number), **fields), score=score)


def text_of(number):
    return f"The text of page {number}. It goes on about bicycles, what they cost, and who may hire one."


@pytest.fixture
def llm():
    return RecordingLLM()


@pytest.fixture
def make_llm():
    return RecordingLLM


@pytest.fixture
def retriever():
    return Pages()


@pytest.fixture
def make_page():
    return page


@pytest.fixture
def text():
    return text_of
