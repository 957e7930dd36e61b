"""Token counts in the answers of OpenAI-compatible engines: vLLM, SGLang, llama.cpp."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from contextpilot_integrations.engines.fields import get_count, get_field

__all__ = ["Usage", "UsageStream", "read_usage"]

Chunk = TypeVar("Chunk")


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one answer. None is unknown, which is not 0.

    Attributes:
        prompt_tokens: Tokens of the prompt, cached ones included.
        completion_tokens: Tokens of the answer.
        cached_tokens: Tokens of the prompt that were in the prefix cache. vLLM reports them with
            ``--enable-prompt-tokens-details``, SGLang with ``--enable-cache-report``.
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


def read_usage(response: object) -> Usage:
    """Read the counts off a chat completion, a completion or a stream's chunk.

    They stand in ``usage.prompt_tokens``, ``usage.completion_tokens`` and
    ``usage.prompt_tokens_details.cached_tokens``; llama.cpp has them in ``timings`` too, where
    ``prompt_n`` leaves out the ``cache_n`` cached ones.

    Args:
        response: A mapping, or an object of the openai client.

    Returns:
        The counts; all None where there are none.
    """
    usage, timings = get_field(response, "usage"), get_field(response, "timings")
    cached = get_count(get_field(usage, "prompt_tokens_details"), "cached_tokens")
    prompt = get_count(usage, "prompt_tokens")
    completion = get_count(usage, "completion_tokens")
    reused, prefilled = get_count(timings, "cache_n"), get_count(timings, "prompt_n")
    if prompt is None and reused is not None and prefilled is not None:
        prompt = reused + prefilled
    if completion is None:
        completion = get_count(timings, "predicted_n")
    return Usage(prompt, completion, reused if cached is None else cached)


class UsageStream(Generic[Chunk]):
    """Passes a stream's chunks through, and remembers the last counts seen.

    Iterate it once, with ``for`` or ``async for`` as the stream itself. OpenAI-compatible engines send
    counts with ``stream_options={"include_usage": True}``, in the last chunk.

    Attributes:
        usage: The counts so far; all None until a chunk has some.
    """

    def __init__(self, chunks: Iterable[Chunk] | AsyncIterable[Chunk]) -> None:
        self._chunks = chunks
        self.usage = Usage()

    def __iter__(self) -> Iterator[Chunk]:
        """Pass the chunks through.

        Raises:
            TypeError: If the stream is an asynchronous one.
        """
        if not isinstance(self._chunks, Iterable):
            raise TypeError("the stream is asynchronous; use `async for`")
        for chunk in self._chunks:
            self._notice(chunk)
            yield chunk

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        """Pass the chunks through.

        Raises:
            TypeError: If the stream is a synchronous one.
        """
        if not isinstance(self._chunks, AsyncIterable):
            raise TypeError("the stream is synchronous; use `for`")
        async for chunk in self._chunks:
            self._notice(chunk)
            yield chunk

    def _notice(self, chunk: Chunk) -> None:
        usage = read_usage(chunk)
        if usage != Usage():
            self.usage = usage
