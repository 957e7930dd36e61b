"""One pass of the demo: the questions answered through a LangChain chain, each answer measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from statistics import median
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough

from contextpilot_integrations.engines.usage import Usage
from contextpilot_integrations.langchain import format_documents, read_usage, run_scheduled

__all__ = ["Answer", "Pass", "build_chain", "run_pass", "system_prompt"]

Input = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer and what it took.

    Attributes:
        text: What the model said.
        usage: The engine's own token counts.
        ttft: Seconds from sending the prompt to the first token.
    """

    text: str
    usage: Usage
    ttft: float


@dataclass(frozen=True, slots=True)
class Pass:
    """All answers of a pass.

    Attributes:
        name: What was done with the prompts.
        answers: In the order of the questions.
        executed: The same in the order in which they ran.
        preamble_tokens: Tokens that every prompt of the pass starts with, as far as the engine caches
            them; None where it does not tell.
    """

    name: str
    answers: tuple[Answer, ...]
    executed: tuple[Answer, ...]
    preamble_tokens: int | None

    @property
    def prompt_tokens(self) -> int | None:
        """All tokens of all prompts; None where they are not told."""
        return _total(answer.usage.prompt_tokens for answer in self.answers)

    @property
    def cached_tokens(self) -> list[int] | None:
        """Per prompt as executed, the cached tokens beyond the preamble; None where they are not told."""
        cached = [answer.usage.cached_tokens for answer in self.executed]
        if self.preamble_tokens is None or None in cached:
            return None
        return [max(0, (tokens or 0) - self.preamble_tokens) for tokens in cached]

    @property
    def cached_total(self) -> int | None:
        """The same of all prompts together."""
        return None if self.cached_tokens is None else sum(self.cached_tokens)

    @property
    def hit_ratio(self) -> float | None:
        """The share of the tokens beyond the preambles that were cached."""
        if self.cached_total is None or self.preamble_tokens is None or self.prompt_tokens is None:
            return None
        return self.cached_total / (self.prompt_tokens - self.preamble_tokens * len(self.answers))

    @property
    def ttft_total(self) -> float:
        """Seconds spent waiting for first tokens: the prefill time that a user sees."""
        return sum(answer.ttft for answer in self.answers)

    @property
    def ttft_median(self) -> float:
        """The median time to first token, in seconds."""
        return median(answer.ttft for answer in self.answers)


def _total(counts: Iterable[int | None]) -> int | None:
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total


def system_prompt(run: str) -> str:
    """Return the system prompt, which starts with a line that only this run's prompts have."""
    return (
        f"[{run}]\nYou answer citizens' questions from the handbook of the town of Brinsund, in a few words."
    )


def build_chain(model: BaseChatModel) -> Runnable[Input, BaseMessage]:
    """Return the chain of every pass; it takes "question", "context" (documents) and "system"."""
    prompt = ChatPromptTemplate.from_messages([("system", "{system}"), ("human", "{context}\n\n{question}")])
    return RunnablePassthrough.assign(context=itemgetter("context") | format_documents) | prompt | model


def run_pass(
    name: str,
    chain: Runnable[Input, BaseMessage],
    inputs: Sequence[Input],
    *,
    order: Sequence[int] | None = None,
    on_answer: Callable[[], object] = lambda: None,
) -> Pass:
    """Answer all questions, one after another.

    Args:
        name: What is done with the prompts.
        chain: From `build_chain`.
        inputs: Its inputs in the order of the questions.
        order: The execution order, as places in ``inputs``; None runs planned documents as planned.
        on_answer: Called after each answer.
    """
    probe = _Meter()  # What two prompts share that hold nothing in common is the preamble.
    for text in ("One passage about nothing.", "Another about something else."):
        chain.invoke(
            {**inputs[0], "context": [Document(id=text[:1], page_content=text)]},
            {"callbacks": [probe]},
        )
    meter = _Meter(on_answer)
    config: Any = {"callbacks": [meter], "max_concurrency": 1}
    if order is None:
        messages = run_scheduled(chain, inputs, config)
    else:
        in_order = dict(zip(order, chain.batch([inputs[place] for place in order], config), strict=True))
        messages = [in_order[place] for place in range(len(inputs))]
    by_id = {message.id: answer for message, answer in zip(meter.messages, meter.answers, strict=True)}
    return Pass(
        name,
        tuple(by_id[message.id] for message in messages),
        tuple(meter.answers),
        probe.answers[-1].usage.cached_tokens,
    )


class _Meter(BaseCallbackHandler):
    """Observes the chat model, one call at a time."""

    raise_error = True

    def __init__(self, on_answer: Callable[[], object] = lambda: None) -> None:
        self.messages: list[AIMessage] = []
        self.answers: list[Answer] = []
        self._on_answer = on_answer
        self._sent = 0.0
        self._first_token: float | None = None

    def on_chat_model_start(
        self, serialized: dict[str, Any], messages: list[list[BaseMessage]], *, run_id: UUID, **kwargs: Any
    ) -> None:
        self._sent, self._first_token = time.perf_counter(), None

    def on_llm_new_token(self, token: str | list[Any], *, run_id: UUID, **kwargs: Any) -> None:
        # The first chunk of a stream may carry only the role.
        if token and self._first_token is None:
            self._first_token = time.perf_counter()

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        generation = response.generations[0][0]
        assert isinstance(generation, ChatGeneration)
        message = generation.message
        assert isinstance(message, AIMessage)
        first_token = self._first_token or time.perf_counter()
        self.messages.append(message)
        self.answers.append(Answer(message.text.strip(), read_usage(message), first_token - self._sent))
        self._on_answer()
