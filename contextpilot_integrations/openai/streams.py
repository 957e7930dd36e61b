"""Answers as they come, chunk by chunk."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator

from contextpilot_integrations.openai.completion import Completion
from contextpilot_integrations.openai.exchange import Exchange
from contextpilot_integrations.openai.planner import Planner

__all__ = ["AsyncCompletionStream", "CompletionStream"]


class CompletionStream:
    """The text of an answer, chunk by chunk, and in the end all that there is to know of it.

    Iterate it once. Whoever stops early closes it, at best by a ``with`` statement, and the engine stops
    too::

        with completions.stream(blocks, question) as stream:
            for text in stream:
                print(text, end="")
        print(stream.completion.usage.cached_tokens)
    """

    def __init__(self, chunks: Generator[str], exchange: Exchange, planner: Planner) -> None:
        self._chunks = chunks
        self._exchange = exchange
        self._planner = planner

    @property
    def completion(self) -> Completion:
        """What has come back so far; once the text has ended, the whole answer, tool calls and usage."""
        return self._exchange.completion

    def close(self) -> None:
        """Give up the rest of the answer; nothing happens if it has ended."""
        self._chunks.close()
        self._planner.settle(self._exchange)  # Again, since a stream that nobody read has not begun.

    def __iter__(self) -> Iterator[str]:
        return self._chunks

    def __enter__(self) -> CompletionStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncCompletionStream:
    """The text of an answer, chunk by chunk, as `CompletionStream` has it.

    Whoever stops early closes it, at best by an ``async with`` statement::

        async with completions.stream(blocks, question) as stream:
            async for text in stream:
                print(text, end="")
        print(stream.completion.usage.cached_tokens)
    """

    def __init__(self, chunks: AsyncGenerator[str], exchange: Exchange, planner: Planner) -> None:
        self._chunks = chunks
        self._exchange = exchange
        self._planner = planner

    @property
    def completion(self) -> Completion:
        """What has come back so far; once the text has ended, the whole answer, tool calls and usage."""
        return self._exchange.completion

    async def aclose(self) -> None:
        """Give up the rest of the answer; nothing happens if it has ended."""
        await self._chunks.aclose()
        self._planner.settle(self._exchange)  # Again, since a stream that nobody read has not begun.

    def __aiter__(self) -> AsyncIterator[str]:
        return self._chunks

    async def __aenter__(self) -> AsyncCompletionStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
