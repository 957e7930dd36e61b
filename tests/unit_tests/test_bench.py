import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from contextpilot_integrations import ContextBlock, ContextPilot
from contextpilot_integrations.cli import app
from contextpilot_integrations.evaluation import simulate
from contextpilot_integrations.evaluation.bench import (
    BLOCKS,
    BuildFigures,
    BuildResult,
    Interpreter,
    bench_build,
    bench_online,
    draw_contexts,
    online,
)
from contextpilot_integrations.evaluation.bench import build as build_module
from contextpilot_integrations.evaluation.bench.plots import plot_build, plot_online
from contextpilot_integrations.evaluation.bench.process import MeasurementError

PEER = Path(__file__).parents[2] / ".venv-peer" / "bin" / "python"
needs_peer = pytest.mark.skipif(
    not PEER.exists(), reason="make peer builds the published package's environment"
)


def run(*args):
    return CliRunner().invoke(app, ["bench", *map(str, args)])


def figures(*args):
    result = run(*args, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def planned_hit_ratio():
    contexts = [[ContextBlock(block) for block in context] for context in draw_contexts(60, 15)]
    batch = ContextPilot(capacity=None).prepare_batch(contexts)
    return simulate(batch.plans[place].block_ids for place in batch.schedule).hit_ratio


class TestDrawContexts:
    def test_the_same_on_every_run_and_machine(self):
        assert draw_contexts(2, 5) == [[202, 110, 10, 2, 19], [8, 132, 4, 15, 32]]

    def test_fewer_are_the_first_of_more(self):
        assert draw_contexts(20, 15) == draw_contexts(60, 15)[:20]
        assert draw_contexts(20, 15, seed=1) != draw_contexts(20, 15)

    @pytest.mark.parametrize("k", [1, 15, BLOCKS])
    def test_no_repeats_in_a_context(self, k):
        for context in draw_contexts(3, k):
            assert len(context) == len(set(context)) == k
            assert set(context) <= set(range(BLOCKS))

    def test_frequencies_follow_zipf(self):
        counts = Counter(block for [block] in draw_contexts(20_000, 1))
        harmonic = sum(1 / rank for rank in range(1, BLOCKS + 1))
        for block in (0, 1, 4, 9):
            assert counts[block] == pytest.approx(20_000 / harmonic / (block + 1), rel=0.15)


class TestBuild:
    def test_figures_and_types(self):
        result = figures("build", "--contexts", 60)
        assert {name: type(value) for name, value in result.items()} == {
            "seconds": float,
            "cpu_seconds": float,
            "peak_mib": float,
            "hit_ratio": float,
            "contexts": int,
            "k": int,
            "device": str,
            "window": type(None),
        }
        assert (result["contexts"], result["k"], result["device"]) == (60, 15, "cpu")
        assert result["hit_ratio"] == planned_hit_ratio()
        assert result["seconds"] > 0
        assert result["peak_mib"] > 50  # torch alone takes more

    def test_smaller_windows_are_forced(self):
        result = figures("build", "--contexts", 60, "--window", 10)
        assert result["window"] == 10
        assert 0 < result["hit_ratio"] != planned_hit_ratio()


class TestOnline:
    def test_figures_and_types(self):
        result = figures("online", "--contexts", 60)
        assert {name: type(value) for name, value in result.items()} == {
            "p50_ms": float,
            "p99_ms": float,
            "max_ms": float,
            "stored": int,
            "hit_ratio": float,
            "peak_mib": float,
            "requests": int,
            "k": int,
        }
        assert (result["stored"], result["requests"], result["k"]) == (60, 1000, 15)
        assert 0 < result["p50_ms"] <= result["p99_ms"] <= result["max_ms"]

    def measured(self, served, failure=None):
        """A stream whose n-th request takes n microseconds, and is sent as it came."""
        orders = draw_contexts(served, 15)
        times = [1000 * n for n in range(1, served + 1)]
        return {"nanoseconds": times, "orders": orders, "failure": failure, "peak_mib": 100.0}

    def test_latency_grows_with_what_is_stored(self, monkeypatch):
        monkeypatch.setattr(online, "measure", lambda *args, **kwargs: self.measured(3000))
        result = bench_online(2000, 15)
        assert [row.stored for row in result.ours.growth] == [250, 500, 1000, 2000]
        last = result.ours.latency
        assert (last.requests, last.p50_ms, last.p99_ms, last.max_ms) == (1000, 2.5, 2.99, 3.0)

    def test_where_the_published_package_fails_what_it_did_is_reported(self, monkeypatch, tmp_path):
        def measure(task, contexts, against=None):
            return self.measured(3000) if against is None else self.measured(600, "IndexError: out of range")

        monkeypatch.setattr(online, "measure", measure)
        result = bench_online(2000, 15, against=Interpreter("python", "0.5.0"))
        published = result.to_dict()
        assert published["published_failure"] == "after 600 requests: IndexError: out of range"
        assert published["published_stored"] == 300
        assert published["published_p50_ms"] == 0.45
        assert published["p50_ms_ratio"] == 0.45 / 2.5
        pytest.importorskip("matplotlib")
        plot_online(result, tmp_path / "online.png")
        assert (tmp_path / "online.png").stat().st_size > 1000

    def test_where_it_serves_nothing_there_are_no_figures(self, monkeypatch):
        def measure(task, contexts, against=None):
            if against is not None:
                raise MeasurementError("stopped after 900 s")
            return self.measured(1060)

        monkeypatch.setattr(online, "measure", measure)
        result = bench_online(60, 15, against=Interpreter("python", "0.5.0")).to_dict()
        assert result["published_failure"] == "stopped after 900 s"
        assert result["published_p50_ms"] is result["p50_ms_ratio"] is None


def test_orders_that_are_no_permutation_are_told(monkeypatch):
    def measure(task, contexts, against=None, **settings):
        orders = list(contexts) if against is None else [context[1:] for context in contexts]
        return {"seconds": 2.0, "cpu_seconds": 2.0, "peak_mib": 100.0, "orders": orders}

    monkeypatch.setattr(build_module, "measure", measure)
    result = bench_build(60, 15, against=Interpreter("python", "0.5.0"))
    assert result.published is None
    assert result.failure == "what was planned is not a permutation of what was given"


def test_a_picture_of_builds(tmp_path):
    pytest.importorskip("matplotlib")
    small = BuildResult(
        100, 15, "cpu", None, BuildFigures(0.1, 0.2, 200, 0.3), "0.5.0", BuildFigures(1, 2, 90, 0.3)
    )
    plot_build([small, replace(small, contexts=200, published=None)], tmp_path / "build.svg")
    assert "contextpilot 0.5.0" in (tmp_path / "build.svg").read_text()


@needs_peer
class TestAgainstThePublishedPackage:
    def test_build(self):
        result = figures("build", "--contexts", 60, "--against", PEER)
        assert result["published_version"] == "0.5.0"
        assert result["published_failure"] is None
        for name in ("seconds", "peak_mib", "hit_ratio"):
            assert result[f"{name}_ratio"] == result[f"published_{name}"] / result[name] > 0

    def test_online(self):
        result = figures("online", "--contexts", 60, "--k", 5, "--against", PEER)
        assert result["published_stored"] <= 60
        for name in ("p50_ms", "p99_ms", "hit_ratio"):
            assert result[f"{name}_ratio"] == result[f"published_{name}"] / result[name] > 0


@pytest.mark.parametrize("command", ["build", "online"])
@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["--k", BLOCKS + 1], "k must be from 1 to 600"),
        (["--k", 0], "k must be from 1 to 600"),
        (["--contexts", 0], "contexts must be at least 1"),
        (["--against", "missing-python"], "cannot run 'missing-python'"),
        (["--against", sys.executable], "No module named 'contextpilot'"),
        (["--plot", "missing/picture.png"], "there is no folder missing"),
        (["--plot", "picture.txt"], "must end in one of"),
    ],
)
def test_bad_input_exits_with_2_and_one_line(command, args, reason):
    if "--plot" in args:
        pytest.importorskip("matplotlib")
    result = run(command, *args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert reason in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_window_holds_at_least_one_context():
    result = run("build", "--window", 0)
    assert (result.exit_code, result.stderr) == (2, "contextpilot: window must be at least 1, not 0\n")


class TestDisplacement:
    def test_the_curve_starts_at_the_original_order_and_ends_free(self, tmp_path):
        trace = tmp_path / "trace.jsonl"
        contexts = draw_contexts(60, 9)
        trace.write_text("".join(f'{{"query_id": {n}, "block_ids": {c}}}\n' for n, c in enumerate(contexts)))
        result = CliRunner().invoke(app, ["bench", "displacement", "--trace", str(trace), "--json"])
        points = json.loads(result.stdout)["points"]
        assert [point["max_displacement"] for point in points] == [0, 1, 2, 4, 8, None]
        assert points[0]["online"] == points[0]["offline"] == simulate(contexts).hit_ratio
        assert points[-2]["online"] == points[-1]["online"] > points[0]["online"]
        assert points[-1]["offline"] > points[-1]["online"]

    def test_the_picture_is_drawn(self, tmp_path):
        pytest.importorskip("matplotlib")
        picture = tmp_path / "displacement.png"
        options = ["--contexts", "30", "--k", "5", "--plot", str(picture)]
        result = CliRunner().invoke(app, ["bench", "displacement", *options])
        assert (result.exit_code, result.stderr) == (0, "")
        assert "any" in result.stdout
        assert picture.read_bytes().startswith(b"\x89PNG")
