"""One vLLM for all tests, with a cache that is cold when a test starts."""

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from contextpilot_integrations.evaluation.tiny_llama import write_tiny_llama
from contextpilot_integrations.evaluation.vllm_server import VLLMServer


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tiny-llama")
    write_tiny_llama(folder)
    return folder


@pytest.fixture(scope="session")
def warm_server(model) -> Iterator[VLLMServer]:
    # 44,800 tokens: the 40 prompts of the demo's questions fit in, so that their hits can be foretold.
    with VLLMServer(model, blocks=1400) as server:
        yield server


@pytest.fixture
def server(warm_server) -> VLLMServer:
    warm_server.reset_prefix_cache()
    return warm_server


@pytest.fixture
def client(server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
        yield client
