"""`contextpilot bench build`, `online` and `displacement`: how long planning takes, and what limits cost."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from tqdm import tqdm

from contextpilot_integrations.bench_cli.options import Plot, measuring
from contextpilot_integrations.block import ContextBlock
from contextpilot_integrations.console import Json, show
from contextpilot_integrations.evaluation.bench import (
    bench_build,
    bench_displacement,
    bench_online,
    draw_contexts,
    published_package,
)
from contextpilot_integrations.evaluation.bench.displacement import limits
from contextpilot_integrations.evaluation.bench.online import Latency
from contextpilot_integrations.evaluation.bench.plots import (
    check_picture,
    plot_build,
    plot_displacement,
    plot_online,
)
from contextpilot_integrations.evaluation.traces import read_trace

__all__ = ["build", "displacement", "online"]

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


class Device(StrEnum):
    """Where batches are clustered."""

    cpu = "cpu"
    cuda = "cuda"


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


def _show_growth(name: str, growth: tuple[Latency, ...]) -> None:
    print(f"\n{'stored':>8}  {'p50_ms':>8}  {'p99_ms':>8}  {'max_ms':>8}  {name}")
    for row in growth:
        print(f"{row.stored:>8}  {row.p50_ms:>8.4f}  {row.p99_ms:>8.4f}  {row.max_ms:>8.4f}")
