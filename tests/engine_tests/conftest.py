"""One vLLM at a time, shared by all tests, with a cache that is cold when a test starts."""

from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest
from transformers import AutoTokenizer

from contextpilot_integrations import ContextBlock
from contextpilot_integrations.demo.bm25 import BM25Retriever
from contextpilot_integrations.demo.handbook import passages, questions
from contextpilot_integrations.evaluation.tiny_llama import write_tiny_llama
from contextpilot_integrations.evaluation.vllm_server import VLLMServer


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tiny-llama")
    write_tiny_llama(folder)
    return folder


@pytest.fixture(scope="session")
def warm_server(request, model) -> Iterator[VLLMServer]:
    """The server; modules that need another one give its settings as a parameter."""
    # 44,800 tokens: the 40 prompts of the demo's questions fit in, so that their hits can be foretold.
    with VLLMServer(model, **getattr(request, "param", {"blocks": 1400})) as server:
        yield server


@pytest.fixture
def server(warm_server) -> VLLMServer:
    warm_server.reset_prefix_cache()
    return warm_server


@pytest.fixture
def client(server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="session")
def contexts() -> list[list[ContextBlock]]:
    """What BM25 retrieves for each of the demo's questions, best first."""
    retriever = BM25Retriever(passages())
    retrieved = [retriever.invoke(question.question) for question in questions()]
    return [[ContextBlock(d.id, d.page_content) for d in documents] for documents in retrieved]


@pytest.fixture(scope="session")
def tokenizer(model):
    return AutoTokenizer.from_pretrained(model)


@pytest.fixture(scope="session")
def tokens(tokenizer) -> Callable[..., list[int]]:
    """Gives the tokens of a chat with one message, up to where a text in it ends."""

    def tokens(text: str, until: str | None = None) -> list[int]:
        chat = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
        )
        end = None if until is None else chat.index(until) + len(until)
        return tokenizer.encode(chat[:end], add_special_tokens=False)

    return tokens
