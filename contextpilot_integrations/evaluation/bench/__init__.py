"""Benchmarks: how long planning takes, for a batch and beside many stored ones, and what answers become."""

from contextpilot_integrations.evaluation.bench.build import BuildFigures, BuildResult, bench_build
from contextpilot_integrations.evaluation.bench.contexts import BLOCKS, draw_contexts
from contextpilot_integrations.evaluation.bench.displacement import DisplacementPoint, bench_displacement
from contextpilot_integrations.evaluation.bench.online import OnlineFigures, OnlineResult, bench_online
from contextpilot_integrations.evaluation.bench.paired import MeanInterval, bootstrap_mean
from contextpilot_integrations.evaluation.bench.process import Interpreter, published_package
from contextpilot_integrations.evaluation.bench.quality import QualityResult, bench_quality
from contextpilot_integrations.evaluation.bench.quality_items import Selection, Variant, select_items

__all__ = [
    "BLOCKS",
    "BuildFigures",
    "BuildResult",
    "DisplacementPoint",
    "Interpreter",
    "MeanInterval",
    "OnlineFigures",
    "OnlineResult",
    "QualityResult",
    "Selection",
    "Variant",
    "bench_build",
    "bench_displacement",
    "bench_online",
    "bench_quality",
    "bootstrap_mean",
    "draw_contexts",
    "published_package",
    "select_items",
]
