"""`contextpilot bench adapters`."""

import json
import sys

import pytest
from typer.testing import CliRunner

from contextpilot_integrations.cli import app
from contextpilot_integrations.evaluation.bench.adapters import AdapterLatency, bench_adapters

ADAPTERS = {
    "langchain.ContextPilotRetriever",
    "langchain.ContextPilotAligner",
    "llama_index.ContextPilotRetriever",
    "llama_index.ContextPilotPostprocessor",
    "mem0.ContextPilotMemory",
    "mem0.ContextPilotMemory.turn_context",
    "openai.Completions",
}


def test_what_is_left_is_the_adapters():
    latency = AdapterLatency("an.Adapter", 20, ours_ms=2.0, plain_ms=0.5, core_ms=0.25)
    assert latency.overhead_ms == 1.25
    assert latency.to_dict()["overhead_ms"] == 1.25


def test_every_adapter_is_measured_with_planning_and_without():
    steps = []
    results = bench_adapters(3, 4, on_measured=lambda: steps.append(1))
    assert {result.adapter for result in results} == ADAPTERS
    assert len(steps) == len(ADAPTERS)
    for result in results:
        assert result.k == 4
        assert min(result.core_ms, result.ours_ms) > 0
        # Without these there would be no step at all.
        assert (result.plain_ms == 0) == result.adapter.endswith(("Aligner", "Postprocessor", "Completions"))


def test_an_ecosystem_that_is_not_installed_is_passed_over(monkeypatch):
    monkeypatch.setitem(sys.modules, "langchain_core.documents", None)
    assert {result.adapter for result in bench_adapters(1, 2)} == {
        name for name in ADAPTERS if not name.startswith("langchain")
    }


def test_the_command():
    result = CliRunner().invoke(app, ["bench", "adapters", "--requests", "2", "--k", "3", "--json"])
    assert {row["adapter"] for row in json.loads(result.stdout)["adapters"]} == ADAPTERS
    assert "overhead_ms" in CliRunner().invoke(app, ["bench", "adapters", "--requests", "2"]).stdout


@pytest.mark.parametrize("option", [["--requests", "0"], ["--k", "0"], ["--k", "601"]])
def test_numbers_out_of_range_are_refused(option):
    result = CliRunner().invoke(app, ["bench", "adapters", *option])
    assert result.exit_code == 2
    assert "must be" in result.stderr
