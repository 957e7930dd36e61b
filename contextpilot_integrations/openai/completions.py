"""Completions over openai.OpenAI."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from threading import Event, Lock, Semaphore
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
from contextpilot_integrations.openai.streams import CompletionStream
from contextpilot_integrations.pilot import ContextPilot

if TYPE_CHECKING:
    from contextpilot_integrations.engines.cache_follower import CacheFollower

__all__ = ["Completions"]


class Completions:
    """Sends prompts to one model: planned, in the order that its prefix cache likes best.

    A class of its own rather than methods of the pilot, since client, model and system prompt are the same
    for all requests, and so is what is learned of the server. It comes in two kinds, as the client does, so
    that a type checker knows which calls are awaited. Threads may share one.

    All requests are streamed. One that fails before its first token is sent again if that can help, as many
    times as the client's ``max_retries`` says; after it, never. A request that never had a first token is
    taken back from the pilot.

    Args:
        pilot: Who plans. Share one among all whose prompts meet the same engine.
        client: An ``openai.OpenAI``, whose ``base_url``, key, time-out and ``max_retries`` count.
        model: The model's name there.
        preamble: The system prompt before a question's blocks; may be empty.
        engine: What the server runs (`contextpilot_integrations.engines`); None: asked of the server with
            the first request. One that is not recognised gets no field that OpenAI's API does not have.
        context_window: How many tokens of prompt and answer fit; None: as the server tells, if it does.
        follower: A follower of the engine's cache for the same pilot (`CacheFollower`), which a
            `KvEventSubscriber` feeds. Each prompt is then tokenized by the server (``/tokenize``) right
            before it goes out, which vLLM and SGLang do in some milliseconds: what the pilot believes of it
            ends where the engine's cache ends, and ``plan.expected_cached_tokens`` are all the tokens that
            the engine has cached of the prompt at that moment. With the engine's own tokenizer as the
            pilot's ``token_counter`` the cuts are exact to the block.

    Raises:
        TypeError: If the client is of the other kind.
        ValueError: If the follower has another pilot, or ``context_window`` is below 1.
    """

    def __init__(
        self,
        pilot: ContextPilot,
        client: openai.OpenAI,
        *,
        model: str,
        preamble: str = "",
        engine: Engine | None = None,
        context_window: int | None = None,
        follower: CacheFollower | None = None,
    ) -> None:
        if not isinstance(client, openai.OpenAI):
            raise TypeError("client must be an openai.OpenAI; AsyncCompletions takes an openai.AsyncOpenAI")
        self._client = client.with_options(max_retries=0)
        self._max_retries = client.max_retries
        self._detection = Lock()
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
    ) -> CompletionStream:
        """Plan a request, and send it once the stream is read.

        The user's message is the blocks, the order annotation where their order has changed, and the
        question, one paragraph each.

        Args:
            blocks: The request's context, best first. May be empty.
            question: What stands behind it.
            messages: Instead of a question: a whole conversation, with its own system message; the preamble
                is not sent. What the model can see in it already is not sent again, and what nobody answered
                yet is aligned (see `contextpilot_integrations.rewrite`). ``blocks`` are then those whose
                texts stand in it.
            rewrite: Whether messages are rewritten; else they go out as they are.
            tenant: Whoever must not share a cache with anyone else. It is the salt of an engine that takes
                one: choose it hard to guess where others reach the engine too. Otherwise a warning says so.
            request_id: The id for `ContextPilot.evict` and for an engine that takes one; None: a new one.
            session_id: The conversation that the request belongs to, for an engine that takes one.
            **params: Further parameters of ``chat.completions.create``, such as ``max_tokens``.

        Raises:
            TypeError: If ``blocks`` holds anything but context blocks, ``messages`` anything but messages, or
                a further parameter is one that is set here.
            ValueError: If there are both messages and a question, or nothing at all; while reading, if the
                prompt is longer than the context window, or the server does not stream.
            openai.OpenAIError: While reading, as ``chat.completions.create`` does.
            ConnectionError: While reading, if the answer breaks off, or what comes is none.
        """
        exchange = self._planner.one(
            blocks, question, messages, rewrite, tenant, request_id, session_id, params
        )
        return CompletionStream(self._chunks(exchange), exchange, self._planner)

    def complete(
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
        """Plan and send a request as `stream` does, and return the whole answer.

        Raises:
            Exception: As reading the stream does.
        """
        exchange = self._planner.one(
            blocks, question, messages, rewrite, tenant, request_id, session_id, params
        )
        for _ in self._chunks(exchange):
            pass
        return exchange.completion

    def complete_batch(
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
        """Plan requests together, send them as scheduled, and return their answers in the order given.

        A burst of requests would reach the engine before the first of them had filled its cache. So a
        request starts only when the one before it with which it shares most has had its first token. Where
        that one is refused, the first of those who waited for it goes ahead of the others. Where one fails
        as any other would now (a time-out, a lost connection, an overloaded server), nobody waits for
        anyone until a first token comes again.

        Requests that have only the system prompt in common do not wait for one another, since that would
        cost each such batch a time to first token: an engine that has not cached it yet may compute it up to
        ``max_in_flight`` times. Where it is long, send one request by `complete` first.

        Args:
            contexts: One context per request, best first.
            questions: What stands behind each.
            tenant: As for `stream`.
            request_ids: One id per request, for `ContextPilot.evict`; None: new ones.
            max_in_flight: How many are sent at a time, in threads.
            show_progress: Whether to show a progress bar, on a terminal only.
            **params: Further parameters of ``chat.completions.create`` for all.

        Returns:
            One completion per request. Where one failed, its ``error`` says why.

        Raises:
            TypeError: If a context holds anything but context blocks, or a further parameter is one that is
                set here.
            ValueError: If there are not as many questions or request ids as contexts, or ``max_in_flight``
                is no integer of at least 1.
        """
        exchanges, schedule, leader_of = self._planner.batch(
            contexts, questions, tenant, request_ids, max_in_flight, show_progress, params
        )
        slots = Semaphore(max_in_flight)
        started, trouble = [Event() for _ in exchanges], Event()
        heirs: dict[int, int] = {}
        with (
            tqdm(total=len(exchanges), leave=False, disable=None if show_progress else True) as bar,
            ThreadPoolExecutor(max_in_flight) as pool,
        ):

            def release(_: object) -> None:
                slots.release()
                bar.update()

            try:
                for place in schedule:
                    slots.acquire()
                    leader = leader_of[place]
                    while leader is not None and leader != place and not trouble.is_set():
                        started[leader].wait()
                        if exchanges[leader].began:
                            break
                        leader = heirs.setdefault(leader, place)
                    answered = pool.submit(self._finish, exchanges[place], started[place], trouble)
                    answered.add_done_callback(release)
                pool.shutdown()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for exchange in exchanges:
                    self._planner.settle(exchange)
                raise
        return [exchange.completion for exchange in exchanges]

    def _finish(self, exchange: Exchange, started: Event, trouble: Event) -> None:
        def on_first_token() -> None:
            trouble.clear()
            started.set()

        exchange.on_first_token = on_first_token
        try:
            with suppress(Exception):  # The exchange holds it.
                for _ in self._chunks(exchange):
                    pass
        finally:
            if exchange.met_trouble:
                trouble.set()
            started.set()

    def _chunks(self, exchange: Exchange) -> Generator[str]:
        try:
            for attempt in count():
                try:
                    server = self._server(exchange.plan.namespace.tenant)
                    self._planner.check(exchange, server)
                    arguments = exchange.arguments(server)
                    self._track(exchange, server)
                    with self._client.chat.completions.create(**arguments) as chunks, reading_chunks():
                        for chunk in chunks:
                            if text := exchange.add(chunk):
                                yield text
                    exchange.end(chunks.response.headers.get("content-type", ""))
                    return
                except Exception as error:
                    delay = None if exchange.began else retry_delay(error, attempt)
                    if delay is None or attempt >= self._max_retries:
                        exchange.error = error
                        raise
                time.sleep(delay)
        finally:
            self._planner.settle(exchange)

    def _track(self, exchange: Exchange, server: Server) -> None:
        try:
            url = self._planner.tokenize_url
            timeout = self._planner.tokenize_timeout
            answers = [
                self._client.post(url, cast_to=object, body=body, options={"timeout": timeout})
                for body in self._planner.to_tokenize(exchange, server)
            ]
            self._planner.track(exchange, server, answers)
        except Exception as error:
            self._planner.untracked(error)

    def _server(self, tenant: str) -> Server:
        with self._detection:
            if (known := self._planner.known_server(tenant)) is not None:
                return known
            try:
                timeout = self._planner.models_timeout(self._client.timeout)
                return self._planner.recognise(self._client.models.list(timeout=timeout))
            except Exception as error:
                return self._planner.unrecognised(error, tenant)
