"""The original order of retrieved blocks against ours, paired, on a real engine."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Literal

import openai

from contextpilot_integrations.engines.cache_follower import CacheFollower
from contextpilot_integrations.evaluation.bench.engine_requests import prompt_parts
from contextpilot_integrations.evaluation.bench.engine_result import EnginePass, EngineResult, Sample
from contextpilot_integrations.evaluation.bench.engine_server import ANSWER_TOKENS, GivenServer, OwnServer
from contextpilot_integrations.evaluation.bench.paired import bound_cached_tokens
from contextpilot_integrations.evaluation.prompt import build_prompt
from contextpilot_integrations.evaluation.traces import TraceRequest
from contextpilot_integrations.openai import Completion, Completions
from contextpilot_integrations.pilot import ContextPilot, estimate_tokens

__all__ = ["bench_engine", "check_runs"]

_PARAMS: dict[str, Any] = {"max_tokens": ANSWER_TOKENS, "temperature": 0}
_TIMEOUT = 600.0  # seconds
_WARM_UP = 2  # requests
_HEARD_WITHIN = 30.0  # seconds


def bench_engine(
    requests: Sequence[TraceRequest],
    server: OwnServer | GivenServer,
    *,
    mode: Literal["offline", "online"] = "offline",
    sessions: int = 1,
    repeats: int = 1,
    events: bool = False,
    on_measured: Callable[[], object] = lambda: None,
) -> EngineResult:
    """Send the same requests in passes that each start with a cold cache, and compare request by request.

    The original pass sends every request as it was retrieved, in arrival order. Ours is planned: as one
    batch that goes out as scheduled ("offline"), or one by one as they arrive ("online"). Both write blocks
    alike, so that only their order and the order annotation differ.

    There is a closed loop of ``sessions`` workers: each takes the next request when its own is answered.
    In a batch of ours a request also waits for the one whose prefix it shares, as `Completions` does it.
    What planning takes counts: online in each time to first token, offline in the seconds of the pass.

    Args:
        requests: What is asked, in arrival order.
        server: Where. A cache of a known size is what the pilot's capacity is set to.
        mode: How ours is planned.
        sessions: How many requests are in flight.
        repeats: How often each pass is run. Which one goes first alternates.
        events: Whether to run ours once more, following the server's KV events; what it believes then ends
            where the cache does, so its capacity is left at the default.
        on_measured: Called after each pass.

    Raises:
        ValueError: If an argument is out of range, or the server's events cannot be followed.
        OSError: If the server does not answer at all.
        ImportError: If following events needs an extra that is not installed.
    """
    check_runs(sessions, repeats)
    if events and not isinstance(server, OwnServer):
        raise ValueError("--events follows the vLLM that this command starts; leave out --base-url")
    names = ["original", "ours", *(["ours_events"] if events else [])]
    samples: dict[str, list[tuple[Sample, ...]]] = {name: [] for name in names}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    with openai.OpenAI(
        base_url=server.base_url,
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
        max_retries=0,  # A retry would hide a failure in a time.
        timeout=_TIMEOUT,
    ) as client:
        _warm_up(requests, server, client)
        for repeat in range(repeats):
            for name in names if repeat % 2 == 0 else reversed(names):
                with _cold(name, requests, server, client) as (completions, system):
                    start = time.perf_counter()
                    measured = _ask(name, requests, completions, system, mode, sessions)
                    seconds[name].append(time.perf_counter() - start)
                samples[name].append(tuple(measured))
                on_measured()
    passes = tuple(EnginePass(name, tuple(samples[name]), tuple(seconds[name])) for name in names)
    return EngineResult(
        mode=mode,
        sessions=sessions,
        repeats=repeats,
        model=server.model,
        cold_start=server.cold_start,
        cache_tokens=server.cache_tokens,
        passes=passes,
        bound=_bound(requests, server, passes[0], mode),
    )


def check_runs(sessions: int, repeats: int) -> None:
    """Make sure of what is asked for, before a server is started for it.

    Raises:
        ValueError: If either is below 1.
    """
    for name, value in (("--sessions", sessions), ("--repeats", repeats)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")


def _ask(
    name: str,
    requests: Sequence[TraceRequest],
    completions: Completions,
    system: str,
    mode: str,
    sessions: int,
) -> list[Sample]:
    """Run a pass; the samples stand in the order of the requests."""
    if name != "original" and mode == "offline":
        answers = completions.complete_batch(
            [request.blocks for request in requests],
            [request.query or "" for request in requests],
            max_in_flight=sessions,
            **_PARAMS,
        )
        return [_sample(answer) for answer in answers]

    def ask(request: TraceRequest) -> Sample:
        start = time.perf_counter()
        try:
            if name == "original":
                answer = _ask_as_retrieved(request, completions, system)
            else:
                answer = completions.complete(request.blocks, request.query or "", **_PARAMS)
        except Exception as error:
            return Sample(error=f"{type(error).__name__}: {error}")
        return _sample(answer, planning=time.perf_counter() - start - answer.duration)

    with ThreadPoolExecutor(sessions) as workers:
        return list(workers.map(ask, requests))


def _ask_as_retrieved(request: TraceRequest, completions: Completions, system: str) -> Completion:
    user = build_prompt(request.blocks, query=request.query, system="")
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    return completions.complete(messages=messages, **_PARAMS)


def _sample(answer: Completion, planning: float = 0.0) -> Sample:
    if answer.error is not None or answer.ttft is None:
        return Sample(error=f"{type(answer.error).__name__}: {answer.error}")
    return Sample(
        ttft=planning + answer.ttft,
        duration=planning + answer.duration,
        prompt_tokens=answer.usage.prompt_tokens,
        cached_tokens=answer.usage.cached_tokens,
    )


@contextmanager
def _cold(
    name: str, requests: Sequence[TraceRequest], server: OwnServer | GivenServer, client: openai.OpenAI
) -> Iterator[tuple[Completions, str]]:
    """Make the server cold, and lend what sends a pass, with its system prompt; it answers."""
    system = server.cold()
    if name != "ours_events":
        pilot = ContextPilot(capacity=_capacity(requests, server), on_error="raise")
        completions = Completions(pilot, client, model=server.model, preamble=system)
        _ping(completions, server)
        yield completions, system
        return
    from contextpilot_integrations.engines.subscriber import KvEventSubscriber

    assert isinstance(server, OwnServer)
    pilot = ContextPilot(on_error="raise")
    follower = CacheFollower(pilot)
    vllm = server.vllm
    with KvEventSubscriber(follower, vllm.events_endpoint, vllm.replay_endpoint, vllm.topic):
        completions = Completions(pilot, client, model=server.model, preamble=system, follower=follower)
        # vLLM tells of the reset only with the next page that it stores, and of all passes before to whoever
        # is new. Told during the pass, it would empty an index that is right.
        unique, deadline = secrets.token_hex(8), time.monotonic() + _HEARD_WITHIN
        while not _ping(completions, server, unique).plan.expected_cached_tokens:
            if time.monotonic() > deadline:
                raise OSError(f"{vllm.events_endpoint}: vLLM publishes no events")
            time.sleep(0.01)
        yield completions, system


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


def _ping(completions: Completions, server: OwnServer | GivenServer, text: str = "") -> Completion:
    """Send a prompt of some pages, which no request begins like."""
    content = f"{text} {'ping ' * 2 * server.page_tokens}"
    try:
        return completions.complete(messages=[{"role": "user", "content": content}], **_PARAMS)
    except Exception as error:
        raise OSError(f"{server.base_url}: {error}") from error


def _warm_up(
    requests: Sequence[TraceRequest], server: OwnServer | GivenServer, client: openai.OpenAI
) -> None:
    """Send the longest prompts once, unmeasured: an engine's first ones take longer."""
    longest = sorted(requests, key=lambda request: -sum(len(block.text) for block in request.blocks))
    with _cold("original", requests, server, client) as (completions, system):
        for request in longest[:_WARM_UP]:
            with suppress(Exception):  # If it fails again, the passes tell.
                _ask_as_retrieved(request, completions, system)


def _bound(
    requests: Sequence[TraceRequest],
    server: OwnServer | GivenServer,
    original: EnginePass,
    mode: str,
) -> tuple[int, ...] | None:
    """Bound each request's cached tokens; None where prompts failed or their tokens were not told.

    Parts of prompts are counted by the server's own tokenizer where it can be asked beforehand; else by
    their share of the bytes of all prompts, whose tokens the server has told.
    """
    prompts = [sample.prompt_tokens for sample in original.samples[0]]
    if original.failed or None in prompts:
        return None
    told = [tokens or 0 for tokens in prompts]
    parts = [prompt_parts(request) for request in requests]
    if isinstance(server, OwnServer):
        tokens = dict(server.tokens)
    else:
        written = sum(
            len(build_prompt(request.blocks, query=request.query).encode("utf-8", "surrogatepass"))
            for request in requests
        )
        tokens = {
            part: round(len(text.encode("utf-8", "surrogatepass")) * sum(told) / written)
            for one in parts
            for part, text in one.items()
        }

    def sent(request: TraceRequest) -> Iterator[Hashable]:
        yield from request.blocks
        if request.query:
            yield request.query

    # What is neither block nor question: the preamble, and what the chat template adds.
    rest = [
        max(0, prompt - sum(tokens[part] for part in sent(request)))
        for prompt, request in zip(told, requests, strict=True)
    ]
    order: Literal["arrival", "farthest"] = "farthest" if mode == "offline" else "arrival"
    bounds = bound_cached_tokens(
        [list(one) for one in parts], rest, tokens.__getitem__, order=order, page_tokens=server.page_tokens
    )
    return tuple(bounds)
