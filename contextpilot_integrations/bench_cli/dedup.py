"""`contextpilot bench dedup`: what rewriting saves recorded conversations, and how long it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from tqdm import tqdm

from contextpilot_integrations.bench_cli.options import measuring
from contextpilot_integrations.console import Json, show
from contextpilot_integrations.evaluation.bench.dedup import (
    DedupResult,
    bench_dedup,
    read_all_conversations,
)
from contextpilot_integrations.evaluation.bench.rewrite_speed import bench_rewrite_speed

__all__ = ["dedup"]


def dedup(
    data: Annotated[Path, typer.Option(metavar="DIR", help='The folder with "traces" and "blocks".')],
    as_json: Json = False,
) -> None:
    """Rewrite recorded conversations: tokens sent, tokens that no prefix cache has seen, and milliseconds.

    Agents that read contracts (clawtasks; system prompt of S tokens, answers of A), chats with retrieval
    (MT-RAG), and agents with tools (tau-bench). Every answer is one request, and each trace has a pilot of
    its own. It fails where an original does not come back exactly, or a message that was sent changes later.
    """
    with measuring():
        sets = read_all_conversations(data)
        total = sum(len(one.requests) for conversations in sets.values() for one in conversations)
        with tqdm(total=total, desc="requests", leave=False, disable=None) as bar:
            results = [bench_dedup(name, sets[name], on_rewritten=bar.update) for name in sets]
        speed = bench_rewrite_speed().to_dict()
    if as_json:
        show({"traces": [result.to_dict() for result in results], **speed}, as_json)
        return
    _show_savings(results)
    print()
    show(speed, as_json)


def _show_savings(results: list[DedupResult]) -> None:
    width = max(len(result.trace) for result in results)
    print(
        f"{'':<{width}}  {'requests':>8}  {'tokens_before':>13}  {'tokens_after':>12}  {'saved':>7}  "
        f"{'mean':>7}  {'p99':>7}  {'uncached':>8}  {'longer':>7}  {'p50_ms':>7}  {'p99_ms':>7}"
    )
    for result in results:
        savings = (result.tokens, result.p99_tokens, result.uncached_tokens)
        saved, p99, uncached = (f"{one.saving:.1%}" for one in savings)
        print(
            f"{result.trace:<{width}}  {result.requests:>8}  {result.tokens.before:>13,}  "
            f"{result.tokens.after:>12,}  {saved:>7}  {result.mean_saving:>7.1%}  {p99:>7}  {uncached:>8}  "
            f"{result.longer:>7}  {result.p50_ms:>7.2f}  {result.p99_ms:>7.2f}"
        )
