"""The passes of `contextpilot bench engine`: how each is made cold, and how it sends its requests."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import openai

from contextpilot_integrations.engines.cache_follower import CacheFollower
from contextpilot_integrations.evaluation.bench.engine_result import Sample
from contextpilot_integrations.evaluation.bench.engine_server import ANSWER_TOKENS, GivenServer, OwnServer
from contextpilot_integrations.evaluation.prompt import build_prompt
from contextpilot_integrations.evaluation.traces import TraceRequest
from contextpilot_integrations.openai import Completion, Completions
from contextpilot_integrations.pilot import ContextPilot, estimate_tokens

__all__ = ["ColdPass", "cold_pass", "take_turns"]

_PARAMS: dict[str, Any] = {"max_tokens": ANSWER_TOKENS, "temperature": 0}
_TIMEOUT = 600.0  # seconds
_HEARD_WITHIN = 60.0  # seconds
_TOLD_WITHIN = 2.0  # seconds


@dataclass(frozen=True, slots=True)
class ColdPass:
    """A pass that may start: its cache is cold, and its server answers.

    Attributes:
        name: "original", "ours" or "ours_events".
        mode: Whether ours is planned as a batch ("offline") or one by one ("online").
        completions: What sends.
        pilot: Who plans.
        system: The system prompt.
    """

    name: str
    mode: Literal["offline", "online"]
    completions: Completions
    pilot: ContextPilot
    system: str

    def turns(self, requests: Sequence[TraceRequest]) -> Iterator[tuple[int, Sample]]:
        """Send the next request whenever the next answer is asked for, in the order of execution.

        A batch is planned before its first one. Its prompts are then what `Completions.complete_batch` sends;
        that sends all, one after another, and cannot be made to wait for others.

        Yields:
            The request's place, and what it took.
        """
        if not self._is_batch:
            yield from enumerate(map(self.ask, requests))
            return
        batch = self.pilot.prepare_batch([request.blocks for request in requests])
        prompts = [
            build_prompt(plan.blocks, query=request.query, order_annotation=plan.order_annotation, system="")
            for plan, request in zip(batch.plans, requests, strict=True)
        ]
        for place in batch.schedule:
            yield place, self._timed(partial(self._send, prompts[place]))

    def in_flight(self, requests: Sequence[TraceRequest], sessions: int) -> tuple[list[Sample], float]:
        """Send all requests, so many at a time.

        Returns:
            The samples in the order of the requests, and the seconds of the pass, planning included.
        """
        start = time.perf_counter()
        if self._is_batch:
            answers = self.completions.complete_batch(
                [request.blocks for request in requests],
                [request.query or "" for request in requests],
                max_in_flight=sessions,
                **_PARAMS,
            )
            samples = [_sample(answer) for answer in answers]
        else:
            with ThreadPoolExecutor(sessions) as workers:
                samples = list(workers.map(self.ask, requests))
        return samples, time.perf_counter() - start

    def ask(self, request: TraceRequest) -> Sample:
        """Send one request by itself."""
        if self.name == "original":
            return self._timed(
                lambda: self._send(build_prompt(request.blocks, query=request.query, system=""))
            )
        return self._timed(lambda: self.completions.complete(request.blocks, request.query or "", **_PARAMS))

    @property
    def _is_batch(self) -> bool:
        return self.name != "original" and self.mode == "offline"

    def _send(self, prompt: str) -> Completion:
        messages = [{"role": "system", "content": self.system}, {"role": "user", "content": prompt}]
        return self.completions.complete(messages=messages, rewrite=False, **_PARAMS)

    def _timed(self, complete: Callable[[], Completion]) -> Sample:
        start = time.perf_counter()
        try:
            answer = complete()
        except Exception as error:
            return Sample(error=f"{type(error).__name__}: {error}")
        return _sample(answer, planning=time.perf_counter() - start - answer.duration)


def take_turns(
    passes: Sequence[ColdPass],
    requests: Sequence[TraceRequest],
    on_answered: Callable[[int], object],
) -> list[tuple[list[Sample], float]]:
    """Run passes side by side: one request of each, then the next of each, the other way round.

    Whatever slows the machine down for a while then slows all of them down, and whatever it costs to be the
    first or the last is shared. None has its clock running while another has its turn.

    Args:
        passes: Who takes turns, each with a cache that no other one fills.
        requests: What each sends.
        on_answered: Called after each answer, with 1.

    Returns:
        For each pass its samples in the order of the requests, and the seconds of its turns, planning
        included.
    """
    turns = list(enumerate(one.turns(requests) for one in passes))
    samples = [[Sample()] * len(requests) for _ in passes]
    seconds = [0.0] * len(passes)
    for _ in requests:
        for number, turn in turns:
            start = time.perf_counter()
            place, sample = next(turn)
            seconds[number] += time.perf_counter() - start
            samples[number][place] = sample
            on_answered(1)
        turns.reverse()
    return list(zip(samples, seconds, strict=True))


@contextmanager
def cold_pass(
    name: str,
    mode: Literal["offline", "online"],
    requests: Sequence[TraceRequest],
    server: OwnServer | GivenServer,
) -> Iterator[ColdPass]:
    """Make a server cold, and lend what sends a pass to it.

    Args:
        name: The pass's.
        mode: How ours is planned.
        requests: What will be sent.
        server: Where. A cache of a known size is what the pilot's capacity is set to, but for
            "ours_events".

    Raises:
        OSError: If the server does not answer, or publishes no events that "ours_events" could follow.
        ImportError: If following events needs an extra that is not installed.
    """
    system = server.cold()
    with openai.OpenAI(
        base_url=server.base_url,
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
        max_retries=0,  # A retry would hide a failure in a time.
        timeout=_TIMEOUT,
    ) as client:
        if name != "ours_events":
            pilot = ContextPilot(capacity=_capacity(requests, server), on_error="raise")
            completions = Completions(pilot, client, model=server.model, preamble=system)
            _ping(completions, server)
            yield ColdPass(name, mode, completions, pilot, system)
            return
        from contextpilot_integrations.engines.subscriber import KvEventSubscriber

        assert isinstance(server, OwnServer)
        pilot = ContextPilot(on_error="raise")
        follower = CacheFollower(pilot)
        vllm = server.vllm
        with KvEventSubscriber(follower, vllm.events_endpoint, vllm.replay_endpoint, vllm.topic):
            completions = Completions(pilot, client, model=server.model, preamble=system, follower=follower)
            # vLLM tells of the reset only with the next page that it stores, and of all passes before to
            # whoever is new. Told during the pass, it would empty an index that is right.
            deadline = time.monotonic() + _HEARD_WITHIN
            while not _is_heard(completions, server):
                if time.monotonic() > deadline:
                    raise OSError(f"{vllm.events_endpoint}: vLLM publishes no events")
            yield ColdPass(name, mode, completions, pilot, system)


def _sample(answer: Completion, planning: float = 0.0) -> Sample:
    if answer.error is not None or answer.ttft is None:
        return Sample(error=f"{type(answer.error).__name__}: {answer.error}")
    return Sample(
        ttft=planning + answer.ttft,
        duration=planning + answer.duration,
        prompt_tokens=answer.usage.prompt_tokens,
        cached_tokens=answer.usage.cached_tokens,
    )


def _capacity(requests: Sequence[TraceRequest], server: OwnServer | GivenServer) -> int:
    """Return how many tokens of blocks the server's cache holds, as a pilot counts them.

    A pilot estimates tokens and knows the blocks alone; so the cache is as large for it as the share of
    the trace that it holds.
    """
    if not isinstance(server, OwnServer):
        return 1_000_000
    blocks = [block for request in requests for block in request.blocks]
    estimated = sum(estimate_tokens(block.text) for block in blocks)
    exact = sum(server.tokens[block] for block in blocks)
    exact += sum(server.tokens.get(request.query, 0) for request in requests)
    return max(1, round(server.cache_tokens * estimated / exact))


def _is_heard(completions: Completions, server: OwnServer) -> bool:
    """Tell whether events are told of a new prompt; the first go out unheard, maybe."""
    unique, deadline = secrets.token_hex(8), time.monotonic() + _TOLD_WITHIN
    while not _ping(completions, server, unique).plan.expected_cached_tokens:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _ping(completions: Completions, server: OwnServer | GivenServer, text: str = "") -> Completion:
    """Send a prompt of some pages, which no request begins like."""
    content = f"{text} {'ping ' * 2 * server.page_tokens}"
    try:
        return completions.complete(messages=[{"role": "user", "content": content}], **_PARAMS)
    except Exception as error:
        raise OSError(f"{server.base_url}: {error}") from error
