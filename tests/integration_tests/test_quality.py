"""Likelihoods on the real model: what the server says of a forced token is what it says unasked."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from typer.testing import CliRunner

from contextpilot_integrations.cli import app
from contextpilot_integrations.demo.llama_server import LlamaServer
from contextpilot_integrations.demo.weights import packaged_weights
from contextpilot_integrations.evaluation.bench import Variant
from contextpilot_integrations.evaluation.llama_cpp import LlamaCppClient

httpx = pytest.importorskip("httpx")
pytest.importorskip("gguf")
pytest.importorskip("xllamacpp")
try:
    packaged_weights()
except ImportError as missing:
    pytest.skip(str(missing), allow_module_level=True)

pytestmark = pytest.mark.model

SYSTEM = "Answer in a few words."
ASKED = "The fare to Oske is 9 crowns.\n\nWhat is the fare to Oske?"


@pytest.fixture(scope="module")
def server() -> Iterator[LlamaServer]:
    with LlamaServer(n_ctx=1024) as server:
        yield server


@pytest.fixture
def client(server) -> Iterator[LlamaCppClient]:
    with LlamaCppClient(server.base_url) as client:
        yield client


def likeliest(server, prompt):
    """The log-probabilities of the five tokens that the server itself finds most probable."""
    body = {"prompt": list(prompt), "n_predict": 1, "temperature": 0, "n_probs": 5}
    url = server.base_url.removesuffix("/v1")
    answer = httpx.post(f"{url}/completion", json=body, timeout=60, trust_env=False).json()
    top = answer["completion_probabilities"][0]["top_logprobs"]
    return {token["id"]: token["logprob"] for token in top}


def test_a_forced_token_has_the_likelihood_that_it_has_unforced(server, client):
    prompt = client.prompt_tokens(SYSTEM, ASKED)
    unforced = likeliest(server, prompt)
    assert len(unforced) == 5
    for token, logprob in unforced.items():
        assert client.log_likelihoods(prompt, [token]) == [pytest.approx(logprob, abs=1e-3)]
    assert sum(map(math.exp, unforced.values())) < 1


def test_later_tokens_are_conditioned_on_those_before(server, client):
    prompt = client.prompt_tokens(SYSTEM, ASKED)
    first, second = client.answer_tokens("9 crowns")[:2]
    after_first = likeliest(server, [*prompt, first])
    token = next(iter(after_first))
    _, forced = client.log_likelihoods(prompt, [first, token])
    assert forced == pytest.approx(after_first[token], abs=1e-3)
    assert client.log_likelihoods([*prompt, first], [second]) == [
        pytest.approx(client.log_likelihoods(prompt, [first, second])[1], abs=1e-3)
    ]


@pytest.mark.parametrize("place", ["Oske", "Vassel"])
def test_the_models_own_answer_is_likelier_than_an_unrelated_one(client, place):
    prompt = client.prompt_tokens(SYSTEM, ASKED.replace("Oske", place))
    own = client.answer_tokens(client.complete(prompt, max_tokens=8))
    other = client.answer_tokens("Gulls nest on the cathedral in spring.")
    mean_own, mean_other = (
        sum(client.log_likelihoods(prompt, answer)) / len(answer) for answer in (own, other)
    )
    assert 0 > mean_own > mean_other + 1


def test_the_prompt_is_what_the_chat_endpoint_makes_of_it(server, client):
    prompt = client.prompt_tokens(SYSTEM, ASKED)
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": ASKED}]
    body = {"messages": messages, "max_tokens": 8, "temperature": 0}
    chat = httpx.post(f"{server.base_url}/chat/completions", json=body, timeout=60, trust_env=False).json()
    assert chat["usage"]["prompt_tokens"] == len(prompt)
    assert client.complete(prompt, max_tokens=8) == chat["choices"][0]["message"]["content"]


def test_a_prompt_that_does_not_fit_is_refused_with_the_servers_reason(client):
    with pytest.raises(OSError, match=r"/completion: 400: .* exceeds the available context size"):
        client.complete([1] * 2000, max_tokens=1)


def test_another_server_is_told(server):
    class Other(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(404)

        def log_message(self, *args):
            pass

    other = HTTPServer(("127.0.0.1", 0), Other)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    with (
        LlamaCppClient(f"http://127.0.0.1:{other.server_port}/v1/") as client,
        pytest.raises(OSError, match=r"has no /props: likelihoods need a llama\.cpp server"),
    ):
        client.model()
    other.shutdown()
    other.server_close()


def test_the_command_measures_a_trace(server, tmp_path):
    texts = {
        "fare": "The fare is 9 crowns.",
        "time": "The boat leaves at six.",
        "dog": "Dogs travel free.",
        "room": "The saloon has 40 seats.",
    }
    asked = [
        ("fare time dog", "What is the fare?", "9 crowns"),
        ("time fare room", "When does the boat leave?", ["at six", "six o'clock"]),
        ("dog fare time", "What do dogs pay?", "travel free"),
        ("room fare time", "How many seats are there?", "40 seats"),
    ]
    trace, blocks = tmp_path / "trace.jsonl", tmp_path / "blocks.jsonl"
    blocks.write_text("".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in texts.items()))
    lines = [
        {"query_id": n, "block_ids": ids.split(), "query": question, "answer": answer}
        for n, (ids, question, answer) in enumerate(asked)
    ]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = ["--trace", trace, "--blocks", blocks, "--items", 2, "--base-url", server.base_url, "--json"]
    result = CliRunner().invoke(app, ["bench", "quality", *map(str, options)])
    assert (result.exit_code, result.stderr) == (0, "")
    figures = json.loads(result.stdout)
    assert (figures["model"], figures["items"], figures["requests"]) == (server.model, 2, 4)
    by_name = {row["variant"]: row for row in figures["variants"]}
    assert set(by_name) == {variant.value for variant in Variant}
    original, aligned, annotated = (
        by_name[v.value] for v in (Variant.ORIGINAL, Variant.ALIGNED, Variant.ANNOTATED)
    )
    assert original["prompt_tokens"] == aligned["prompt_tokens"] < annotated["prompt_tokens"]
    assert original["log_likelihood"] != aligned["log_likelihood"] != annotated["log_likelihood"]
    for row in by_name.values():
        assert row["log_likelihood"] < 0 <= row["f1"] <= 1
    found = {(d["variant"], d["against"], d["measure"]): d for d in figures["differences"]}
    shipped = found["aligned + annotation", "original", "log_likelihood"]
    assert shipped["low"] <= shipped["mean"] <= shipped["high"]
    expected = annotated["log_likelihood"] - original["log_likelihood"]
    assert shipped["mean"] == pytest.approx(expected)
