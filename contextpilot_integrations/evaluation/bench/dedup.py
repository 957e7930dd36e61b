"""What rewriting saves recorded conversations, and whether it keeps what it promises."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from os import PathLike
from pathlib import Path
from statistics import fmean
from time import perf_counter_ns
from typing import Any

from contextpilot_integrations.conversation import rewrite
from contextpilot_integrations.edits import Edit, EditKind, Message
from contextpilot_integrations.evaluation.bench.process import MeasurementError
from contextpilot_integrations.evaluation.bench.quantiles import nearest_rank
from contextpilot_integrations.evaluation.conversations import (
    Conversation,
    read_file_agents,
    read_retrieval_chats,
    read_tool_agents,
)
from contextpilot_integrations.evaluation.prompt import count_tokens, tokenize
from contextpilot_integrations.pilot import ContextPilot
from contextpilot_integrations.rewriting_report import message_texts

__all__ = ["BeforeAndAfter", "DedupResult", "bench_dedup", "read_all_conversations"]

_CHATS = [
    f"mtrag_cloud_{retriever}_{queries}_k10"
    for queries in ("questions", "rewrite")
    for retriever in ("bge", "bm25es", "elser")
]


@dataclass(frozen=True, slots=True)
class BeforeAndAfter:
    """Tokens of the messages as they were given, and as they go out."""

    before: int
    after: int

    @property
    def saving(self) -> float:
        """The share that is saved; 0.0 where there was nothing."""
        return 1 - self.after / self.before if self.before else 0.0


@dataclass(frozen=True, slots=True)
class DedupResult:
    """What came of the conversations of one trace. Every answer of a model is one request.

    Attributes:
        trace: Its name.
        requests: How many.
        tokens: Tokens of all prompts together: the messages' texts and tool calls.
        p99_tokens: What 99 of 100 prompts have at most.
        uncached_tokens: Tokens that a prefix cache which never forgets would have to compute: of each prompt
            what stands behind the longest beginning that it shares with the prompt before it in its session.
            Messages are compared token by token, each by itself, as chat templates set them apart by special
            tokens.
        mean_saving: The mean of the shares that the single requests save.
        longer: How many requests go out longer than they came.
        blocks: How many whole blocks gave way, in each conversation's last request.
        passages: How many runs of lines did.
        p50_ms: The median of the time that a rewriting takes, in milliseconds.
        p99_ms: What 99 of 100 take at most.
    """

    trace: str
    requests: int
    tokens: BeforeAndAfter
    p99_tokens: BeforeAndAfter
    uncached_tokens: BeforeAndAfter
    mean_saving: float
    longer: int
    blocks: int
    passages: int
    p50_ms: float
    p99_ms: float

    def to_dict(self) -> dict[str, Any]:
        """Return the figures under plain names."""
        figures: dict[str, Any] = {"trace": self.trace, "requests": self.requests}
        for name in ("tokens", "p99_tokens", "uncached_tokens"):
            value = getattr(self, name)
            figures |= {f"{name}_before": value.before, f"{name}_after": value.after}
            figures[f"{name}_saving"] = value.saving
        names = ("mean_saving", "longer", "blocks", "passages", "p50_ms", "p99_ms")
        return {**figures, **{name: getattr(self, name) for name in names}}


def read_all_conversations(data: str | PathLike[str]) -> dict[str, list[Conversation]]:
    """Read the conversations to measure, under names that say what was filled in.

    "S" is the length of the system prompt, and "A" that of each answer, in tokens.

    Args:
        data: A folder with ``traces`` and ``blocks``.

    Raises:
        TraceError: If a file is missing or not what it should be.
    """

    def paths(trace: str, blocks: str) -> tuple[Path, Path]:
        return Path(data, "traces", f"{trace}.jsonl"), Path(data, "blocks", f"{blocks}.jsonl")

    sets = {
        f"clawtasks S={system} A={answer}": read_file_agents(
            *paths("clawtasks", "clawtasks"), system_tokens=system, answer_tokens=answer
        )
        for system, answer in ((0, 300), (12_000, 600))
    }
    for name in _CHATS:
        sets[f"{name} A=100"] = read_retrieval_chats(*paths(name, "mtrag_cloud"), answer_tokens=100)
    return {**sets, "taubench_airline": read_tool_agents(*paths("taubench_airline", "taubench_airline"))}


def bench_dedup(
    trace: str, conversations: Iterable[Conversation], *, on_rewritten: Callable[[], object] = lambda: None
) -> DedupResult:
    """Rewrite every request of a trace, one conversation after another, by one pilot.

    Args:
        trace: What the result is called.
        conversations: At least one with an answer.
        on_rewritten: Called after each request.

    Raises:
        MeasurementError: If the original does not come back, or a message that was sent goes out differently
            later.
    """
    pilot = ContextPilot(token_counter=count_tokens, on_error="raise")
    requests: list[_Request] = []
    replaced: list[EditKind] = []
    for conversation in conversations:
        last: tuple[Edit, ...] = ()
        try:
            for request in _rewritten(conversation, pilot):
                requests.append(request)
                last = request.edits
                on_rewritten()
        except MeasurementError as error:
            raise MeasurementError(f"{trace}, session {conversation.session_id}: {error}") from error
        replaced += [edit.kind for edit in last]
    given, sent = [request.given for request in requests], [request.sent for request in requests]
    times = [request.nanoseconds for request in requests]
    return DedupResult(
        trace=trace,
        requests=len(requests),
        tokens=BeforeAndAfter(sum(given), sum(sent)),
        p99_tokens=BeforeAndAfter(nearest_rank(given, 0.99), nearest_rank(sent, 0.99)),
        uncached_tokens=BeforeAndAfter(
            sum(request.uncached_given for request in requests),
            sum(request.uncached_sent for request in requests),
        ),
        mean_saving=fmean(BeforeAndAfter(*pair).saving for pair in zip(given, sent, strict=True)),
        longer=sum(request.sent > request.given for request in requests),
        blocks=replaced.count(EditKind.BLOCK),
        passages=replaced.count(EditKind.PASSAGE),
        p50_ms=nearest_rank(times, 0.5) / 1e6,
        p99_ms=nearest_rank(times, 0.99) / 1e6,
    )


@dataclass(frozen=True, slots=True)
class _Request:
    """One request: tokens as given and as sent, those of both that no cache has, and what was changed."""

    given: int
    sent: int
    uncached_given: int
    uncached_sent: int
    edits: tuple[Edit, ...]
    nanoseconds: int


def _rewritten(conversation: Conversation, pilot: ContextPilot) -> Iterator[_Request]:
    given: list[Message] = []
    sent: list[Message] = []
    for number, request in enumerate(conversation.requests):
        start = perf_counter_ns()
        rewriting = rewrite(request, pilot=pilot)
        nanoseconds = perf_counter_ns() - start
        if rewriting.restore() != request:
            raise MeasurementError(f"the original of request {number} does not come back")
        if rewriting.messages[: len(sent)] != sent:
            raise MeasurementError(f"request {number} changes a message that was sent before")
        tokens, tokens_sent = sum(map(_length, request)), sum(map(_length, rewriting.messages))
        yield _Request(
            given=tokens,
            sent=tokens_sent,
            uncached_given=tokens - _shared(given, request),
            uncached_sent=tokens_sent - _shared(sent, rewriting.messages),
            edits=rewriting.edits,
            nanoseconds=nanoseconds,
        )
        given, sent = request, rewriting.messages


def _shared(earlier: Sequence[Message], later: Sequence[Message]) -> int:
    """Count the tokens that two prompts begin with alike."""
    shared = 0
    for one, other in zip(earlier, later, strict=False):
        if one == other:
            shared += _length(one)
        else:
            if one["role"] == other["role"]:
                shared += _common(_tokens(one), _tokens(other))
            break
    return shared


def _common(one: Iterable[int], other: Iterable[int]) -> int:
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count


def _length(message: Message) -> int:
    return sum(len(_tokenized(text)) for text in message_texts(message))


def _tokens(message: Message) -> Iterator[int]:
    for text in message_texts(message):
        yield from _tokenized(text)


@lru_cache(maxsize=8192)
def _tokenized(text: str) -> array[int]:
    return tokenize(text)  # The same texts come again with each request.
