"""What the demo shows: a table, some answers side by side, and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from contextpilot_integrations.demo.handbook import Question
from contextpilot_integrations.demo.passes import Pass

__all__ = ["draw", "print_report"]

ANSWERS_SHOWN = 3
UNKNOWN = "unknown"
COLOURS = ("#9a9a9a", "#c98a2b", "#1f77b4")


def print_report(asked: Sequence[Question], passes: Sequence[Pass], bound: float, server: str) -> None:
    """Print the comparison.

    Args:
        asked: The questions.
        passes: The first one is what the others are compared with.
        bound: The largest hit ratio that any order could reach.
        server: The model and where it runs.
    """
    console = Console()
    console.print(
        f"\n{len(asked)} questions, 3 times, each time from a cold cache: {server}\n", highlight=False
    )
    console.print(_figures(passes, bound))
    if passes[0].cached_tokens is None:
        console.print(
            "The server does not report cached tokens. vLLM does with --enable-prompt-tokens-details, "
            "SGLang with --enable-cache-report."
        )
    console.print(_answers(asked, passes))
    console.print(
        "Next, on your own server: contextpilot demo --base-url http://localhost:8000/v1 --model NAME "
        "(vLLM with --enable-prompt-tokens-details, SGLang with --enable-cache-report)",
        highlight=False,
    )


def draw(passes: Sequence[Pass], picture: Path) -> bool:
    """Draw how many cached tokens each pass had found after each question.

    Returns:
        Whether there was anything to draw: what the server did not report is not drawn as 0.

    Raises:
        OSError: If the file cannot be written.
    """
    if any(one.cached_tokens is None for one in passes):
        return False
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for one, colour in zip(passes, COLOURS, strict=True):
        total = [0, *accumulate(one.cached_tokens or [])]
        axes.plot(total, color=colour, linewidth=2, label=f"{one.name}: {total[-1]:,}")
    axes.legend(frameon=False, loc="upper left", reverse=True)
    axes.set_xlabel("questions answered")
    axes.set_ylabel("prompt tokens found cached, all together")
    axes.set_title("The same questions, the same passages: what the prefix cache gives back")
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    figure.savefig(picture, dpi=150)
    return True


def _figures(passes: Sequence[Pass], bound: float) -> Table:
    table = Table(
        caption="Cached tokens and hit ratio: without the preamble, which every prompt shares anyway."
    )
    table.add_column("")
    for one in passes:
        table.add_column(one.name, justify="right")
    first = passes[0]
    rows = {
        "prompt tokens": [_count(one.prompt_tokens) for one in passes],
        "cached tokens": [_count(one.cached_total) for one in passes],
        f"hit ratio (bound {bound:.1%})": [_share(one.hit_ratio) for one in passes],
        "time to first token, median": [f"{one.ttft_median:.2f} s" for one in passes],
        "time to first token, total": [f"{one.ttft_total:.1f} s" for one in passes],
        "shorter by": [f"{first.ttft_total / one.ttft_total:.2f}x" for one in passes],
    }
    for name, values in rows.items():
        table.add_row(name, *values)
    return table


def _answers(asked: Sequence[Question], passes: Sequence[Pass]) -> Table:
    table = Table(title="Answers side by side", show_lines=True)
    for name in ("question", "expected", *(one.name for one in passes)):
        table.add_column(name)
    step = max(1, len(asked) // ANSWERS_SHOWN)
    for place in range(0, len(asked), step)[:ANSWERS_SHOWN]:
        texts = [one.answers[place].text for one in passes]
        table.add_row(asked[place].question, asked[place].answer, *texts)
    return table


def _count(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def _share(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.1%}"
