"""`contextpilot bench adapters`: what each adapter costs a request beyond planning itself."""

from __future__ import annotations

from typing import Annotated

import typer
from tqdm import tqdm

from contextpilot_integrations.bench_cli.options import measuring
from contextpilot_integrations.console import Json, show
from contextpilot_integrations.evaluation.bench.adapters import bench_adapters

__all__ = ["adapters"]


def adapters(
    requests: Annotated[int, typer.Option(metavar="N", help="How many requests.")] = 500,
    k: Annotated[int, typer.Option(metavar="K", help="Blocks in each, all different.")] = 20,
    as_json: Json = False,
) -> None:
    """Time requests through the adapters of installed ecosystems, beside the ecosystem and planning alone.

    Medians in milliseconds: with the adapter, without it, planning the same blocks, and what is left.
    """
    with measuring(), tqdm(desc="adapters", leave=False, disable=None) as bar:
        results = bench_adapters(requests, k, on_measured=bar.update)
    if as_json:
        show({"adapters": [result.to_dict() for result in results]}, as_json)
        return
    width = max((len(result.adapter) for result in results), default=0)
    print(f"{'':<{width}}  {'ours_ms':>8}  {'plain_ms':>8}  {'core_ms':>8}  {'overhead_ms':>11}")
    for result in results:
        print(
            f"{result.adapter:<{width}}  {result.ours_ms:>8.3f}  {result.plain_ms:>8.3f}  "
            f"{result.core_ms:>8.3f}  {result.overhead_ms:>11.3f}"
        )
