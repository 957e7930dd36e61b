import io
import json

import pytest

from contextpilot_integrations.block import ContextBlock
from contextpilot_integrations.evaluation.jsonl import TraceError, write_jsonl
from contextpilot_integrations.evaluation.traces import (
    PlanLine,
    TraceRequest,
    read_blocks,
    read_plan,
    read_trace,
)


@pytest.fixture
def trace(tmp_path):
    """Write a file of these lines; return its path."""

    def write(*lines, name="trace.jsonl"):
        path = tmp_path / name
        raw = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
        path.write_bytes(b"".join(line + b"\n" for line in raw))
        return path

    return write


def test_a_request_is_read_with_all_its_fields(trace):
    path = trace(
        {"query_id": "q7", "session_id": "s", "turn": 2, "query": "Who?", "block_ids": ["b", 3, [1, "x"]]}
    )
    blocks = (ContextBlock("b"), ContextBlock(3), ContextBlock((1, "x")))
    assert read_trace(path) == [TraceRequest("q7", "s", 2, "Who?", blocks)]


def test_only_the_query_id_and_the_blocks_are_needed(trace):
    path = trace(
        {"query_id": 7, "block_ids": []}, {"query_id": "q8", "session_id": None, "query": None, "blocks": []}
    )
    assert read_trace(path) == [TraceRequest(7, 7, 0, None, ()), TraceRequest("q8", "q8", 0, None, ())]


def test_an_answer_is_a_string_or_several_of_which_any_will_do(trace):
    path = trace(
        {"query_id": 1, "answer": "9 crowns", "block_ids": []},
        {"query_id": 2, "answer": ["9 crowns", "nine"], "block_ids": []},
        {"query_id": 3, "answer": None, "block_ids": []},
    )
    assert [request.answers for request in read_trace(path)] == [("9 crowns",), ("9 crowns", "nine"), ()]


def test_texts_come_with_the_line_or_from_the_blocks_file(trace):
    path = trace(
        {"query_id": "q1", "block_ids": ["b", "a"]},
        {"query_id": "q2", "blocks": [{"id": "a", "text": "another alpha"}]},
    )
    texts = trace(
        {"id": "a", "text": "alpha", "role": "tool"}, {"id": "b", "text": "beta"}, name="blocks.jsonl"
    )
    first, second = read_trace(path, texts)
    assert [block.text for block in first.blocks] == ["beta", "alpha"]
    assert [block.text for block in second.blocks] == ["another alpha"]


def test_the_same_id_with_another_text_is_another_block(trace):
    named = {"query_id": "q1", "block_ids": ["a"]}
    inline = {"query_id": "q2", "blocks": [{"id": "a", "text": "alpha"}, {"id": "a", "text": "beta"}]}
    assert [block.text for request in read_trace(trace(named, inline)) for block in request.blocks] == [
        "",
        "alpha",
        "beta",
    ]


def test_byte_order_mark_windows_line_ends_and_blank_lines_are_accepted(trace):
    path = trace(
        b'\xef\xbb\xbf{"query_id": "q1", "block_ids": ["\xc3\xa9"]}\r',
        b"\r",
        b'{"query_id": "q2", "block_ids": [1]}\r',
    )
    assert [request.blocks for request in read_trace(path)] == [(ContextBlock("é"),), (ContextBlock(1),)]


def test_an_empty_file_is_an_empty_list(trace):
    assert read_trace(trace()) == []
    assert read_plan(trace()) == []


def test_a_dash_is_standard_input(monkeypatch):
    stdin = io.TextIOWrapper(io.BytesIO(b'{"query_id": "q1", "block_ids": [1]}\nnonsense\n'))
    monkeypatch.setattr("sys.stdin", stdin)
    with pytest.raises(TraceError, match=r"^<stdin>:2: not JSON"):
        read_trace("-")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{nonsense", "not JSON"),
        (b"\xff", "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        ([1, 2], "not a JSON object"),
        ({"block_ids": [1]}, 'no "query_id"'),
        ({"query_id": ["q"], "block_ids": [1]}, '"query_id" must be a string or an integer'),
        ({"query_id": True, "block_ids": [1]}, '"query_id" must be a string or an integer, not True'),
        ({"query_id": "q", "query": 5, "block_ids": [1]}, '"query" must be a string'),
        ({"query_id": "q", "answer": 5, "block_ids": [1]}, '"answer" must be a string or a list, not 5'),
        ({"query_id": "q", "answer": ["a", 5], "block_ids": [1]}, '"answer" must hold strings'),
        ({"query_id": "q"}, 'neither "block_ids" nor "blocks"'),
        ({"query_id": "q", "block_ids": [1], "blocks": []}, 'both "block_ids" and "blocks"'),
        ({"query_id": "q", "block_ids": "b1"}, '"block_ids" must be a list'),
        ({"query_id": "q", "block_ids": [1.5]}, "1.5 is not a block id"),
        ({"query_id": "q", "block_ids": [[1, None]]}, "None is not a block id"),
        ({"query_id": "q", "block_ids": [True]}, "True is not a block id"),
        ({"query_id": "q", "blocks": ["b1"]}, '"blocks" must hold objects with "id" and "text"'),
        ({"query_id": "q", "blocks": [{"id": "b1"}]}, '"blocks" must hold objects with "id" and "text"'),
        ({"query_id": "q", "blocks": [{"text": "x"}]}, "not a block id"),
        ({"query_id": "q", "session_id": "s", "messages": []}, "agent trace .* not retrieval requests"),
    ],
)
def test_bad_lines_are_named_in_one_line(trace, line, reason):
    path = trace({"query_id": "fine", "block_ids": [1]}, b"", line)
    readers = (read_trace,) if isinstance(line, dict) and "answer" in line else (read_trace, read_plan)
    for read in readers:
        with pytest.raises(TraceError, match=reason) as caught:
            read(path)
        message = str(caught.value)
        assert message.startswith(f"{path}:3: ")
        assert "\n" not in message
        assert len(message) < len(str(path)) + 200


@pytest.mark.parametrize("field", ["turn", "position", "expected_cached_blocks"])
def test_numbers_are_integers(trace, field):
    path = trace({"query_id": "q", "block_ids": [1], field: "1"})
    with pytest.raises(TraceError, match=f'"{field}" must be an integer'):
        (read_trace if field == "turn" else read_plan)(path)


def test_a_block_without_text_is_named(trace):
    path = trace({"query_id": "q", "block_ids": ["a", "gone"]})
    texts = trace({"id": "a", "text": "alpha"}, name="blocks.jsonl")
    with pytest.raises(TraceError, match=r"trace.jsonl:1: block 'gone' is not in .*blocks.jsonl"):
        read_trace(path, texts)


def test_a_blocks_file_gives_every_id_one_text(trace):
    again = trace({"id": "a", "text": "alpha"}, {"id": "a", "text": "alpha"})
    assert read_blocks(again) == {"a": ContextBlock("a", "alpha")}
    torn = trace({"id": "a", "text": "alpha"}, {"id": "a", "text": "beta"})
    with pytest.raises(TraceError, match=r":2: block 'a' has another text on an earlier line"):
        read_blocks(torn)
    with pytest.raises(TraceError, match=r':1: there is no "text"'):
        read_blocks(trace({"id": "a", "n_chars": 5}))


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(TraceError, match=r"gone.jsonl: cannot be read"):
        read_trace(tmp_path / "gone.jsonl")


PLAN = PlanLine(
    query_id="q1",
    position=4,
    blocks=(ContextBlock(2), ContextBlock(("a", 1)), ContextBlock("é")),
    search_path=(0, 3),
    expected_cached_blocks=1,
    order_annotation="Please read [CB_2] first.",
    query="Who?",
)


def test_a_plan_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "plan.jsonl"
    lines = [PLAN, PlanLine("q2", 0, ())]
    write_jsonl(path, [{"an": "old plan"}])
    write_jsonl(path, (line.to_dict() for line in lines))
    assert read_plan(path) == lines


def test_a_plan_line_has_the_documented_fields():
    assert PLAN.to_dict() == {
        "query_id": "q1",
        "position": 4,
        "block_ids": (2, ("a", 1), "é"),
        "search_path": (0, 3),
        "expected_cached_blocks": 1,
        "order_annotation": "Please read [CB_2] first.",
        "query": "Who?",
    }


def test_a_trace_is_read_as_the_plan_that_changes_nothing(trace):
    path = trace(
        {"query_id": "q1", "block_ids": [2, 1]}, b"", {"query_id": "q2", "turn": 1, "block_ids": [3]}
    )
    assert read_plan(path) == [
        PlanLine("q1", 0, (ContextBlock(2), ContextBlock(1))),
        PlanLine("q2", 1, (ContextBlock(3),)),
    ]


def test_a_search_path_holds_integers(trace):
    path = trace({"query_id": "q", "position": 0, "block_ids": [1], "search_path": [0, "1"]})
    with pytest.raises(TraceError, match=r':1: "search_path" must hold integers'):
        read_plan(path)


def test_what_json_has_not_is_not_written(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_jsonl(tmp_path / "out.jsonl", [{"score": float("nan")}])


def test_a_dash_is_standard_output(capsys):
    write_jsonl("-", [{"a": (1, "é")}, {"b": None}])
    assert capsys.readouterr().out == '{"a": [1, "\\u00e9"]}\n{"b": null}\n'
