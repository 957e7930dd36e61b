"""A chat engine that keeps each turn's context with its turn, behind a history that never changes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, cast

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponseAsyncGen,
    ChatResponseGen,
    MessageRole,
)
from llama_index.core.callbacks import CallbackManager, trace_method
from llama_index.core.chat_engine.types import AgentChatResponse, BaseChatEngine, StreamingAgentChatResponse
from llama_index.core.llms.llm import LLM
from llama_index.core.memory import BaseMemory, Memory
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle
from llama_index.core.settings import Settings
from llama_index.core.tools import ToolOutput
from llama_index.core.types import Thread

from contextpilot_integrations.block import ContextBlock
from contextpilot_integrations.llama_index.messages import rewrite_messages
from contextpilot_integrations.llama_index.nodes import Request, checked_keys
from contextpilot_integrations.llama_index.window import Window, prompt_tokens
from contextpilot_integrations.namespace import Namespace
from contextpilot_integrations.pilot import ContextPilot

__all__ = ["ContextPilotChatEngine"]


class ContextPilotChatEngine(BaseChatEngine):
    """Retrieves for each turn, and sends what the model cannot see yet.

    A turn is one user message: the passages that were found for it, then what the user asked. It follows the
    system prompt and the turns before, which go out byte for byte as they did, so the engine has cached all
    but the new turn. A passage that stands in an earlier turn is not sent again but named, and the first
    turn's passages are put in the order that the cache likes.

    The memory holds the turns in full. What goes out is worked out anew each time from the messages that the
    memory gives, so where old ones are missing, no passage is named that the model cannot see.

    With ``max_prompt_tokens``, as `from_defaults` sets it, the oldest turns are left out once what is sent
    would not fit, and then half a prompt of them at once, so that the beginning stays the same for many turns
    after. The passages and the question of one turn have to fit by themselves. A memory that drops messages
    by its own limit counts turns in full, and changes the beginning of the prompt each time: let it leave
    room for a turn's passages, and drop much at a time (LlamaIndex's ``Memory`` and its
    ``token_flush_size``).

    One engine is one conversation; many may share the pilot.

    Args:
        retriever: Finds the passages, best first; one that plans them itself is not needed.
        llm: The model.
        memory: Keeps the conversation.
        prefix_messages: What stands before it: the system prompt.
        node_postprocessors: Filters and rerankers, in their order.
        pilot: Who rewrites. Share one among all whose prompts meet the same engine. None: a new one.
        max_prompt_tokens: How many tokens a prompt may have, by the pilot's token counter, or without one by
            LlamaIndex's (``Settings.tokenizer``); pictures are not counted. Where the model's answers report
            how many tokens their prompts had, as OpenAI-compatible ones do, and these are more (by a third in
            German, for instance), that is allowed for from then on. None: all that the memory gives is sent.
        endpoint: Where the engine is, for instance its base URL.
        model: The model's name there.
        tenant: Whoever must not share a cache with anyone else.
        metadata_keys: The metadata that the model sees in front of a passage. None: what the node itself
            shows, less the volatile (`VOLATILE_KEYS`).
        callback_manager: LlamaIndex's. None: that of its settings.

    Raises:
        TypeError: If ``metadata_keys`` is a str.
        ValueError: If ``max_prompt_tokens`` is below 1.
    """

    def __init__(
        self,
        retriever: BaseRetriever,
        llm: LLM,
        memory: BaseMemory,
        prefix_messages: Sequence[ChatMessage] | None = None,
        node_postprocessors: Sequence[BaseNodePostprocessor] | None = None,
        pilot: ContextPilot | None = None,
        *,
        max_prompt_tokens: int | None = None,
        endpoint: str = "",
        model: str = "",
        tenant: str = "",
        metadata_keys: Collection[str] | None = None,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        self.pilot = pilot or ContextPilot()
        self.namespace = Namespace(endpoint=endpoint, model=model, tenant=tenant)
        self.callback_manager = callback_manager or Settings.callback_manager
        self._retriever = retriever
        self._llm = llm
        self._memory = memory
        self._prefix_messages = list(prefix_messages or ())
        self._node_postprocessors = list(node_postprocessors or ())
        self._metadata_keys = checked_keys(metadata_keys)
        self._window = Window(max_prompt_tokens, self.pilot)

    @classmethod
    def from_defaults(
        cls,
        retriever: BaseRetriever,
        *,
        llm: LLM | None = None,
        memory: BaseMemory | None = None,
        chat_history: Sequence[ChatMessage] | None = None,
        system_prompt: str | None = None,
        prefix_messages: Sequence[ChatMessage] | None = None,
        **settings: Any,
    ) -> ContextPilotChatEngine:
        """Make an engine as LlamaIndex's own chat engines are made.

        Args:
            retriever: Finds the passages.
            llm: The model. None: that of LlamaIndex's settings.
            memory: Keeps the conversation, and drops what it will. None: a `Memory` that keeps all of it, of
                which is sent what fits into the model's window beside an answer (``context_window`` and
                ``num_output`` of its metadata), less an eighth, since tokens are counted by an estimate.
            chat_history: What that begins with, where no memory is given.
            system_prompt: The system prompt.
            prefix_messages: What stands before the conversation, instead of a system prompt.
            **settings: Further arguments of the class. A ``context_template``, as LlamaIndex's own engine has
                one for the passages in its system prompt, is none: here they stand with their turns, and
                what it tells the model belongs into ``system_prompt``.

        Raises:
            ValueError: If there are both a system prompt and prefix messages, or both a memory and a history.
        """
        if system_prompt is not None and prefix_messages is not None:
            raise ValueError("pass either system_prompt or prefix_messages, not both")
        if memory is not None and chat_history:
            raise ValueError("pass either memory or chat_history; a memory has its own (memory.set)")
        llm = llm or Settings.llm
        if memory is None:
            # It would count turns in full. What is sent is counted here.
            memory = Memory.from_defaults(
                chat_history=list(chat_history or ()), token_limit=sys.maxsize, tokenizer_fn=lambda text: []
            )
            settings.setdefault("max_prompt_tokens", prompt_tokens(llm))
        if system_prompt is not None:
            prefix_messages = [ChatMessage(system_prompt, role=llm.metadata.system_role)]
        return cls(retriever, llm, memory, prefix_messages or (), **settings)

    @property
    def chat_history(self) -> list[ChatMessage]:
        """The conversation as the memory holds it: each user message with its turn's passages, in full."""
        return self._memory.get_all()

    def reset(self) -> None:
        """Forget the conversation."""
        self._memory.reset()

    @trace_method("chat")
    def chat(
        self,
        message: str,
        chat_history: list[ChatMessage] | None = None,
        prev_chunks: list[NodeWithScore] | None = None,
    ) -> AgentChatResponse:
        """Answer a message.

        Args:
            message: What the user says.
            chat_history: What the memory is to hold before. None: what it holds.
            prev_chunks: What is taken as found where nothing is.
        """
        if chat_history is not None:
            self._memory.set(list(chat_history))
        nodes = self._nodes(message) or prev_chunks or []
        turn = self._turn(message, nodes, self._memory.get(input=message))
        response = self._llm.chat(turn.messages)
        self._window.learn(turn.messages, turn.counted, response)
        answer = response.message
        turn.put(answer)
        return AgentChatResponse(_text(answer), turn.sources, nodes)

    @trace_method("chat")
    async def achat(
        self,
        message: str,
        chat_history: list[ChatMessage] | None = None,
        prev_chunks: list[NodeWithScore] | None = None,
    ) -> AgentChatResponse:
        """Answer a message as `chat` does."""
        if chat_history is not None:
            await self._memory.aset(list(chat_history))
        nodes = await self._anodes(message) or prev_chunks or []
        turn = self._turn(message, nodes, await self._memory.aget(input=message))
        response = await self._llm.achat(turn.messages)
        self._window.learn(turn.messages, turn.counted, response)
        answer = response.message
        await turn.aput(answer)
        return AgentChatResponse(_text(answer), turn.sources, nodes)

    @trace_method("chat")
    def stream_chat(
        self,
        message: str,
        chat_history: list[ChatMessage] | None = None,
        prev_chunks: list[NodeWithScore] | None = None,
    ) -> StreamingAgentChatResponse:
        """Answer a message bit by bit; the memory has the turn once the answer has ended."""
        if chat_history is not None:
            self._memory.set(list(chat_history))
        nodes = self._nodes(message) or prev_chunks or []
        turn = self._turn(message, nodes, self._memory.get(input=message))
        response = StreamingAgentChatResponse(
            chat_stream=self._compared(turn, self._llm.stream_chat(turn.messages)),
            sources=turn.sources,
            source_nodes=nodes,
        )
        thread = Thread(target=response.write_response_to_history, args=(turn,))
        response.write_response_to_history_thread = thread
        thread.start()
        return response

    @trace_method("chat")
    async def astream_chat(
        self,
        message: str,
        chat_history: list[ChatMessage] | None = None,
        prev_chunks: list[NodeWithScore] | None = None,
    ) -> StreamingAgentChatResponse:
        """Answer a message bit by bit as `stream_chat` does."""
        if chat_history is not None:
            await self._memory.aset(list(chat_history))
        nodes = await self._anodes(message) or prev_chunks or []
        turn = self._turn(message, nodes, await self._memory.aget(input=message))
        response = StreamingAgentChatResponse(
            achat_stream=self._acompared(turn, await self._llm.astream_chat(turn.messages)),
            sources=turn.sources,
            source_nodes=nodes,
        )
        response.awrite_response_to_history_task = asyncio.create_task(
            response.awrite_response_to_history(cast(BaseMemory, turn))
        )
        return response

    def _nodes(self, message: str) -> list[NodeWithScore]:
        nodes = self._retriever.retrieve(message)
        for postprocessor in self._node_postprocessors:
            nodes = postprocessor.postprocess_nodes(nodes, QueryBundle(message))
        return nodes

    async def _anodes(self, message: str) -> list[NodeWithScore]:
        nodes = await self._retriever.aretrieve(message)
        for postprocessor in self._node_postprocessors:
            nodes = await postprocessor.apostprocess_nodes(nodes, QueryBundle(message))
        return nodes

    def _turn(self, message: str, nodes: list[NodeWithScore], history: list[ChatMessage]) -> _Turn:
        # Of equal blocks the best one is sent.
        blocks = [*dict.fromkeys(Request.of(nodes, self._metadata_keys).blocks)]
        context = "\n\n".join(block.render() for block in blocks)
        user = ChatMessage("\n\n".join(filter(None, [context, message])))
        messages, counted = self._messages(history, user, blocks)
        source = ToolOutput(
            tool_name="retriever", content=context, raw_input={"message": message}, raw_output=nodes
        )
        return _Turn(self._memory, user, messages, counted, [source])

    def _messages(
        self, history: list[ChatMessage], user: ChatMessage, blocks: list[ContextBlock]
    ) -> tuple[list[ChatMessage], int]:
        """Return what is sent, and its tokens."""
        told = sum(1 for _ in takewhile(lambda message: message.role is MessageRole.SYSTEM, history))
        return self._window.fit(
            [*self._prefix_messages, *history, user],
            len(self._prefix_messages) + told,
            lambda messages: rewrite_messages(
                messages, pilot=self.pilot, namespace=self.namespace, blocks=blocks
            ),
        )

    def _compared(self, turn: _Turn, chunks: ChatResponseGen) -> ChatResponseGen:
        for chunk in chunks:
            self._window.learn(turn.messages, turn.counted, chunk)
            yield chunk

    async def _acompared(self, turn: _Turn, chunks: ChatResponseAsyncGen) -> ChatResponseAsyncGen:
        async for chunk in chunks:
            self._window.learn(turn.messages, turn.counted, chunk)
            yield chunk


@dataclass(frozen=True, slots=True)
class _Turn:
    """A turn that goes on. To what writes an answer into memory it is one, and puts the question before.

    So a turn whose answer fails leaves nothing behind.

    Attributes:
        memory: Where it goes.
        user: The user's message in full.
        messages: What is sent.
        counted: Its tokens; 0 where they were not counted.
        sources: Where its passages come from.
    """

    memory: BaseMemory
    user: ChatMessage
    messages: list[ChatMessage]
    counted: int
    sources: list[ToolOutput]

    def put(self, answer: ChatMessage) -> None:
        self.memory.put_messages([self.user, _answer(answer)])

    async def aput(self, answer: ChatMessage) -> None:
        await self.memory.aput_messages([self.user, _answer(answer)])


def _answer(message: ChatMessage) -> ChatMessage:
    return ChatMessage(_text(message), role=MessageRole.ASSISTANT)


def _text(message: ChatMessage) -> str:
    return (message.content or "").strip()
