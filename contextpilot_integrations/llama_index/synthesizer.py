"""A response synthesizer that tells the model the order of relevance, with the query."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.base.response.schema import RESPONSE_TYPE
from llama_index.core.callbacks import CallbackManager
from llama_index.core.prompts.mixin import PromptDictType
from llama_index.core.response_synthesizers import (
    Accumulate,
    BaseSynthesizer,
    CompactAndRefine,
    Generation,
    Refine,
    SimpleSummarize,
    TreeSummarize,
)
from llama_index.core.response_synthesizers.compact_and_accumulate import CompactAndAccumulate
from llama_index.core.response_synthesizers.context_only import ContextOnly
from llama_index.core.response_synthesizers.no_text import NoText
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle, QueryType
from llama_index.core.types import RESPONSE_TEXT_TYPE

from contextpilot_integrations.llama_index.nodes import is_reordered, order_annotation

__all__ = ["ContextPilotSynthesizer"]

logger = logging.getLogger(__name__)


class ContextPilotSynthesizer(BaseSynthesizer):
    """Wraps a response synthesizer; where nodes do not stand in order of relevance, the query tells that.

    The annotation stands right before the question in the prompt, and nowhere else: neither in the nodes nor
    in the response. An annotation names only what a prompt shows, so it is left out where the synthesizer
    takes several prompts for the nodes, and one warning tells which does: "refine" and "accumulate" ask once
    per node, "compact" and "tree_summarize" do where the nodes do not fit into the model's window together,
    "simple_summarize" then cuts them short. Nor does a multimodal synthesizer tell the order, which the same
    warning says.

    Args:
        synthesizer: The wrapped one; its settings, prompts and callbacks count, streaming too.
    """

    def __init__(self, synthesizer: BaseSynthesizer) -> None:
        # Not the base class's: it would look for a model of its own.
        self.synthesizer = synthesizer
        self._warned = False

    @property
    def callback_manager(self) -> CallbackManager:
        """LlamaIndex's, as the wrapped synthesizer has it."""
        return self.synthesizer.callback_manager

    @callback_manager.setter
    def callback_manager(self, callback_manager: CallbackManager) -> None:
        self.synthesizer.callback_manager = callback_manager

    @property
    def _streaming(self) -> bool:
        # LlamaIndex's CondenseQuestionChatEngine sets it for each of its calls.
        return self.synthesizer._streaming

    @_streaming.setter
    def _streaming(self, streaming: bool) -> None:
        self.synthesizer._streaming = streaming

    def synthesize(
        self,
        query: QueryType,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
        **response_kwargs: Any,
    ) -> RESPONSE_TYPE:
        """Answer from nodes in the order given."""
        return self.synthesizer.synthesize(
            self._annotated(query, nodes), nodes, additional_source_nodes, **response_kwargs
        )

    async def asynthesize(
        self,
        query: QueryType,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
        **response_kwargs: Any,
    ) -> RESPONSE_TYPE:
        """Answer from nodes in the order given."""
        return await self.synthesizer.asynthesize(
            self._annotated(query, nodes), nodes, additional_source_nodes, **response_kwargs
        )

    def get_response(
        self, query_str: str, text_chunks: Sequence[str], **response_kwargs: Any
    ) -> RESPONSE_TEXT_TYPE:
        """Answer from texts, of whose relevance nothing is known."""
        return self.synthesizer.get_response(query_str, text_chunks, **response_kwargs)

    async def aget_response(
        self, query_str: str, text_chunks: Sequence[str], **response_kwargs: Any
    ) -> RESPONSE_TEXT_TYPE:
        """Answer from texts, of whose relevance nothing is known."""
        return await self.synthesizer.aget_response(query_str, text_chunks, **response_kwargs)

    def get_response_from_messages(
        self, query_str: str, message_chunks: Sequence[ChatMessage], **response_kwargs: Any
    ) -> RESPONSE_TEXT_TYPE:
        """Answer from messages, of whose relevance nothing is known."""
        return self.synthesizer.get_response_from_messages(query_str, message_chunks, **response_kwargs)

    async def aget_response_from_messages(
        self, query_str: str, message_chunks: Sequence[ChatMessage], **response_kwargs: Any
    ) -> RESPONSE_TEXT_TYPE:
        """Answer from messages, of whose relevance nothing is known."""
        return await self.synthesizer.aget_response_from_messages(
            query_str, message_chunks, **response_kwargs
        )

    def _get_prompts(self) -> PromptDictType:
        return self.synthesizer._get_prompts()

    def _update_prompts(self, prompts: PromptDictType) -> None:
        self.synthesizer._update_prompts(prompts)

    def _get_prompt_modules(self) -> dict[str, Any]:
        return self.synthesizer._get_prompt_modules()

    def _annotated(self, query: QueryType, nodes: Sequence[NodeWithScore]) -> QueryType:
        try:
            if not is_reordered(nodes):
                return query
            if self.synthesizer._multimodal:
                self._warn(
                    "the order of relevance is not told by a multimodal %s; a pilot with max_displacement=0 "
                    "would keep it",
                    type(self.synthesizer).__name__,
                )
                return query
            if not (annotation := order_annotation(nodes)):
                return query
            given = QueryBundle(query) if isinstance(query, str) else query
            annotated = replace(given, query_str="\n\n".join(filter(None, (annotation, given.query_str))))
            texts = [item.node.get_content(MetadataMode.LLM) for item in nodes]
            prompts = _contexts(self.synthesizer, annotated.query_str, texts)
        except Exception as error:
            # Only its type: its message may hold a document's text.
            logger.warning("the order of relevance could not be told: %s", type(error).__name__)
            return query
        if prompts == 1:
            return annotated
        if prompts:
            self._warn(
                "%s does not show the model all passages in one prompt (%d of them take %d), so their order "
                "of relevance is not told; compact, tree_summarize or simple_summarize and a window that "
                "holds them all would keep it",
                type(self.synthesizer).__name__,
                len(nodes),
                prompts,
            )
        return query

    def _warn(self, message: str, *arguments: object) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(f"{message} (logged once)", *arguments)


def _contexts(synthesizer: BaseSynthesizer, query: str, texts: Sequence[str]) -> int:
    """Return how many prompts a synthesizer takes for texts; 0 where they do not reach a model.

    It packs them as the synthesizer will, the query included.
    """
    helper, llm = synthesizer._prompt_helper, synthesizer._llm
    match synthesizer:
        case Generation() | NoText() | ContextOnly():
            return 0
        case CompactAndRefine():
            return len(synthesizer._make_compact_text_chunks(query, texts))
        case TreeSummarize():
            template = synthesizer._summary_template.partial_format(query_str=query)
            return len(helper.repack(template, texts, llm=llm))
        case CompactAndAccumulate():
            template = synthesizer._text_qa_template.partial_format(query_str=query)
            return len(helper.repack(template, texts, llm=llm))
        case SimpleSummarize():
            template = synthesizer._text_qa_template.partial_format(query_str=query)
            whole = "\n".join(texts).strip()
            return 1 if helper.truncate(template, [whole], llm=llm) == [whole] else 2
        case Refine() | Accumulate():
            return len(texts)
        case _:  # Someone's own: whoever wraps it wants the order told.
            return 1
