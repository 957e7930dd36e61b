"""Measuring context reuse: traces, a prefix-cache simulator, bounds and baselines."""
