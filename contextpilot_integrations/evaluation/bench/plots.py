"""A picture of each benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contextpilot_integrations.evaluation.bench.build import BuildResult
from contextpilot_integrations.evaluation.bench.displacement import DisplacementPoint
from contextpilot_integrations.evaluation.bench.engine_report import NAMES
from contextpilot_integrations.evaluation.bench.engine_result import EngineResult
from contextpilot_integrations.evaluation.bench.online import OnlineResult
from contextpilot_integrations.evaluation.bench.quality import CONTRASTS, QualityResult
from contextpilot_integrations.evaluation.bench.quality_items import Variant

__all__ = ["check_picture", "plot_build", "plot_displacement", "plot_engine", "plot_online", "plot_quality"]

_OURS, _PUBLISHED, _CONTROL = "#1f77b4", "#9a9a9a", "#c98a2b"


def check_picture(picture: Path) -> None:
    """Make sure that a picture can be drawn, before anything is measured for it.

    Raises:
        ImportError: If matplotlib is missing; the message gives the command.
        ValueError: If there is no such folder, or matplotlib writes no such format.
    """
    figure, _ = _empty("")
    formats = figure.canvas.get_supported_filetypes()
    if picture.suffix.removeprefix(".") not in formats:
        raise ValueError(
            f"--plot: {picture} must end in one of {', '.join(map('.{}'.format, sorted(formats)))}"
        )
    if not picture.parent.is_dir():
        raise ValueError(f"--plot: there is no folder {picture.parent}")


def plot_build(results: Sequence[BuildResult], picture: Path) -> None:
    """Draw the seconds against the number of contexts.

    Raises:
        OSError: If the file cannot be written.
    """
    figure, axes = _empty("Planning a whole batch, cold")
    axes.plot(
        [result.contexts for result in results],
        [result.ours.seconds for result in results],
        "o-",
        color=_OURS,
        label="this package",
    )
    theirs = [(result.contexts, result.published.seconds) for result in results if result.published]
    if theirs:
        axes.plot(*zip(*theirs, strict=True), "o-", color=_PUBLISHED, label=_name(results[-1].version))
    axes.set_xlabel("contexts")
    axes.set_ylabel("seconds")
    _finish(figure, axes, picture)


def plot_online(result: OnlineResult, picture: Path) -> None:
    """Draw the milliseconds of a request against the number of stored contexts.

    Raises:
        OSError: If the file cannot be written.
    """
    figure, axes = _empty("Planning one request")
    sides = [(result.ours, _OURS, "this package"), (result.published, _PUBLISHED, _name(result.version))]
    for figures, colour, name in sides:
        if figures is None:
            continue
        stored = [latency.stored for latency in figures.growth]
        for style, percentile in (("o-", "p50"), ("o--", "p99")):
            times = [getattr(latency, f"{percentile}_ms") for latency in figures.growth]
            axes.plot(stored, times, style, color=colour, label=f"{name}, {percentile}")
    axes.set_xlabel("contexts stored")
    axes.set_ylabel("milliseconds")
    _finish(figure, axes, picture)


def plot_displacement(points: Sequence[DisplacementPoint], picture: Path) -> None:
    """Draw the hit ratios against the limit.

    Raises:
        OSError: If the file cannot be written.
    """
    figure, axes = _empty("What a limit on displacement costs")
    names = ["any" if point.max_displacement is None else str(point.max_displacement) for point in points]
    axes.plot(names, [point.online for point in points], "o-", color=_OURS, label="online")
    axes.plot(names, [point.offline for point in points], "o--", color=_OURS, label="offline")
    axes.set_xlabel("places that a block may move from its rank")
    axes.set_ylabel("block hit ratio, unlimited cache")
    axes.set_ylim(bottom=0)
    _save(figure, axes, picture)


def plot_engine(result: EngineResult, picture: Path) -> None:
    """Draw how many requests had their first token after which time, and the share of tokens cached.

    Raises:
        OSError: If the file cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.5), layout="constrained")
    times, shares = figure.subplots(1, 2, width_ratios=[3, 1])
    colours = dict(zip(NAMES, (_PUBLISHED, _OURS, _CONTROL), strict=True))
    for one in result.passes:
        ttfts = [sample.ttft for repeat in one.samples for sample in repeat if sample.error is None]
        if ttfts:
            label = f"{NAMES[one.name]}: mean {one.ttft_mean:.3f} s"
            times.ecdf(ttfts, color=colours[one.name], linewidth=2, label=label)
    times.set_title("Time to first token")
    times.set_xlabel("seconds")
    times.set_ylabel("share of the requests")
    times.set_xlim(left=0)
    figure.legend(frameon=False, loc="outside lower center", ncols=len(result.passes))
    shares.set_title("Prompt tokens cached")
    for one in result.passes:
        if result.tells_cached_tokens and one.prompt_tokens:
            share = one.cached_tokens / one.prompt_tokens
            bars = shares.bar(NAMES[one.name].replace(" ", "\n", 1), share, color=colours[one.name])
            shares.bar_label(bars, [f"{share:.1%}"], padding=2)
    prompt_tokens = result.passes[0].prompt_tokens
    if result.bound is not None and prompt_tokens:
        bound = sum(result.bound) / prompt_tokens
        shares.axhline(bound, color="black", linestyle="--", linewidth=1)
        shares.text(0.02, bound, f"at most {bound:.1%}", transform=shares.get_yaxis_transform(), va="bottom")
    shares.set_ylim(0, 1)
    shares.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    for axes in (times, shares):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(picture, dpi=150)


def plot_quality(result: QualityResult, picture: Path) -> None:
    """Draw each paired difference as a dot with its interval, a panel per measure.

    Raises:
        OSError: If the file cannot be written.
    """
    figure, axes = _empty("")
    axes.remove()
    figure.set_size_inches(13, 4.5)
    figure.suptitle(
        f"{len(result.selection.items)} reordered prompts, {result.model}: difference and 95 % interval"
    )
    panels = {
        "log_likelihood": "log-likelihood, nats a token",
        "margin": "lead over a wrong answer, nats",
        "match": "answers that match",
        "f1": "F1",
    }
    names = [
        variant.value if against is Variant.ORIGINAL else f"annotation, against {against.value}"
        for variant, against in CONTRASTS
    ]
    for panel, (axes, (measure, label)) in enumerate(
        zip(figure.subplots(1, len(panels), sharey=True), panels.items(), strict=True)
    ):
        axes.axvline(0, color=_PUBLISHED, linewidth=1)
        for row, (variant, against) in enumerate(CONTRASTS):
            found = result.difference(variant, against, measure).interval
            colour = _OURS if against is Variant.ORIGINAL else _CONTROL
            axes.plot([found.low, found.high], [row, row], color=colour, linewidth=2)
            axes.plot(found.mean, row, "o", color=colour)
        axes.set_xlabel(label)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        if panel == 0:
            axes.set_yticks(range(len(names)), names)
            axes.invert_yaxis()
    figure.savefig(picture, dpi=150)


def _name(version: str | None) -> str:
    return f"contextpilot {version}"


def _empty(title: str) -> tuple[Any, Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            '--plot needs matplotlib; install it with: pip install "contextpilot-integrations[evaluation]"'
        ) from error
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title)
    return figure, axes


def _finish(figure: Any, axes: Any, picture: Path) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis, numbers in ((axes.xaxis, "{x:,.0f}"), (axes.yaxis, "{x:g}")):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(numbers)
        axis.set_minor_formatter(NullFormatter())
    _save(figure, axes, picture)


def _save(figure: Any, axes: Any, picture: Path) -> None:
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(picture, dpi=150)
