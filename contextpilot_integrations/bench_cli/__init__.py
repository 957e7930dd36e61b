"""The `contextpilot bench` commands, one module for each group."""

from __future__ import annotations

import typer

from contextpilot_integrations.bench_cli.adapters import adapters
from contextpilot_integrations.bench_cli.dedup import dedup
from contextpilot_integrations.bench_cli.engine import engine
from contextpilot_integrations.bench_cli.planning import build, displacement, online
from contextpilot_integrations.bench_cli.quality import quality

__all__ = ["app"]

app = typer.Typer(
    help="Measure planning itself, what it saves an engine, and what it does to answers.",
    no_args_is_help=True,
)
for command in (build, online, displacement, adapters, dedup, engine, quality):
    app.command()(command)
