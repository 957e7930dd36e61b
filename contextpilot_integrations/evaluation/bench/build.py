"""How long it takes to plan a whole batch, and in how much memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from contextpilot_integrations.evaluation.bench.contexts import draw_contexts
from contextpilot_integrations.evaluation.bench.process import Interpreter, MeasurementError, measure
from contextpilot_integrations.evaluation.simulator import simulate
from contextpilot_integrations.pilot import ContextPilot

__all__ = ["BuildFigures", "BuildResult", "bench_build"]


@dataclass(frozen=True, slots=True)
class BuildFigures:
    """What planning a batch took.

    Attributes:
        seconds: From the contexts to the plans, on a cold index.
        cpu_seconds: The processor time in them, of all threads and of the processes that it started; on
            a busy machine more telling than the seconds.
        peak_mib: The most memory of the process, interpreter and libraries included, processes that it
            started aside.
        hit_ratio: The share of blocks that an unlimited prefix cache holds, served as planned.
    """

    seconds: float
    cpu_seconds: float
    peak_mib: float
    hit_ratio: float


@dataclass(frozen=True, slots=True)
class BuildResult:
    """A batch planned by this package, and perhaps by the published one.

    Attributes:
        contexts: How many contexts there were.
        k: Blocks in each.
        device: Where this package clustered; the published one is measured on the CPU.
        window: How many contexts were clustered together at most; None is the default.
        ours: This package's figures.
        version: The published package's version; None where it was not asked for.
        published: Its figures; None where it has none.
        failure: Why it has none.
    """

    contexts: int
    k: int
    device: str
    window: int | None
    ours: BuildFigures
    version: str | None = None
    published: BuildFigures | None = None
    failure: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return all figures under plain names; a ratio is the published package's figure by ours."""
        figures: dict[str, Any] = {
            **asdict(self.ours),
            "contexts": self.contexts,
            "k": self.k,
            "device": self.device,
            "window": self.window,
        }
        if self.version is not None:
            theirs = {} if self.published is None else asdict(self.published)
            figures["published_version"] = self.version
            figures["published_failure"] = self.failure
            for name, value in asdict(self.ours).items():
                figures[f"published_{name}"] = theirs.get(name)
                figures[f"{name}_ratio"] = theirs[name] / value if theirs and value else None
        return figures


def bench_build(
    contexts: int,
    k: int,
    *,
    device: str = "cpu",
    window: int | None = None,
    against: Interpreter | None = None,
    on_measured: Callable[[], object] = lambda: None,
) -> BuildResult:
    """Plan a cold batch of drawn contexts, in a process of its own.

    Args:
        contexts: How many.
        k: Blocks in each.
        device: Where this package clusters: "cpu", "cuda".
        window: How many contexts it clusters together at most; None is its default.
        against: Where the published package plans the same contexts.
        on_measured: Called after each measurement.

    Raises:
        ValueError: If an argument is out of range or the device is not there.
        MeasurementError: If this package's process fails; where the other's does, the result says so.
    """
    if window is not None and window < 1:
        raise ValueError(f"window must be at least 1, not {window}")
    drawn = draw_contexts(contexts, k)
    ContextPilot(device=device)  # Its complaint about a bad device belongs here.
    ours = _figures(measure("build", drawn, device=device, window=window), drawn)
    on_measured()
    if against is None:
        return BuildResult(contexts, k, device, window, ours)
    published, failure = None, None
    try:
        published = _figures(measure("build", drawn, against=against), drawn)
    except MeasurementError as error:
        failure = str(error)
    on_measured()
    return BuildResult(contexts, k, device, window, ours, against.version, published, failure)


def _figures(measured: dict[str, Any], drawn: Sequence[Sequence[int]]) -> BuildFigures:
    orders = measured["orders"]
    if sorted(map(sorted, orders)) != sorted(map(sorted, drawn)):
        raise MeasurementError("what was planned is not a permutation of what was given")
    return BuildFigures(
        seconds=measured["seconds"],
        cpu_seconds=measured["cpu_seconds"],
        peak_mib=measured["peak_mib"],
        hit_ratio=simulate(orders).hit_ratio,
    )
