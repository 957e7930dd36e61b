import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from contextpilot_integrations.cli import app

CONTEXTS = [[2, 1, 3], [9, "9"], [2, 6, 1], [], [4, 1, 4, 0]]
BODY = {
    "model": "m",
    "contextpilot": {"blocks": [{"id": "a", "text": "Alpha."}], "tenant": "acme"},
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Alpha. Why?"}],
    "temperature": 0,
}


def run(*args, stdin=None):
    return CliRunner().invoke(app, [str(arg) for arg in args], input=stdin)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.jsonl"
    rows = [{"query_id": f"q{n}", "query": f"Why {n}?", "block_ids": c} for n, c in enumerate(CONTEXTS)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "blocks.jsonl"
    ids = dict.fromkeys(id for context in CONTEXTS for id in context)
    path.write_text("".join(json.dumps({"id": id, "text": f"text {id} " * 30}) + "\n" for id in ids))
    return path


class TestAlign:
    @pytest.mark.parametrize("mode", ["offline", "online"])
    @pytest.mark.parametrize("capacity", [None, "3", "50%"])
    @pytest.mark.parametrize("with_texts", [False, True])
    def test_every_request_is_planned_once_and_keeps_its_blocks(
        self, trace, texts, tmp_path, mode, capacity, with_texts
    ):
        options = ["--blocks", texts] if with_texts else []
        options += ["--capacity", capacity] if capacity else []
        output = tmp_path / "plan.jsonl"
        result = run("align", trace, "--mode", mode, *options, "-o", output)
        assert (result.exit_code, result.stdout) == (0, "")
        plan = lines(output)
        assert sorted(line["position"] for line in plan) == [0, 1, 2, 3, 4]
        for line in plan:
            context = CONTEXTS[line["position"]]
            assert line["query_id"] == f"q{line['position']}"
            assert len(line["block_ids"]) == len(set(context))
            assert set(line["block_ids"]) == set(context)
        if mode == "online":
            assert [line["position"] for line in plan] == [0, 1, 2, 3, 4]

    def test_a_plan_line(self, trace, tmp_path):
        run("align", trace, "--mode", "online", "-o", tmp_path / "plan.jsonl")
        assert lines(tmp_path / "plan.jsonl")[2] == {
            "query_id": "q2",
            "position": 2,
            "block_ids": [2, 1, 6],
            "search_path": [0, 1],
            "expected_cached_blocks": 2,
            "order_annotation": (
                "Please read the context in the following priority order: [CB_2] > [CB_6] > [CB_1] "
                "and answer the question."
            ),
            "query": "Why 2?",
        }

    def test_what_was_served_before_is_cached(self, trace, tmp_path):
        before = tmp_path / "before.jsonl"
        before.write_text('{"query_id": "w", "block_ids": [0, 4, 1]}\n')
        run("align", trace, "--warm", before, "-o", tmp_path / "plan.jsonl")
        plan = {line["position"]: line for line in lines(tmp_path / "plan.jsonl")}
        assert plan[4]["block_ids"] == [0, 4, 1]
        assert plan[4]["expected_cached_blocks"] == 3

    def test_a_dash_is_standard_input_and_output(self, trace):
        result = run("align", "-", "-o", "-", stdin=trace.read_text())
        assert [json.loads(line)["position"] for line in result.stdout.splitlines()] == [3, 0, 2, 4, 1]

    def test_ties_are_broken_alike_in_every_process(self, tmp_path):
        trace = tmp_path / "ties.jsonl"
        # Every two contexts are equally far from each other.
        rows = [{"query_id": f"{n}", "block_ids": [f"a{n}", "all", f"b{n}", "too"]} for n in range(30)]
        trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
        code = "from contextpilot_integrations.cli import app; app()"
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", code, "align", str(trace), "-o", "-"],
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONHASHSEED": seed},
            )
            for seed in ("1", "2")
        ]
        plans = {process.communicate()[0] for process in processes}
        assert plans == {run("align", trace, "-o", "-").stdout}

    @pytest.mark.parametrize("capacity", ["10%", "5"])
    def test_an_empty_trace_is_an_empty_plan(self, tmp_path, capacity):
        (tmp_path / "empty.jsonl").write_text("")
        result = run("align", tmp_path / "empty.jsonl", "--capacity", capacity, "-o", "-")
        assert (result.exit_code, result.stdout) == (0, "")

    def test_a_reader_that_leaves_early_is_no_error(self, trace):
        code = "from contextpilot_integrations.cli import app; app()"
        command = [sys.executable, "-c", code, "align", str(trace), "-o", "-"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        process.stdout.close()
        assert (process.wait(), process.stderr.read()) == (0, "")


class TestSimulate:
    def test_a_plan_hits_more_than_its_trace(self, trace, tmp_path):
        output = tmp_path / "plan.jsonl"
        run("align", trace, "-o", output)
        original = json.loads(run("simulate", trace, "--json").stdout)
        planned = json.loads(run("simulate", output, "--json").stdout)
        assert original == {"hit_ratio": 1 / 12, "hits": 1, "blocks": 12, "capacity": None, "unit": "blocks"}
        assert planned["hits"] == sum(line["expected_cached_blocks"] for line in lines(output)) == 3

    def test_capacity(self, trace):
        assert json.loads(run("simulate", trace, "--capacity", "50%", "--json").stdout)["capacity"] == 6

    def test_tokens_of_the_whole_prompt(self, trace, texts):
        pytest.importorskip("bpe_openai")
        result = run("simulate", trace, "--unit", "tokens", "--blocks", texts, "--json")
        figures = json.loads(result.stdout)
        assert figures["unit"] == "tokens"
        assert figures["tokens"] > figures["hits"] > 0

    def test_figures_for_people(self, trace):
        assert "hit_ratio  0.0833" in run("simulate", trace).stdout


def test_analyze(trace):
    figures = json.loads(run("analyze", trace, "--json").stdout)
    assert (figures["requests"], figures["accesses"], figures["distinct_blocks"]) == (5, 11, 8)
    assert "bound_offline" in run("analyze", trace).stdout


def call(path):
    function = {"name": "read_file", "arguments": json.dumps({"path": path})}
    return {"id": path, "type": "function", "function": function}


class TestRewrite:
    @pytest.fixture(autouse=True)
    def needs_a_tokenizer(self):
        pytest.importorskip("bpe_openai")

    def test_a_body_keeps_its_fields_and_their_order(self, tmp_path):
        (tmp_path / "in.jsonl").write_text(json.dumps(BODY) + "\n" + '{"messages": []}\n')
        result = run("rewrite", tmp_path / "in.jsonl", "-o", tmp_path / "out.jsonl")
        assert (result.exit_code, result.stdout) == (0, "")
        sent, empty = lines(tmp_path / "out.jsonl")
        assert [*sent] == [*BODY]
        assert [*empty] == ["messages", "contextpilot"]
        assert {**sent, "contextpilot": None} == {**BODY, "contextpilot": None}
        assert sent["contextpilot"] == {
            "tokens_before": 7,
            "tokens_after": 7,
            "blocks_replaced": 0,
            "passages_replaced": 0,
            "aligned": False,
            "changes": [],
        }

    def test_what_stands_before_is_left_out_and_the_report_says_where(self):
        text = "".join(
            f"Clause {number} binds both parties to the clauses before it.\n" for number in range(9)
        )
        files = [
            {"role": "user", "content": "Compare the files."},
            {"role": "assistant", "content": None, "tool_calls": [call("a.txt"), call("b.txt")]},
            {"role": "tool", "tool_call_id": "a.txt", "content": f"Contract A\n{text}"},
            {"role": "tool", "tool_call_id": "b.txt", "content": f"Contract B\n{text}"},
        ]
        more = [{"role": "assistant", "content": "They agree."}, {"role": "user", "content": "Sure?"}]
        given = "".join(json.dumps({"messages": messages}) + "\n" for messages in (files, files + more))
        first, second = map(json.loads, run("rewrite", "-", "-o", "-", stdin=given).stdout.splitlines())
        assert second["messages"][:4] == first["messages"]
        report = first["contextpilot"]
        assert report["tokens_after"] < report["tokens_before"]
        assert (report["passages_replaced"], report["blocks_replaced"], report["aligned"]) == (1, 0, False)
        [change] = report["changes"]
        assert change["kind"] == "passage"

        def shown(place):
            return first["messages"][place["message"]]["content"][place["start"] : place["end"]]

        assert shown(change["place"]).startswith("[lines 2-10 of a.txt, shown above")
        assert shown(change["source"]) == text.rstrip()

    def test_what_the_caller_knows_is_aligned(self):
        blocks = [{"id": id, "text": f"All that is known of {id}."} for id in ("one", "two", "three")]

        def body(*chosen):
            known = [blocks[place] for place in chosen]
            content = "\n\n".join([*(block["text"] for block in known), "Why?"])
            messages = [{"role": "user", "content": content}]
            return json.dumps({"messages": messages, "contextpilot": {"blocks": known}}) + "\n"

        result = run("rewrite", "-", "-o", "-", stdin=body(0, 1) + body(1, 2, 0))
        first, second = map(json.loads, result.stdout.splitlines())
        assert (first["contextpilot"]["aligned"], second["contextpilot"]["aligned"]) == (False, True)
        assert second["messages"][0]["content"].startswith(first["messages"][0]["content"][:-4])

    def test_a_dash_is_standard_input_and_output(self):
        sent = run("rewrite", "-", "-o", "-", stdin=json.dumps(BODY) + "\n").stdout
        assert json.loads(sent)["messages"] == BODY["messages"]
        assert run("rewrite", "-", "-o", "-", stdin=sent).stdout == sent

    @pytest.mark.parametrize(
        ("line", "reason"),
        [
            ("not json", "<stdin>:2: not JSON"),
            ("[]", "<stdin>:2: not a JSON object"),
            ('{"messages": [], "top_p": NaN}', "<stdin>:2: not JSON (NaN is no number of JSON)"),
            ('{"messages": [], "top_p": -Infinity}', "<stdin>:2: not JSON (-Infinity is no"),
            ('{"messages": [], "top_p": 1e999}', "<stdin>:2: not JSON ('1e999' is beyond"),
            ("{}", '<stdin>:2: there is no "messages"'),
            ('{"messages": [{"content": "x"}]}', '<stdin>:2: message 0 has no "role"'),
            ('{"messages": [{"role": "user", "content": 7}]}', "<stdin>:2: the content of message 0 must be"),
            ('{"messages": [], "contextpilot": {"blocks": [7]}}', '<stdin>:2: "blocks" must hold objects'),
        ],
    )
    def test_bad_input_names_the_line_and_nothing_is_written(self, line, reason):
        result = run("rewrite", "-", "-o", "-", stdin=json.dumps(BODY) + f"\n{line}\n")
        assert (result.exit_code, result.stdout) == (2, "")
        assert reason in result.stderr
        assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "args",
    [
        ["align", "TRACE", "-o", "TRACE"],
        ["align", "OTHER", "--warm", "TRACE", "-o", "LINK"],
        ["align", "OTHER", "--blocks", "LINK", "-o", "TRACE"],
        ["rewrite", "LINK", "-o", "TRACE"],
    ],
)
def test_what_is_read_is_not_overwritten(trace, texts, tmp_path, args):
    (tmp_path / "link.jsonl").symlink_to(trace)
    given = trace.read_bytes()
    names = {"TRACE": trace, "LINK": tmp_path / "link.jsonl", "OTHER": texts}
    result = run(*(names.get(arg, arg) for arg in args))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "is read and would be overwritten; name another file" in result.stderr
    assert result.stderr.count("\n") == 1
    assert trace.read_bytes() == given


def test_nor_is_what_comes_by_standard_input(trace):
    given = trace.read_bytes()
    code = "from contextpilot_integrations.cli import app; app()"
    with trace.open() as stdin:
        command = [sys.executable, "-c", code, "rewrite", "-", "-o", str(trace)]
        process = subprocess.run(command, stdin=stdin, capture_output=True, text=True)
    assert (process.returncode, process.stdout) == (2, "")
    assert "is read and would be overwritten; name another file" in process.stderr
    assert trace.read_bytes() == given


def test_a_plan_may_replace_an_older_one(trace, tmp_path):
    (tmp_path / "plan.jsonl").write_text("an older one\n")
    assert run("align", trace, "-o", tmp_path / "plan.jsonl").exit_code == 0
    assert len(lines(tmp_path / "plan.jsonl")) == len(CONTEXTS)


class TestDemo:
    @pytest.fixture(autouse=True)
    def only_what_every_run_needs(self, monkeypatch):
        for package in ("bm25s", "langchain_openai", "matplotlib", "openai"):
            pytest.importorskip(package)
        for package in ("gguf", "xllamacpp"):
            monkeypatch.setitem(sys.modules, package, None)

    def test_ones_own_server_needs_no_llama_cpp(self, monkeypatch):
        runs = []
        monkeypatch.setattr("contextpilot_integrations.demo.run.run_demo", lambda **given: runs.append(given))
        result = run("demo", "--base-url", "http://localhost/v1", "--model", "m", "-o", "there")
        assert (result.exit_code, result.stderr) == (0, "")
        assert runs == [{"base_url": "http://localhost/v1", "model": "m", "output": Path("there")}]

    def test_the_demos_own_server_does(self, tmp_path):
        result = run("demo", "-o", tmp_path)
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert "the demo needs xllamacpp" in result.stderr


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["align", "missing.jsonl", "-o", "-"], "missing.jsonl"),
        (["align", "BAD", "-o", "-"], "bad.jsonl:2"),
        (["simulate", "BAD"], "bad.jsonl:2"),
        (["analyze", "BAD"], "bad.jsonl:2"),
        (["align", "NAN", "-o", "-"], "nan.jsonl:1: not JSON (NaN is no number of JSON)"),
        (["simulate", "NAN"], "nan.jsonl:1: not JSON (NaN is no number of JSON)"),
        (["align", "TRACE", "-o", "missing/plan.jsonl"], "missing/plan.jsonl"),
        (["align", "TRACE", "-o", "-", "--capacity", "many"], "capacity must be"),
        (["align", "TRACE", "-o", "-", "--capacity", "0"], "--capacity 0 is 0 blocks"),
        (["align", "TRACE", "-o", "-", "--capacity", "1%"], "--capacity 1% is 0 blocks"),
        (["align", "TRACE", "-o", "-", "--max-displacement", "-1"], "max_displacement must be at least 0"),
        (["simulate", "TRACE", "--unit", "tokens"], "--unit tokens needs --blocks"),
        (["demo", "--model", "m"], "--base-url and --model go together"),
    ],
)
def test_bad_input_exits_with_2_and_one_line(trace, tmp_path, args, reason):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"query_id": "a", "block_ids": [1]}\nnot json\n')
    nan = tmp_path / "nan.jsonl"
    nan.write_text('{"query_id": "a", "block_ids": [1], "score": NaN}\n')
    result = run(*({"BAD": bad, "NAN": nan, "TRACE": trace}.get(arg, arg) for arg in args))
    assert (result.exit_code, result.stdout) == (2, "")
    assert reason in result.stderr
    assert result.stderr.count("\n") == 1
