"""The original order of retrieved blocks against ours, paired, on a real engine."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack
from itertools import cycle, islice
from typing import Literal

from contextpilot_integrations.evaluation.bench.engine_passes import cold_pass, take_turns
from contextpilot_integrations.evaluation.bench.engine_requests import prompt_parts
from contextpilot_integrations.evaluation.bench.engine_result import EnginePass, EngineResult, Sample
from contextpilot_integrations.evaluation.bench.engine_server import GivenServer, OwnServer
from contextpilot_integrations.evaluation.bench.paired import bound_cached_tokens
from contextpilot_integrations.evaluation.prompt import build_prompt
from contextpilot_integrations.evaluation.traces import TraceRequest

__all__ = ["bench_engine", "check_runs", "own_servers_needed", "pass_names"]

_WARM_UP = 2  # requests


def bench_engine(
    requests: Sequence[TraceRequest],
    servers: Sequence[OwnServer | GivenServer],
    *,
    mode: Literal["offline", "online"] = "offline",
    sessions: int = 1,
    repeats: int = 1,
    events: bool = False,
    on_answered: Callable[[int], object] = lambda answered: None,
) -> EngineResult:
    """Send the same requests in passes that each start with a cold cache, and compare request by request.

    The original pass sends every request as it was retrieved, in arrival order. Ours is planned: as one
    batch that goes out as scheduled ("offline"), or one by one as they arrive ("online"). Both write blocks
    alike, so that only their order and the order annotation differ.

    With one request in flight the passes run side by side and take turns, a request of each and then the
    next of each, so that a machine whose speed drifts is as slow for one as for the other. With more they
    run one after the other, each as a closed loop of ``sessions`` workers: each takes the next request when
    its own is answered. In a batch of ours a request also waits for the one whose prefix it shares, as
    `Completions` does it.

    What planning takes counts: online in each time to first token, offline in the seconds of the pass. The
    turns of other passes never count.

    Args:
        requests: What is asked, in arrival order.
        servers: Where: one that was given, or as many of our own as `own_servers_needed` says, all alike.
        mode: How ours is planned.
        sessions: How many requests are in flight.
        repeats: How often each pass is run. Which one goes first alternates, and so does which server is
            whose.
        events: Whether to run ours once more, following the server's KV events; what it believes then ends
            where the cache does, so its capacity is left at the default.
        on_answered: Called with how many more requests have been answered.

    Raises:
        ValueError: If an argument is out of range, or the server's events cannot be followed.
        OSError: If the server does not answer at all.
        ImportError: If following events needs an extra that is not installed.
    """
    check_runs(sessions, repeats)
    server = servers[0]
    if events and not isinstance(server, OwnServer):
        raise ValueError("--events follows the vLLM that this command starts; leave out --base-url")
    needed = own_servers_needed(sessions, events=events) if isinstance(server, OwnServer) else 1
    if len(servers) != needed:
        raise ValueError(f"servers must be {needed}, not {len(servers)}: a cache for each pass under way")
    names = pass_names(events=events)
    samples: dict[str, list[tuple[Sample, ...]]] = {name: [] for name in names}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for one in servers:
        _warm_up(requests, one)
    for repeat in range(repeats):
        ordered = names if repeat % 2 == 0 else names[::-1]
        where = dict(zip(names, islice(cycle(servers), repeat % needed, None), strict=False))
        for together in [ordered] if sessions == 1 else [(name,) for name in ordered]:
            with ExitStack() as stack:
                passes = [
                    stack.enter_context(cold_pass(name, mode, requests, where[name])) for name in together
                ]
                if sessions == 1:
                    measured = take_turns(passes, requests, on_answered)
                else:
                    measured = [passes[0].in_flight(requests, sessions)]
                    on_answered(len(requests))
            for name, (asked, took) in zip(together, measured, strict=True):
                samples[name].append(tuple(asked))
                seconds[name].append(took)
    results = tuple(EnginePass(name, tuple(samples[name]), tuple(seconds[name])) for name in names)
    return EngineResult(
        mode=mode,
        sessions=sessions,
        repeats=repeats,
        model=server.model,
        cold_start=server.cold_start,
        cache_tokens=server.cache_tokens,
        passes=results,
        bound=_bound(requests, server, results[0], mode),
    )


def pass_names(*, events: bool) -> tuple[str, ...]:
    """Return the names of the passes, the original one first."""
    return ("original", "ours", "ours_events") if events else ("original", "ours")


def own_servers_needed(sessions: int, *, events: bool) -> int:
    """Return how many servers of our own it takes: one for each pass that is under way at a time."""
    return len(pass_names(events=events)) if sessions == 1 else 1


def check_runs(sessions: int, repeats: int) -> None:
    """Make sure of what is asked for, before a server is started for it.

    Raises:
        ValueError: If either is below 1.
    """
    for name, value in (("--sessions", sessions), ("--repeats", repeats)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")


def _warm_up(requests: Sequence[TraceRequest], server: OwnServer | GivenServer) -> None:
    """Send the longest prompts once, unmeasured: an engine's first ones take longer."""
    longest = sorted(requests, key=lambda request: -sum(len(block.text) for block in request.blocks))
    with cold_pass("original", "online", requests, server) as warm_up:
        warm_up.in_flight(longest[:_WARM_UP], sessions=1)  # If one fails again, the passes tell.


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
