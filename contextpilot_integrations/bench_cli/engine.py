"""`contextpilot bench engine`: what planning saves a real engine."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console
from tqdm import tqdm

from contextpilot_integrations.bench_cli.options import Plot, measuring
from contextpilot_integrations.console import Json, show
from contextpilot_integrations.evaluation.bench.engine_report import comparison_tables
from contextpilot_integrations.evaluation.bench.engine_requests import engine_requests
from contextpilot_integrations.evaluation.bench.engine_server import (
    GivenServer,
    OwnServer,
    own_servers,
    python_with_vllm,
)
from contextpilot_integrations.evaluation.bench.plots import check_picture, plot_engine
from contextpilot_integrations.evaluation.bench.process import MeasurementError

__all__ = ["engine"]


class Mode(StrEnum):
    """How requests are planned."""

    offline = "offline"
    online = "online"


def engine(
    trace: Annotated[
        str | None, typer.Option(metavar="TRACE.jsonl", help="Real requests instead of the demo's 40.")
    ] = None,
    blocks: Annotated[
        str | None, typer.Option(metavar="BLOCKS.jsonl", help='Their texts, {"id", "text"} a line.')
    ] = None,
    requests: Annotated[int, typer.Option(metavar="N", help="How many requests, the first ones.")] = 150,
    max_chars: Annotated[
        int, typer.Option(metavar="N", help="How many characters of each passage are sent.")
    ] = 600,
    no_overlap: Annotated[
        bool,
        typer.Option("--no-overlap", help="Make all passages differ: shows what planning costs for nothing."),
    ] = False,
    mode: Annotated[
        Mode, typer.Option(help="The whole batch at once, or one request after another.")
    ] = Mode.offline,
    sessions: Annotated[int, typer.Option(metavar="S", help="How many requests are in flight.")] = 1,
    repeats: Annotated[
        int, typer.Option(metavar="R", help="How often each pass is run; which goes first alternates.")
    ] = 1,
    events: Annotated[
        bool, typer.Option("--events", help="Run ours once more, following the engine's KV events.")
    ] = False,
    cache_share: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Room in the cache for this share of all tokens; by default for all of them.",
        ),
    ] = None,
    python: Annotated[
        str | None,
        typer.Option(
            metavar="PYTHON", help="An interpreter with vLLM; by default .venv-vllm's (`make test-engines`)."
        ),
    ] = None,
    base_url: Annotated[
        str | None, typer.Option(metavar="URL", help="An OpenAI-compatible server to measure instead.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="The model's name on that server.")
    ] = None,
    as_json: Json = False,
    plot: Plot = None,
) -> None:
    """Send requests to a real engine in their original order and in ours, each time from a cold cache.

    Compared request by request: time to first token, cached tokens and the time of the whole, each as a
    ratio with its 95 % interval, beside the largest ratio that the trace allows. Answers have one token.
    With one request in flight the orders take turns, request by request, so that a machine that slows down
    is as slow for all. Without --base-url, vLLM is started with a random-weight Llama of 30 M parameters,
    then once for each order.
    """
    with measuring():
        if plot is not None:
            check_picture(plot)
        if (base_url is None) != (model is None):
            raise ValueError("--base-url and --model go together")
        if base_url is not None and (python is not None or cache_share is not None):
            raise ValueError("--python and --cache-share are for the vLLM that is started without --base-url")
        from contextpilot_integrations.evaluation.bench.engine import (
            bench_engine,
            check_runs,
            own_servers_needed,
            pass_names,
        )

        check_runs(sessions, repeats)

        asked = engine_requests(trace, blocks, requests=requests, max_chars=max_chars, overlap=not no_overlap)
        with ExitStack() as stack:
            servers: Sequence[GivenServer | OwnServer]
            if base_url is None or model is None:
                servers = stack.enter_context(
                    own_servers(
                        asked,
                        number=own_servers_needed(sessions, events=events),
                        python=python_with_vllm(python),
                        cache_share=1.0 if cache_share is None else cache_share,
                    )
                )
            else:
                servers = [GivenServer(base_url, model)]
            total = repeats * len(pass_names(events=events)) * len(asked)
            bar = stack.enter_context(tqdm(total=total, desc="requests", leave=False, disable=None))
            result = bench_engine(
                asked,
                servers,
                mode=mode.value,
                sessions=sessions,
                repeats=repeats,
                events=events,
                on_answered=bar.update,
            )
        if as_json:
            show(result.to_dict(), as_json)
        else:
            for table in comparison_tables(result):
                Console().print(table, highlight=False)
            if not result.tells_cached_tokens:
                print(
                    "The server does not report cached tokens. vLLM does with "
                    "--enable-prompt-tokens-details, SGLang with --enable-cache-report."
                )
        if plot is not None:
            plot_engine(result, plot)
        errors = [error for one in result.passes for error in one.errors]
        if errors:
            sent = repeats * len(result.passes) * result.requests
            raise MeasurementError(f"{len(errors)} of {sent} requests failed, the first with {errors[0]}")
