"""`contextpilot bench quality`: what planning does to a real model's answers."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated

import typer
from tqdm import tqdm

from contextpilot_integrations.bench_cli.options import Plot, measuring
from contextpilot_integrations.console import Json, show
from contextpilot_integrations.evaluation.bench.plots import check_picture, plot_quality
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

__all__ = ["quality"]


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
