"""Completions over openai.AsyncOpenAI."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any

import openai
from tqdm import tqdm

from contextpilot_integrations.block import ContextBlock
from contextpilot_integrations.engines.detection import Server
from contextpilot_integrations.engines.engine import Engine
from contextpilot_integrations.openai.completion import Completion
from contextpilot_integrations.openai.exchange import Exchange, reading_chunks
from contextpilot_integrations.openai.planner import Message, Planner
from contextpilot_integrations.openai.retries import retry_delay
from contextpilot_integrations.openai.streams import AsyncCompletionStream
from contextpilot_integrations.pilot import ContextPilot

if TYPE_CHECKING:
    from contextpilot_integrations.engines.cache_follower import CacheFollower

__all__ = ["AsyncCompletions"]


class AsyncCompletions:
    """Sends prompts to one model as `Completions` does, over an ``openai.AsyncOpenAI``.

    Any number of tasks may share one. Its methods take and return what their synchronous twins do.

    Raises:
        TypeError: If the client is of the other kind.
        ValueError: If the follower has another pilot, or ``context_window`` is below 1.
    """

    def __init__(
        self,
        pilot: ContextPilot,
        client: openai.AsyncOpenAI,
        *,
        model: str,
        preamble: str = "",
        engine: Engine | None = None,
        context_window: int | None = None,
        follower: CacheFollower | None = None,
    ) -> None:
        if not isinstance(client, openai.AsyncOpenAI):
            raise TypeError("client must be an openai.AsyncOpenAI; Completions takes an openai.OpenAI")
        self._client = client.with_options(max_retries=0)
        self._max_retries = client.max_retries
        self._detection = asyncio.Lock()
        self._planner = Planner(
            pilot,
            str(client.base_url),
            model=model,
            preamble=preamble,
            engine=engine,
            context_window=context_window,
            follower=follower,
        )

    def stream(
        self,
        blocks: Iterable[ContextBlock] = (),
        question: str = "",
        *,
        messages: Sequence[Message] | None = None,
        rewrite: bool = True,
        tenant: str = "",
        request_id: str | None = None,
        session_id: str = "",
        **params: Any,
    ) -> AsyncCompletionStream:
        """Plan a request, and send it once the stream is read; see `Completions.stream`."""
        exchange = self._planner.one(
            blocks, question, messages, rewrite, tenant, request_id, session_id, params
        )
        return AsyncCompletionStream(self._chunks(exchange), exchange, self._planner)

    async def complete(
        self,
        blocks: Iterable[ContextBlock] = (),
        question: str = "",
        *,
        messages: Sequence[Message] | None = None,
        rewrite: bool = True,
        tenant: str = "",
        request_id: str | None = None,
        session_id: str = "",
        **params: Any,
    ) -> Completion:
        """Plan and send a request, and return the whole answer; see `Completions.complete`."""
        exchange = self._planner.one(
            blocks, question, messages, rewrite, tenant, request_id, session_id, params
        )
        async for _ in self._chunks(exchange):
            pass
        return exchange.completion

    async def complete_batch(
        self,
        contexts: Iterable[Iterable[ContextBlock]],
        questions: Iterable[str],
        *,
        tenant: str = "",
        request_ids: Sequence[str] | None = None,
        max_in_flight: int = 8,
        show_progress: bool = False,
        **params: Any,
    ) -> list[Completion]:
        """Plan requests together and send them as scheduled; see `Completions.complete_batch`.

        The batch is planned in a thread, and sent by tasks.
        """
        exchanges, schedule, leader_of = await asyncio.to_thread(
            self._planner.batch,
            contexts,
            questions,
            tenant,
            request_ids,
            max_in_flight,
            show_progress,
            params,
        )
        slots = asyncio.Semaphore(max_in_flight)
        started, trouble = [asyncio.Event() for _ in exchanges], asyncio.Event()
        heirs: dict[int, int] = {}
        with tqdm(total=len(exchanges), leave=False, disable=None if show_progress else True) as bar:

            def release(_: object) -> None:
                slots.release()
                bar.update()

            try:
                async with asyncio.TaskGroup() as tasks:
                    for place in schedule:
                        await slots.acquire()
                        leader = leader_of[place]
                        while leader is not None and leader != place and not trouble.is_set():
                            await started[leader].wait()
                            if exchanges[leader].began:
                                break
                            leader = heirs.setdefault(leader, place)
                        task = tasks.create_task(self._finish(exchanges[place], started[place], trouble))
                        task.add_done_callback(release)
            except BaseException:
                for exchange in exchanges:
                    self._planner.settle(exchange)
                raise
        return [exchange.completion for exchange in exchanges]

    async def _finish(self, exchange: Exchange, started: asyncio.Event, trouble: asyncio.Event) -> None:
        def on_first_token() -> None:
            trouble.clear()
            started.set()

        exchange.on_first_token = on_first_token
        try:
            with suppress(Exception):  # The exchange holds it.
                async for _ in self._chunks(exchange):
                    pass
        finally:
            if exchange.met_trouble:
                trouble.set()
            started.set()

    async def _chunks(self, exchange: Exchange) -> AsyncGenerator[str]:
        try:
            for attempt in count():
                try:
                    server = await self._server(exchange.plan.namespace.tenant)
                    self._planner.check(exchange, server)
                    arguments = exchange.arguments(server)
                    await self._track(exchange, server)
                    answer = await self._client.chat.completions.create(**arguments)
                    async with answer as chunks:
                        with reading_chunks():
                            async for chunk in chunks:
                                if text := exchange.add(chunk):
                                    yield text
                    exchange.end(chunks.response.headers.get("content-type", ""))
                    return
                except Exception as error:
                    delay = None if exchange.began else retry_delay(error, attempt)
                    if delay is None or attempt >= self._max_retries:
                        exchange.error = error
                        raise
                await asyncio.sleep(delay)
        finally:
            self._planner.settle(exchange)

    async def _track(self, exchange: Exchange, server: Server) -> None:
        try:
            url = self._planner.tokenize_url
            timeout = self._planner.tokenize_timeout
            answers = [
                await self._client.post(url, cast_to=object, body=body, options={"timeout": timeout})
                for body in self._planner.to_tokenize(exchange, server)
            ]
            self._planner.track(exchange, server, answers)
        except Exception as error:
            self._planner.untracked(error)

    async def _server(self, tenant: str) -> Server:
        async with self._detection:
            if (known := self._planner.known_server(tenant)) is not None:
                return known
            try:
                timeout = self._planner.models_timeout(self._client.timeout)
                return self._planner.recognise(await self._client.models.list(timeout=timeout))
            except Exception as error:
                return self._planner.unrecognised(error, tenant)
