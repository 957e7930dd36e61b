"""Benchmarks of planning itself: how long a batch takes, and how long a request beside many stored ones."""

from contextpilot_integrations.evaluation.bench.build import BuildFigures, BuildResult, bench_build
from contextpilot_integrations.evaluation.bench.contexts import BLOCKS, draw_contexts
from contextpilot_integrations.evaluation.bench.displacement import DisplacementPoint, bench_displacement
from contextpilot_integrations.evaluation.bench.online import OnlineFigures, OnlineResult, bench_online
from contextpilot_integrations.evaluation.bench.process import Interpreter, published_package

__all__ = [
    "BLOCKS",
    "BuildFigures",
    "BuildResult",
    "DisplacementPoint",
    "Interpreter",
    "OnlineFigures",
    "OnlineResult",
    "bench_build",
    "bench_displacement",
    "bench_online",
    "draw_contexts",
    "published_package",
]
