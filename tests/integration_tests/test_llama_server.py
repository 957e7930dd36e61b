"""The demo's server against the real model: what it reports as cached is what prefix caching can give."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

import pytest

from contextpilot_integrations import ContextBlock, ContextPilot
from contextpilot_integrations.demo.llama_server import LlamaServer
from contextpilot_integrations.demo.weights import packaged_weights

openai = pytest.importorskip("openai")
Completions = pytest.importorskip("contextpilot_integrations.openai").Completions
pytest.importorskip("gguf")
pytest.importorskip("xllamacpp")
try:
    packaged_weights()
except ImportError as missing:
    pytest.skip(str(missing), allow_module_level=True)

pytestmark = pytest.mark.model

SYSTEM = "Answer from the documents."
DOCUMENTS = [
    f"{name} lies on the river {river} and is known for its {fame}."
    for name, river, fame in [
        ("Aldport", "Wend", "clock tower"),
        ("Brimley", "Tarn", "glass works"),
        ("Corwick", "Ouse", "spring market"),
        ("Dunhill", "Esk", "stone bridges"),
    ]
]


@pytest.fixture(scope="module")
def server() -> Iterator[LlamaServer]:
    with LlamaServer(n_ctx=1024) as server:
        yield server


@pytest.fixture(scope="module")
def preamble(server) -> int:
    """Tokens in front of the documents: what two prompts share that differ from the first word on."""
    return cached_after(server, ["Alone."], ["Nobody."])


def ask(server: LlamaServer, documents: Sequence[str], question: str = "Where is Aldport?"):
    client = openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0)
    return client.chat.completions.create(
        model=server.model,
        messages=[
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": "\n".join([*documents, question])},
        ],
        max_tokens=4,
        temperature=0,
    )


def cached(answer) -> int:
    return answer.usage.prompt_tokens_details.cached_tokens


def test_answers_a_chat_request(server):
    answer = ask(server, DOCUMENTS)
    assert answer.model == server.model
    assert answer.choices[0].message.content
    assert 0 < answer.usage.completion_tokens <= 4


def test_an_exact_repeat_computes_one_token(server):
    ask(server, DOCUMENTS)
    repeat = ask(server, DOCUMENTS)
    assert cached(repeat) == repeat.usage.prompt_tokens - 1


def test_a_shared_prefix_is_reported(server, preamble):
    half = cached_after(server, DOCUMENTS, [*DOCUMENTS[:2], *DOCUMENTS[:1:-1]])
    three = cached_after(server, DOCUMENTS, [*DOCUMENTS[:3], "Elmford is far away."])
    assert preamble < half < three


def test_reversed_documents_share_only_the_preamble_and_take_the_slot(server, preamble):
    assert cached_after(server, DOCUMENTS, DOCUMENTS[::-1]) == preamble
    assert cached(ask(server, DOCUMENTS)) == preamble


def test_the_last_chunk_of_a_stream_reports_cached_tokens(server):
    whole = ask(server, DOCUMENTS)
    client = openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0)
    *_, last = client.chat.completions.create(
        model=server.model,
        messages=[
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": "\n".join([*DOCUMENTS, "Where is Aldport?"])},
        ],
        max_tokens=4,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    assert cached(last) == whole.usage.prompt_tokens - 1


def test_completions_tell_the_servers_own_counts(server, caplog):
    client = openai.OpenAI(base_url=server.base_url, api_key="none")
    pilot = ContextPilot(token_counter=lambda text: len(text.split()), on_error="raise")
    completions = Completions(pilot, client, model=server.model, preamble=SYSTEM)
    blocks = [ContextBlock(n, text) for n, text in enumerate(DOCUMENTS)]
    settings = {"max_tokens": 4, "temperature": 0}
    first, again = completions.complete_batch(
        [blocks, blocks[::-1]], ["Where is Aldport?", "Where is Dunhill?"], max_in_flight=1, **settings
    )
    assert again.plan.blocks == first.plan.blocks  # They part at the end, so that nearly all is cached.
    assert again.usage.cached_tokens > first.usage.cached_tokens
    assert again.usage.cached_tokens > again.usage.prompt_tokens / 2
    assert 0 < again.usage.completion_tokens <= 4
    assert again.text
    assert again.ttft > 0
    completions.complete(blocks, "Which?", tenant="acme", **settings)
    assert [record.getMessage()[:9] for record in caplog.records] == ["llama.cpp"]
    with pytest.raises(ValueError, match=r"the context window of .* is 1024 tokens"):
        completions.complete([ContextBlock("long", "word " * 2000)], "Which?")


def test_stop_frees_the_port_and_a_second_start_is_cold_and_quiet(capfd):
    server = LlamaServer(n_ctx=512)
    counts = []
    for _ in range(2):
        server.start()
        port = urlsplit(server.base_url).port
        counts.append(cached(ask(server, DOCUMENTS)))
        server.stop()
        with socket.socket() as free:
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            free.bind(("127.0.0.1", port))
    assert counts == [0, 0]
    assert capfd.readouterr() == ("", "")
    with pytest.raises(RuntimeError, match="not running"):
        server.base_url  # noqa: B018


def test_a_file_that_is_no_model_is_named(tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    with pytest.raises(RuntimeError, match=r"broken\.gguf"):
        LlamaServer(broken).start()


def cached_after(server: LlamaServer, first: Sequence[str], second: Sequence[str]) -> int:
    """Cached tokens of the second request when the first has filled the slot."""
    ask(server, first)
    return cached(ask(server, second))
