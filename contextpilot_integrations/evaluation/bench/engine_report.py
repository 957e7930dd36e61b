"""The figures of passes on an engine as tables."""

from __future__ import annotations

from rich.table import Table

from contextpilot_integrations.evaluation.bench.engine_result import EnginePass, EngineResult

__all__ = ["NAMES", "comparison_tables"]

NAMES = {"original": "original order", "ours": "context reuse", "ours_events": "with KV events"}
"""What the passes are called."""


def comparison_tables(result: EngineResult) -> list[Table]:
    """Return a table of the passes, and one of their ratios."""
    return [_passes(result), _ratios(result)]


def _passes(result: EngineResult) -> Table:
    cache = "" if result.cache_tokens is None else f", a cache of {result.cache_tokens:,} tokens"
    turns = " The passes took turns, request by request." if result.took_turns else ""
    table = Table(
        title=f"{result.requests} requests, {result.mode}, {result.sessions} in flight{cache}",
        caption=f"Model {result.model}. Each pass starts cold by {result.cold_start}.{turns}",
    )
    table.add_column("")
    for one in result.passes:
        table.add_column(NAMES[one.name], justify="right")

    def cached(one: EnginePass) -> int | None:
        return one.cached_tokens if result.tells_cached_tokens else None

    rows = {
        "failed requests": [_count(one.failed) for one in result.passes],
        "prompt tokens": [_count(one.prompt_tokens) for one in result.passes],
        "cached tokens": [_count(cached(one)) for one in result.passes],
        "cached share": [_share(cached(one), one.prompt_tokens) for one in result.passes],
        "time to first token, median": [_seconds(one.ttft_p50) for one in result.passes],
        "time to first token, mean": [_seconds(one.ttft_mean) for one in result.passes],
        "time to first token, total": [f"{one.ttft_total:.1f} s" for one in result.passes],
        "whole pass": [f"{one.seconds:.1f} s" for one in result.passes],
    }
    for name, values in rows.items():
        table.add_row(name, *values)
    return table


def _ratios(result: EngineResult) -> Table:
    table = Table(caption='"Possible" is the largest ratio that the trace allows.')
    table.add_column("better by")
    for name in ("ratio", "95 % interval", "possible", "reached"):
        table.add_column(name, justify="right")
    for one in result.passes[1:]:
        compared, suffix = result.compare(one), f", {NAMES[one.name]}" if len(result.passes) > 2 else ""
        rows = {
            "time to first token": compared.ttft,
            "cached tokens": compared.cached_tokens,
            "whole pass": compared.seconds,
        }
        for name, ratio in rows.items():
            interval = f"{_times(ratio.low)} to {_times(ratio.high)}"
            table.add_row(
                f"{name}{suffix}",
                _times(ratio.value),
                interval if ratio.value is not None else "-",
                _times(ratio.bound),
                _share(ratio.value, ratio.bound),
            )
    return table


def _count(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,}"


def _share(part: float | None, whole: float | None) -> str:
    return f"{part / whole:.1%}" if part is not None and whole else "-"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f} s"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}x"
