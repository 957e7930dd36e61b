import json

import pytest
from typer.testing import CliRunner

from contextpilot_integrations.cli import app
from contextpilot_integrations.edits import Edit, EditKind, Place, Rewriting
from contextpilot_integrations.evaluation.bench import dedup
from contextpilot_integrations.evaluation.bench.process import MeasurementError
from contextpilot_integrations.evaluation.bench.quantiles import nearest_rank
from contextpilot_integrations.evaluation.conversations import Conversation

pytest.importorskip("bpe_openai")

FILE = "".join(f"Clause {n} binds both parties to what the clauses before it say.\n" for n in range(20))


def read(path, text):
    call = {
        "id": path,
        "type": "function",
        "function": {"name": "read_file", "arguments": f'{{"path": "{path}"}}'},
    }
    return [
        {"role": "user", "content": f"Read {path}."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": path, "content": text},
        {"role": "assistant", "content": f"I have read {path}."},
    ]


TWICE = Conversation("twice", (*read("a.txt", FILE), *read("b.txt", FILE)))
OTHER = Conversation("other", tuple(read("c.txt", "Something else.\n")))


def shorten(messages, *, pilot):
    """A rewriting that leaves out the second text whole."""
    if len(messages) < 7:
        return Rewriting(list(messages))
    sent = [*messages]
    sent[6] = {**messages[6], "content": "See a.txt."}
    edit = Edit(EditKind.BLOCK, Place(6, None, 0, 10), FILE, Place(2, None, 0, len(FILE)))
    return Rewriting(sent, (edit,))


def tokens(*messages):
    return sum(map(dedup._length, messages))


class TestBenchDedup:
    def test_figures(self, monkeypatch):
        monkeypatch.setattr(dedup, "rewrite", shorten)
        steps = []
        result = dedup.bench_dedup("two", [TWICE, OTHER], on_rewritten=lambda: steps.append(1))
        assert (result.trace, result.requests, len(steps)) == ("two", 6, 6)
        saved = tokens({"content": FILE}) - tokens({"content": "See a.txt."})
        given = [
            tokens(*one.messages[:end])
            for one, ends in ((TWICE, (1, 3, 5, 7)), (OTHER, (1, 3)))
            for end in ends
        ]
        assert result.tokens == dedup.BeforeAndAfter(sum(given), sum(given) - saved)
        assert result.p99_tokens == dedup.BeforeAndAfter(given[3], given[3] - saved)
        assert result.mean_saving == pytest.approx(saved / given[3] / 6)
        # Every prompt continues the one before it in its session: each token is new once.
        assert result.uncached_tokens == dedup.BeforeAndAfter(
            given[3] + given[5], given[3] + given[5] - saved
        )
        assert (result.longer, result.blocks, result.passages) == (0, 1, 0)
        assert 0 < result.p50_ms <= result.p99_ms

    def test_a_longer_request_is_told(self, monkeypatch):
        def lengthen(messages, *, pilot):
            message = {**messages[0], "content": f"{messages[0]['content']} Please."}
            start, end = len(messages[0]["content"]), len(message["content"])
            edit = Edit(EditKind.ORDER_ANNOTATION, Place(0, None, start, end), "")
            return Rewriting([message, *messages[1:]], (edit,))

        monkeypatch.setattr(dedup, "rewrite", lengthen)
        result = dedup.bench_dedup("longer", [TWICE])
        assert result.longer == result.requests == 4
        assert result.tokens.saving < 0

    @pytest.mark.parametrize(
        ("rewrite", "reason"),
        [
            (
                lambda messages, *, pilot: Rewriting([*messages[:-1], {"role": "user", "content": "?"}]),
                "two, session twice: the original of request 0 does not come back",
            ),
            (
                lambda messages, *, pilot: (
                    shorten(messages, pilot=pilot) if len(messages) == 7 else Rewriting([*messages])
                ),
                "two, session twice: request 4 changes a message that was sent before",
            ),
        ],
    )
    def test_a_broken_promise_is_no_result(self, monkeypatch, rewrite, reason):
        monkeypatch.setattr(dedup, "rewrite", rewrite)
        longer = Conversation("twice", (*TWICE.messages, *read("c.txt", "x\n")))
        with pytest.raises(MeasurementError, match=reason):
            dedup.bench_dedup("two", [longer])


class TestShared:
    def test_up_to_the_first_token_that_differs(self):
        earlier = [{"role": "user", "content": "one two"}, {"role": "user", "content": "three four five"}]
        later = [
            earlier[0],
            {"role": "user", "content": "three four six"},
            {"role": "user", "content": "one"},
        ]
        assert dedup._shared(earlier, later) == 4
        assert dedup._shared(earlier[:1], later) == 2
        assert dedup._shared([], later) == 0

    def test_another_role_is_another_message(self):
        assert dedup._shared([{"role": "user", "content": "a"}], [{"role": "tool", "content": "a"}]) == 0


def test_nearest_rank():
    assert [nearest_rank(range(1, 101), share) for share in (0.5, 0.99, 1)] == [50, 99, 100]
    assert nearest_rank([7], 0.5) == 7
    with pytest.raises(ValueError, match="no values"):
        nearest_rank([], 0.5)


class TestCommand:
    @pytest.fixture
    def data(self, tmp_path):
        """A folder with one small session in each trace."""
        turns = [
            {"query_id": f"q{n}", "session_id": "s", "query": "Read a.txt.", "block_ids": ["a"]}
            for n in range(2)
        ]
        said = [{"role": role, "block_id": role} for role in ("user", "assistant")]
        traces = {"clawtasks": turns, "taubench_airline": [{"session_id": "s", "messages": said}]}
        traces |= dict.fromkeys(dedup._CHATS, turns)
        texts = {"clawtasks": ["a"], "mtrag_cloud": ["a"], "taubench_airline": ["user", "assistant"]}
        files = {f"traces/{name}": rows for name, rows in traces.items()}
        files |= {f"blocks/{name}": [{"id": id, "text": FILE} for id in ids] for name, ids in texts.items()}
        for name, rows in files.items():
            path = tmp_path / f"{name}.jsonl"
            path.parent.mkdir(exist_ok=True)
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return tmp_path

    def run(self, *args):
        return CliRunner().invoke(app, ["bench", "dedup", *map(str, args)])

    def test_figures(self, data):
        result = self.run("--data", data, "--json")
        assert result.exit_code == 0, result.stderr
        figures = json.loads(result.stdout.splitlines()[-1])
        traces = {row["trace"]: row for row in figures.pop("traces")}
        assert len(traces) == 9
        assert traces["clawtasks S=0 A=300"]["requests"] == 4
        assert traces["mtrag_cloud_bge_rewrite_k10 A=100"]["requests"] == 2
        assert traces["taubench_airline"]["tokens_before"] > 100
        assert figures["first_by_hash"] == figures["first_ms"] / figures["hash_ms"]
        assert all(value > 0 for value in figures.values())

    def test_figures_for_people(self, data):
        table, _, speed = self.run("--data", data).stdout.partition("\n\n")
        assert len(table.splitlines()) == 10
        assert "first_by_hash" in speed

    def test_a_missing_trace_is_named(self, data):
        (data / "traces" / "clawtasks.jsonl").unlink()
        result = self.run("--data", data)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "clawtasks.jsonl: cannot be read" in result.stderr

    def test_a_broken_promise_fails(self, data, monkeypatch):
        monkeypatch.setattr(dedup, "rewrite", lambda messages, *, pilot: Rewriting([*messages[:-1]]))
        result = self.run("--data", data)
        assert (result.exit_code, result.stdout) == (1, "")
        assert "does not come back" in result.stderr
