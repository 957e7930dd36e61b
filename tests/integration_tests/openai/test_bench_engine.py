"""`contextpilot bench engine --base-url`, from the command to the figures."""

import json

import pytest
from typer.testing import CliRunner

from contextpilot_integrations.cli import app


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.jsonl"
    texts = {"a": "All about a.", "b": "All about b.", "c": "All about c."}
    with path.open("w") as file:
        for name, words in {"first": "a b", "second": "b a", "third": "c b a"}.items():
            blocks = [{"id": word, "text": texts[word]} for word in words.split()]
            file.write(json.dumps({"query_id": name, "query": name, "blocks": blocks}) + "\n")
    return path


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


def test_requests_that_fail_are_counted_and_told(engine, weather, trace):
    # Longest first, "third" is warmed up with; then it fails in the original pass alone.
    engine.weather["third"] = [weather(), weather(500)]
    result = run(engine, trace)
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
