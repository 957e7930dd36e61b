"""`contextpilot bench engine`: what is asked, and what is refused before anything is started."""

import sys

import pytest
from typer.testing import CliRunner

from contextpilot_integrations import ContextBlock, ContextPilot
from contextpilot_integrations.cli import app
from contextpilot_integrations.evaluation import simulate
from contextpilot_integrations.evaluation.bench.engine_requests import (
    engine_requests,
    prompt_parts,
    without_overlap,
)
from contextpilot_integrations.evaluation.bench.engine_result import Sample
from contextpilot_integrations.evaluation.bench.engine_server import GivenServer
from contextpilot_integrations.evaluation.traces import TraceRequest

pytest.importorskip("openai")


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.jsonl"
    lines = [
        f'{{"query_id": {n}, "query": "{n}?", "blocks": [{{"id": {n}, "text": "one {n}"}}, '
        '{"id": "x", "text": "shared by all"}]}\n'
        for n in range(4)
    ]
    path.write_text("".join(lines))
    return path


def run(*args):
    return CliRunner().invoke(app, ["bench", "engine", *map(str, args)])


def test_the_first_requests_with_texts_cut(trace):
    asked = engine_requests(str(trace), None, requests=2, max_chars=5)
    assert [request.query_id for request in asked] == [0, 1]
    assert asked[1].blocks == (ContextBlock(1, "one 1"), ContextBlock("x", "share"))


def test_without_overlap_no_two_blocks_begin_alike(trace):
    asked = engine_requests(str(trace), None, requests=4, max_chars=50, overlap=False)
    blocks = [block for request in asked for block in request.blocks]
    assert len({block.text for block in blocks}) == len({block.label for block in blocks}) == 8
    assert blocks[3].text == "1.1 shared by all"
    batch = ContextPilot().prepare_batch([request.blocks for request in asked])
    assert simulate([plan.blocks for plan in batch.plans]).hits == 0


def test_a_cut_text_stays_apart(trace):
    asked = engine_requests(str(trace), None, requests=4, max_chars=4, overlap=False)
    assert len({block.text for request in asked for block in request.blocks}) == 8


def test_what_two_prompts_may_share():
    first, second = ContextBlock(1, "a"), ContextBlock(2, "b")
    request = TraceRequest(0, 0, 0, "Why?", (first, second))
    assert list(prompt_parts(request)) == [first, second, frozenset([first, second]), "Why?"]
    assert prompt_parts(request)[first] == "[CB_1] a\n\n"
    assert prompt_parts(TraceRequest(0, 0, 0, None, ())) == {}
    [apart] = without_overlap([request])
    assert not prompt_parts(apart).keys() & {first, second}


def test_the_turns_of_others_do_not_count(monkeypatch):
    from contextpilot_integrations.evaluation.bench import engine_passes

    now = 0.0
    monkeypatch.setattr(engine_passes.time, "perf_counter", lambda: now)

    class Pass:
        """Plans, and then sends one request after another, the last one first."""

        def __init__(self, planning, each):
            self.planning, self.each = planning, each

        def turns(self, requests):
            nonlocal now
            now += self.planning
            for place in reversed(range(len(requests))):
                now += self.each
                yield place, Sample(ttft=self.each, cached_tokens=place)

    answered = []
    one, other = engine_passes.take_turns([Pass(0, 1), Pass(5, 10)], ["a", "b", "c"], answered.append)
    assert one == ([Sample(ttft=1, cached_tokens=place) for place in range(3)], 3)
    assert other == ([Sample(ttft=10, cached_tokens=place) for place in range(3)], 35)
    assert answered == [1] * 6


def test_no_two_passes_on_a_given_server_begin_alike():
    one, other = GivenServer("http://localhost/v1", "m"), GivenServer("http://localhost/v1", "m")
    prompts = [server.cold() for server in (one, one, other)]
    assert len({prompt.partition("\n")[0] for prompt in prompts}) == 3


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["--requests", 0], "--requests must be at least 1"),
        (["--max-chars", 0], "--max-chars must be at least 1"),
        (["--sessions", 0], "--sessions must be at least 1"),
        (["--repeats", 0], "--repeats must be at least 1"),
        (["--base-url", "http://127.0.0.1:9/v1"], "--base-url and --model go together"),
        (["--model", "m"], "--base-url and --model go together"),
        (["--python", sys.executable, "--base-url", "http://127.0.0.1:9/v1", "--model", "m"], "--python and"),
        (["--cache-share", 0.1, "--base-url", "http://127.0.0.1:9/v1", "--model", "m"], "--cache-share are"),
        (["--events", "--base-url", "http://127.0.0.1:9/v1", "--model", "m"], "leave out --base-url"),
        (["--base-url", "http://127.0.0.1:9/v1", "--model", "m"], "http://127.0.0.1:9/v1: "),
        (["--python", "missing-python"], "cannot run 'missing-python'"),
        (["--cache-share", 1.5, "--python", sys.executable], "--python"),
        (["--blocks", "missing.jsonl"], "missing.jsonl"),
        (["--plot", "missing/picture.png"], "there is no folder missing"),
    ],
)
def test_bad_input_exits_with_2_and_one_line(trace, args, reason):
    if "--plot" in args:
        pytest.importorskip("matplotlib")
    result = run("--trace", trace, *args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert reason in result.stderr
    assert result.stderr.count("\n") == 1


def test_texts_without_a_trace_are_refused():
    result = run("--blocks", "blocks.jsonl")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "give both" in result.stderr


@pytest.mark.parametrize(
    ("lines", "reason"),
    [("", "has no requests with blocks"), ('{"query_id": 1, "block_ids": [1]}\n', "give their texts")],
)
def test_a_trace_with_nothing_to_send_is_refused(trace, lines, reason):
    trace.write_text(lines)
    result = run("--trace", trace)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert reason in result.stderr


def test_an_environment_without_vllm_is_told_how_to_get_it(trace, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("--trace", trace)
    if result.exit_code == 0:
        pytest.skip("vLLM is here")
    assert result.exit_code == 2
    assert "make test-engines" in result.stderr
