"""A LoRA adapter beside the model that it adapts, on one vLLM: neither finds what the other one cached."""

import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from contextpilot_integrations import ContextPilot
from contextpilot_integrations.engines.cache_follower import CacheFollower, Noticed
from contextpilot_integrations.engines.page_table import Prompt
from contextpilot_integrations.engines.subscriber import KvEventSubscriber
from contextpilot_integrations.evaluation.vllm_server import VLLMServer
from contextpilot_integrations.openai import Completions

ADAPTER = "adapter"
PAGE = 32
PATIENCE = 20  # seconds
RANK = 8


def write_adapter(folder: Path, model: Path) -> None:
    """Write an adapter with random weights for a model, as PEFT does."""
    config = json.loads((model / "config.json").read_text())
    width, generator = config["hidden_size"], torch.Generator().manual_seed(0)
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        for projection in ("q_proj", "v_proj"):
            name = f"base_model.model.model.layers.{layer}.self_attn.{projection}"
            weights[f"{name}.lora_A.weight"] = torch.randn(RANK, width, generator=generator)
            weights[f"{name}.lora_B.weight"] = torch.randn(width, RANK, generator=generator)
    save_file(weights, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": ["q_proj", "v_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(settings))


@pytest.fixture(scope="module")
def server(model, tmp_path_factory) -> Iterator[VLLMServer]:
    """One that evicts all the time, as in `test_vllm_following`."""
    folder = tmp_path_factory.mktemp(ADAPTER)
    write_adapter(folder, model)
    arguments = ("--enable-lora", "--max-lora-rank", str(RANK), "--lora-modules", f"{ADAPTER}={folder}")
    with VLLMServer(model, blocks=130, max_model_len=4096, arguments=arguments) as server:
        yield server


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never came to be so"
        time.sleep(0.001)


def test_an_adapter_and_its_model_are_told_apart(server, client, contexts, tokens):
    pilot = ContextPilot()
    follower = CacheFollower(pilot)
    loras = {server.name: None, ADAPTER: ADAPTER}
    drawn = random.Random(0)
    seen, namespaces = [], set()
    with KvEventSubscriber(follower, server.events_endpoint, server.replay_endpoint):
        completions = {model: Completions(pilot, client, model=model, follower=follower) for model in loras}

        def ask(model: str, blocks, question: str):
            """Ask, and wait until the follower knows all pages of the prompt."""
            completion = completions[model].complete(blocks, question, max_tokens=1)
            plan = completion.plan
            text = "\n\n".join(part for part in (plan.render(), plan.order_annotation, question) if part)
            prompt = Prompt(tokens(text), lora=loras[model])
            assert completion.usage.prompt_tokens == len(prompt.token_ids)
            return completion, prompt

        def is_heard() -> bool:
            _, prompt = ask(server.name, [], f"{drawn.random()} " * PAGE)
            time.sleep(0.05)
            return follower.cached_tokens(prompt) > 0

        until(is_heard)  # The subscription has arrived.
        for turn in range(80):
            place, model = drawn.randrange(6), drawn.choice(list(loras))
            completion, prompt = ask(model, contexts[place][:4], f"Question {turn % 3}?")
            until(
                lambda prompt=prompt: follower.cached_tokens(prompt) == len(prompt.token_ids) // PAGE * PAGE
            )
            namespaces.add(completion.plan.namespace)
            seen.append((model, completion.plan.expected_cached_tokens, completion.usage.cached_tokens or 0))
    for namespace in namespaces:
        with pilot.index(namespace) as index:
            index.check_integrity()
    assert {namespace.model for namespace in namespaces} == set(loras)
    assert [expected for _, expected, _ in seen] == [cached for *_, cached in seen]
    assert {model for model, _, cached in seen if cached} == set(loras)
    assert follower.noticed[Noticed.CUT] > 10


def test_what_the_one_cached_the_other_does_not_find(server, client, contexts):
    server.reset_prefix_cache()
    pilot = ContextPilot()
    answers = [
        Completions(pilot, client, model=model).complete(contexts[0], "Why?", max_tokens=1)
        for model in (server.name, ADAPTER, server.name, ADAPTER)
    ]
    assert [(answer.usage.cached_tokens or 0) > 0 for answer in answers] == [False, False, True, True]
    assert [answer.plan.expected_cached_blocks > 0 for answer in answers] == [False, False, True, True]
