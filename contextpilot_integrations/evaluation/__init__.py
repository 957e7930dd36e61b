"""Measuring context reuse: traces, a prefix-cache simulator, bounds and baselines."""

from contextpilot_integrations.evaluation.analysis import TraceAnalysis, analyze
from contextpilot_integrations.evaluation.baselines import longest_prefix_match, sort_by_frequency
from contextpilot_integrations.evaluation.bound import ReuseBound, reuse_bound
from contextpilot_integrations.evaluation.jsonl import TraceError, write_jsonl
from contextpilot_integrations.evaluation.prompt import SYSTEM_PROMPT, build_prompt, count_tokens, tokenize
from contextpilot_integrations.evaluation.simulator import (
    PAGE_SIZE,
    PrefixCache,
    SimulationResult,
    pages,
    parse_capacity,
    simulate,
    simulate_tokens,
)
from contextpilot_integrations.evaluation.traces import (
    PlanLine,
    TraceRequest,
    read_blocks,
    read_plan,
    read_trace,
)

__all__ = [
    "PAGE_SIZE",
    "SYSTEM_PROMPT",
    "PlanLine",
    "PrefixCache",
    "ReuseBound",
    "SimulationResult",
    "TraceAnalysis",
    "TraceError",
    "TraceRequest",
    "analyze",
    "build_prompt",
    "count_tokens",
    "longest_prefix_match",
    "pages",
    "parse_capacity",
    "read_blocks",
    "read_plan",
    "read_trace",
    "reuse_bound",
    "simulate",
    "simulate_tokens",
    "sort_by_frequency",
    "tokenize",
    "write_jsonl",
]
