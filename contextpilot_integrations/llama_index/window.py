"""What of a conversation fits into a model's window: the oldest turns are left out, and stay out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import lru_cache

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, MessageRole, TextBlock
from llama_index.core.constants import DEFAULT_NUM_OUTPUTS
from llama_index.core.llms.llm import LLM
from llama_index.core.utils import get_tokenizer

from contextpilot_integrations.engines.usage import read_usage
from contextpilot_integrations.pilot import ContextPilot

__all__ = ["Window", "prompt_tokens"]

logger = logging.getLogger(__name__)

_MESSAGE_TOKENS = 5
"""What a chat template puts around a message: its role, its beginning and its end."""

_TELLING = 4
"""A prompt tells how a model counts once it is one of so many parts of the largest.

In a short one, what a chat template puts before all messages would count for too much.
"""


class Window:
    """How much of one conversation is sent.

    Half a prompt of turns is left out at once, so that the beginning stays the same for many turns after.

    Args:
        max_prompt_tokens: How many tokens a prompt may have. None: any number.
        pilot: Whose token counter counts; without one LlamaIndex's does. A failure is reported to it.

    Raises:
        ValueError: If ``max_prompt_tokens`` is below 1.
    """

    def __init__(self, max_prompt_tokens: int | None, pilot: ContextPilot) -> None:
        if max_prompt_tokens is not None and max_prompt_tokens < 1:
            raise ValueError(f"max_prompt_tokens must be at least 1, got {max_prompt_tokens}")
        self._max_prompt_tokens = max_prompt_tokens
        self._pilot = pilot
        self._left_out: tuple[int, str | None] = (0, None)  # How many messages, and the text behind them.
        self._excess = 1.0  # How many tokens the model has for each that is counted.
        # Nearly all texts of a prompt were counted for the one before.
        self._count = lru_cache(maxsize=4096)(pilot.token_counter or _count)

    def fit(
        self,
        messages: Sequence[ChatMessage],
        first: int,
        written: Callable[[list[ChatMessage]], list[ChatMessage]],
    ) -> tuple[list[ChatMessage], int]:
        """Return what is sent: all messages, or from that turn on from which they fit.

        What was left out once stays out, as long as the conversation goes on.

        Args:
            messages: The conversation, the new user message last.
            first: How many of them, at its beginning, always go out.
            written: How messages go out.

        Returns:
            The messages as they go out, and their tokens; 0 where they were not counted.
        """
        given = list(messages)
        user = given[-1]
        left_out, begins_with = self._left_out
        if first + left_out >= len(given) or given[first + left_out].content != begins_with:
            left_out = 0
        del given[first : first + left_out]
        while True:
            sent = written(given)
            if self._max_prompt_tokens is None:
                return sent, 0
            try:
                tokens = [_MESSAGE_TOKENS + self._count(message.content or "") for message in sent]
            except Exception as error:
                self._pilot.report_failure(error, "counting tokens")
                return sent, 0
            most = self._max_prompt_tokens / self._excess
            if given[first] is user or sum(tokens) <= most:
                break
            half = (most - sum(tokens[:first])) / 2
            turns = [n for n in range(first + 1, len(given)) if given[n].role is MessageRole.USER]
            kept = next(n for n in turns if sum(tokens[first:n]) >= half or given[n] is user)
            del given[first:kept]
            left_out += kept - first
        if sum(tokens) > most:
            logger.warning(
                "a turn has %d tokens by itself where %d fit; let the retriever find less", sum(tokens), most
            )
        self._left_out = left_out, given[first].content
        return sent, sum(tokens)

    def learn(self, sent: Sequence[ChatMessage], counted: int, response: ChatResponse) -> None:
        """Reckon with more tokens from now on, if a prompt had more than were counted.

        Args:
            sent: The prompt. One with more than texts, which are not counted, tells nothing.
            counted: Its tokens by `fit`.
            response: The model's answer, or a part of one that is streamed.
        """
        if not counted or self._max_prompt_tokens is None:
            return
        reported = read_usage(response.raw).prompt_tokens or 0
        if reported * _TELLING >= self._max_prompt_tokens and _has_only_texts(sent):
            self._excess = max(self._excess, reported / counted)


def prompt_tokens(llm: LLM) -> int:
    """Return how many tokens a model's prompt may have beside an answer.

    An eighth is spared: they are seldom counted by the very tokenizer of the model.
    """
    window, answer = llm.metadata.context_window, llm.metadata.num_output
    # As LlamaIndex's prompt helper has it, a model that names no number has -1.
    return max(1, (window - (answer if answer >= 0 else DEFAULT_NUM_OUTPUTS)) * 7 // 8)


def _count(text: str) -> int:
    return len(get_tokenizer()(text))


def _has_only_texts(messages: Sequence[ChatMessage]) -> bool:
    return all(isinstance(block, TextBlock) for message in messages for block in message.blocks)
