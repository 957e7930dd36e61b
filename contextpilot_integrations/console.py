"""What all commands share: figures on standard output, and one line about bad input."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import typer

__all__ = ["Json", "bad_input", "show"]

Json = Annotated[bool, typer.Option("--json", help="Print the figures as one line of JSON.")]


@contextmanager
def bad_input() -> Iterator[None]:
    """Say in one line what is wrong with the input, and exit with 2."""
    try:
        yield
    except BrokenPipeError as error:
        # The reader has seen enough. What is still buffered goes nowhere, or closing would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit from error
    except (ValueError, OSError, ImportError) as error:
        print(f"contextpilot: {error}", file=sys.stderr)
        raise typer.Exit(2) from error


def show(figures: Mapping[str, Any], as_json: bool) -> None:
    """Print figures under their names, as a table or as one line of JSON."""
    if as_json:
        print(json.dumps(figures))
        return
    width = max(map(len, figures))
    for name, value in figures.items():
        text = f"{value:.4f}" if isinstance(value, float) else "-" if value is None else value
        print(f"{name:<{width}}  {text}")
