"""`contextpilot bench engine --base-url`, from the command to the figures."""

import json

import openai
import pytest
from typer.testing import CliRunner

from contextpilot_integrations import ContextPilot
from contextpilot_integrations.cli import app
from contextpilot_integrations.evaluation.traces import read_trace
from contextpilot_integrations.openai import Completions


def write_trace(folder, words_of):
    path = folder / "trace.jsonl"
    with path.open("w") as file:
        for name, words in words_of.items():
            blocks = [{"id": word, "text": f"All about {word}."} for word in words.split()]
            file.write(json.dumps({"query_id": name, "query": name, "blocks": blocks}) + "\n")
    return path


@pytest.fixture
def trace(tmp_path):
    return write_trace(tmp_path, {"first": "a b", "second": "b a", "third": "c b a"})


def run(engine, trace, *args):
    options = ["--trace", trace, "--base-url", engine.base_url, "--model", "m", "--json", *args]
    return CliRunner().invoke(app, ["bench", "engine", *map(str, options)])


def prompts(engine):
    """The user's messages that arrived, by the first line of their system prompts."""
    found = {}
    for body in engine.bodies:
        if len(body["messages"]) == 2:
            system, user = (message["content"] for message in body["messages"])
            found.setdefault(system.partition("\n")[0], []).append(user)
    return list(found.values())


@pytest.mark.parametrize("mode", ["offline", "online"])
def test_both_orders_are_sent_under_first_lines_of_their_own(engine, trace, mode):
    result = run(engine, trace, "--mode", mode, "--repeats", 2)
    assert result.exit_code == 0, result.stderr
    figures = json.loads(result.stdout)
    assert (figures["requests"], figures["failed_original"], figures["failed_ours"]) == (3, 0, 0)
    assert figures["ttft_ratio_low"] <= figures["ttft_ratio"] <= figures["ttft_ratio_high"]
    # The second time, ours goes first.
    warm_up, original, ours, ours_again, original_again = prompts(engine)
    assert len(warm_up) == 2
    assert (
        original
        == original_again
        == [
            "[CB_a] All about a.\n\n[CB_b] All about b.\n\nfirst",
            "[CB_b] All about b.\n\n[CB_a] All about a.\n\nsecond",
            "[CB_c] All about c.\n\n[CB_b] All about b.\n\n[CB_a] All about a.\n\nthird",
        ]
    )
    assert ours == ours_again
    starts = {prompt.partition("] All about")[0] for prompt in ours}
    assert len(starts) == 1  # All three now begin with the same block.


def test_one_in_flight_the_orders_take_turns(engine, trace):
    assert run(engine, trace, "--repeats", 2).exit_code == 0
    lines = [body["messages"][0]["content"].partition("\n")[0] for body in engine.bodies]
    original, ours, ours_again, original_again = list(dict.fromkeys(line for line in lines if "[" in line))[
        1:
    ]
    sent = [line for line in lines if line in (original, ours)]
    assert sent == [original, ours, ours, original, original, ours]
    sent = [line for line in lines if line in (ours_again, original_again)]
    assert sent == [ours_again, original_again, original_again, ours_again, ours_again, original_again]
    assert engine.in_flight == 1


def test_several_in_flight_the_orders_come_one_after_the_other(engine, trace):
    assert run(engine, trace, "--sessions", 2).exit_code == 0
    lines = [body["messages"][0]["content"].partition("\n")[0] for body in engine.bodies]
    _, original, ours = list(dict.fromkeys(line for line in lines if "[" in line))
    assert [line for line in lines if line in (original, ours)] == [original] * 3 + [ours] * 3


def test_a_batch_in_turns_is_what_a_batch_sends(engine, start, tmp_path):
    trace = write_trace(tmp_path, {"first": "a b c", "second": "d e f", "third": "c b a", "fourth": "f a d"})
    assert run(engine, trace).exit_code == 0
    requests = read_trace(trace)
    other = start()
    with openai.OpenAI(base_url=other.base_url, api_key="none") as client:
        Completions(ContextPilot(), client, model="m", preamble="Answer.").complete_batch(
            [request.blocks for request in requests], [request.query for request in requests], max_in_flight=1
        )
    _, _, ours = prompts(engine)
    assert [ours] == prompts(other)
    assert [prompt.split()[-1] for prompt in ours] != ["first", "second", "third", "fourth"]


def test_requests_that_fail_are_counted_and_told(engine, weather, trace):
    # Longest first, "third" is warmed up with; then it fails in the original pass alone.
    engine.weather["third"] = [weather(), weather(500)]
    result = run(engine, trace, "--mode", "online")
    assert result.exit_code == 1
    figures = json.loads(result.stdout)
    assert (figures["failed_original"], figures["failed_ours"]) == (1, 0)
    assert figures["ttft_ratio"] > 0
    assert "1 of 6 requests failed, the first with InternalServerError" in result.stderr


def test_counts_that_the_server_does_not_tell_are_unknown(engine, weather, trace):
    engine.fine = weather(usage="missing")
    figures = json.loads(run(engine, trace).stdout)
    assert (
        figures["prompt_tokens_ours"] is figures["cached_tokens_ratio"] is figures["ttft_ratio_bound"] is None
    )
