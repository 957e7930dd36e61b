"""The `contextpilot bench` commands."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from tqdm import tqdm

from contextpilot_integrations.block import ContextBlock
from contextpilot_integrations.console import Json, bad_input, show
from contextpilot_integrations.evaluation.bench import (
    bench_build,
    bench_displacement,
    bench_online,
    draw_contexts,
    published_package,
)
from contextpilot_integrations.evaluation.bench.displacement import limits
from contextpilot_integrations.evaluation.bench.engine_report import comparison_tables
from contextpilot_integrations.evaluation.bench.engine_requests import engine_requests
from contextpilot_integrations.evaluation.bench.engine_server import (
    GivenServer,
    OwnServer,
    own_servers,
    python_with_vllm,
)
from contextpilot_integrations.evaluation.bench.online import Latency
from contextpilot_integrations.evaluation.bench.plots import (
    check_picture,
    plot_build,
    plot_displacement,
    plot_engine,
    plot_online,
    plot_quality,
)
from contextpilot_integrations.evaluation.bench.process import MeasurementError
from contextpilot_integrations.evaluation.bench.quality import (
    CONTRASTS,
    MEASURES,
    QualityResult,
    bench_quality,
    findings,
)
from contextpilot_integrations.evaluation.bench.quality_items import Variant, handbook_requests, select_items
from contextpilot_integrations.evaluation.llama_cpp import LlamaCppClient
from contextpilot_integrations.evaluation.traces import read_trace

__all__ = ["app"]

app = typer.Typer(
    help="Measure planning itself, what it saves an engine, and what it does to answers.",
    no_args_is_help=True,
)


class Device(StrEnum):
    """Where batches are clustered."""

    cpu = "cpu"
    cuda = "cuda"


class Mode(StrEnum):
    """How requests are planned."""

    offline = "offline"
    online = "online"


@contextmanager
def measuring() -> Iterator[None]:
    """Say in one line why a measurement came to no end, and exit with 1; with 2 where the input is bad."""
    with bad_input():
        try:
            yield
        except MeasurementError as error:
            print(f"contextpilot: {error}", file=sys.stderr)
            raise typer.Exit(1) from error


Contexts = Annotated[int, typer.Option(metavar="N", help="How many contexts.")]
K = Annotated[int, typer.Option(metavar="K", help="Blocks in each context, all different.")]
Against = Annotated[
    str | None,
    typer.Option(
        metavar="PYTHON",
        help="An interpreter with the published package, measured in the same run (`make peer`: "
        ".venv-peer/bin/python). Each figure is then also given as a ratio, theirs by ours.",
    ),
]
Plot = Annotated[Path | None, typer.Option(metavar="FILE", help="Where to draw a picture.")]


@app.command()
def build(
    contexts: Contexts = 2000,
    k: K = 15,
    device: Annotated[Device, typer.Option(help="Where batches are clustered.")] = Device.cpu,
    against: Against = None,
    window: Annotated[
        int | None,
        typer.Option(metavar="N", help="How many contexts are clustered together at most, else the default."),
    ] = None,
    as_json: Json = False,
    plot: Plot = None,
) -> None:
    """Plan a whole batch on a cold index: seconds, peak memory, and the hit ratio of the plan.

    A picture shows how the seconds grow, so for it an eighth, a quarter and half of the contexts are
    planned as well.
    """
    with measuring():
        if plot is not None:
            check_picture(plot)
        peer = None if against is None else published_package(against)
        sizes = [contexts] if plot is None else sorted({-(-contexts // part) for part in (8, 4, 2, 1)})
        with tqdm(total=len(sizes) * (1 if peer is None else 2), leave=False, disable=None) as bar:
            results = [
                bench_build(size, k, device=device.value, window=window, against=peer, on_measured=bar.update)
                for size in sizes
            ]
        if plot is not None:
            plot_build(results, plot)
    show(results[-1].to_dict(), as_json)


@app.command()
def online(
    contexts: Contexts = 2000,
    k: K = 15,
    against: Against = None,
    as_json: Json = False,
    plot: Plot = None,
) -> None:
    """Store contexts one after another, then time 1,000 fresh requests: search, align, insert."""
    with measuring():
        if plot is not None:
            check_picture(plot)
        peer = None if against is None else published_package(against)
        with tqdm(total=1 if peer is None else 2, leave=False, disable=None) as bar:
            result = bench_online(contexts, k, against=peer, on_measured=bar.update)
        if plot is not None:
            plot_online(result, plot)
    show(result.to_dict(), as_json)
    if not as_json:
        _show_growth("this package", result.ours.growth)
        if result.published is not None:
            _show_growth(f"contextpilot {result.version}", result.published.growth)


@app.command()
def displacement(
    trace: Annotated[
        str | None, typer.Option(metavar="TRACE.jsonl", help="Real requests instead of drawn ones.")
    ] = None,
    contexts: Contexts = 2000,
    k: K = 15,
    as_json: Json = False,
    plot: Plot = None,
) -> None:
    """Plan the same requests under growing limits on how far a block may move from its rank."""
    with measuring():
        if plot is not None:
            check_picture(plot)
        if trace is None:
            requests = [tuple(map(ContextBlock, drawn)) for drawn in draw_contexts(contexts, k)]
        else:
            requests = [request.blocks for request in read_trace(trace)]
        with tqdm(total=len(limits(requests)), leave=False, disable=None) as bar:
            points = bench_displacement(requests, on_measured=bar.update)
        if plot is not None:
            plot_displacement(points, plot)
    if as_json:
        show({"points": [point.to_dict() for point in points]}, as_json)
        return
    print(f"{'max_displacement':>16}  {'online':>8}  {'offline':>8}")
    for point in points:
        limit = "any" if point.max_displacement is None else point.max_displacement
        print(f"{limit:>16}  {point.online:>8.4f}  {point.offline:>8.4f}")


@app.command()
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
    is as slow for all. Without --base-url, vLLM is started with a random-weight Llama of 28 M parameters,
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


@app.command()
def quality(
    trace: Annotated[
        str | None,
        typer.Option(
            metavar="TRACE.jsonl", help='Requests with "query" and "answer" instead of the handbook\'s.'
        ),
    ] = None,
    blocks: Annotated[
        str | None, typer.Option(metavar="BLOCKS.jsonl", help='The texts, {"id", "text"} a line.')
    ] = None,
    items: Annotated[int, typer.Option(metavar="N", help="How many reordered prompts at most.")] = 100,
    k: Annotated[int, typer.Option(metavar="K", help="Passages of each request, the best ones.")] = 6,
    max_chars: Annotated[int, typer.Option(metavar="N", help="Characters of a passage to keep.")] = 700,
    base_url: Annotated[
        str | None, typer.Option(metavar="URL", help="A llama.cpp server to use instead of the demo's model.")
    ] = None,
    as_json: Json = False,
    plot: Plot = None,
) -> None:
    """Answer the same questions in the original and in the aligned order, with and without annotation.

    The demo's model on llama.cpp is asked how likely the right answer is after each prompt, and for an
    answer of its own. Only prompts that are reordered are compared. 100 of the handbook's take about
    20 minutes on two idle CPU cores.
    """
    with measuring(), ExitStack() as stack:
        if plot is not None:
            check_picture(plot)
        if blocks is not None and trace is None:
            raise ValueError("--blocks goes with --trace, whose passages' texts it holds")
        requests = handbook_requests(k) if trace is None else read_trace(trace, blocks)
        selection = select_items(requests, limit=items, k=k, max_chars=max_chars)
        if base_url is None:
            from contextpilot_integrations.demo.llama_server import LlamaServer

            base_url = stack.enter_context(LlamaServer()).base_url
        model = stack.enter_context(LlamaCppClient(base_url))
        name = model.model()
        total = len(selection.items) * len(Variant)
        bar = stack.enter_context(tqdm(total=total, desc="prompts", leave=False, disable=None))
        result = bench_quality(selection, model, name, on_scored=bar.update)
        if plot is not None:
            plot_quality(result, plot)
    if as_json:
        show(result.to_dict(), as_json)
    else:
        _show_quality(result)


def _show_quality(result: QualityResult) -> None:
    chosen = result.selection
    print(
        f"{len(chosen.items)} items, of {chosen.reordered} reordered, of {chosen.answerable} answerable, "
        f"of {chosen.requests} requests; {result.model}\n"
    )
    print(f"{'':<21}  {'prompt_tokens':>13}  {'log_likelihood':>14}  {'margin':>7}  {'match':>6}  {'f1':>6}")
    for variant in Variant:
        tokens = result.mean(variant, "prompt_tokens")
        likelihood, margin, match, f1 = (result.mean(variant, measure) for measure in MEASURES)
        print(
            f"{variant.value:<21}  {tokens:>13.1f}  {likelihood:>14.4f}  "
            f"{margin:>7.4f}  {match:>6.3f}  {f1:>6.3f}"
        )
    print("\nPaired differences and their 95 % intervals")
    for measure in MEASURES:
        print(f"\n{measure}")
        for variant, against in CONTRASTS:
            found = result.difference(variant, against, measure).interval
            print(
                f"{f'{variant.value} - {against.value}':<44}  "
                f"{found.mean:>+7.4f}  [{found.low:+.4f}, {found.high:+.4f}]"
            )
    print()
    for sentence in findings(result):
        print(sentence)


def _show_growth(name: str, growth: tuple[Latency, ...]) -> None:
    print(f"\n{'stored':>8}  {'p50_ms':>8}  {'p99_ms':>8}  {'max_ms':>8}  {name}")
    for row in growth:
        print(f"{row.stored:>8}  {row.p50_ms:>8.4f}  {row.p99_ms:>8.4f}  {row.max_ms:>8.4f}")
