"""What the bench commands share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from contextpilot_integrations.console import bad_input
from contextpilot_integrations.evaluation.bench.process import MeasurementError

__all__ = ["Plot", "measuring"]

Plot = Annotated[Path | None, typer.Option(metavar="FILE", help="Where to draw a picture.")]


@contextmanager
def measuring() -> Iterator[None]:
    """Say in one line why a measurement came to no end, and exit with 1; with 2 where the input is bad."""
    with bad_input():
        try:
            yield
        except MeasurementError as error:
            print(f"contextpilot: {error}", file=sys.stderr)
            raise typer.Exit(1) from error
