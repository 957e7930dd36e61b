"""Engines told by their lists of models."""

import pytest

from contextpilot_integrations.engines import LLAMA_CPP, PLAIN, SGLANG, VLLM, Server, identify

CARDS = {
    VLLM: {"id": "m", "owned_by": "vllm", "root": "m", "parent": None, "max_model_len": 8192},
    SGLANG: {"id": "m", "owned_by": "sglang", "root": "m", "max_model_len": 8192},
    LLAMA_CPP: {"id": "m", "owned_by": "llamacpp", "meta": {"n_ctx": 8192, "n_ctx_train": 32768}},
}


@pytest.mark.parametrize("engine", CARDS, ids=lambda engine: engine.name)
def test_engine_and_window(engine):
    assert identify([CARDS[engine]], "m") == Server(engine, 8192)


@pytest.mark.parametrize("engine", CARDS, ids=lambda engine: engine.name)
def test_objects_of_the_openai_client(engine):
    types = pytest.importorskip("openai.types")
    card = types.Model.model_validate({**CARDS[engine], "object": "model", "created": 0})
    assert identify([card], "m") == Server(engine, 8192)


def test_the_window_is_that_of_the_model_asked():
    longer = {**CARDS[VLLM], "id": "long", "max_model_len": 32768}
    assert identify([CARDS[VLLM], longer], "long") == Server(VLLM, 32768)


def test_a_model_that_is_not_listed_has_an_engine_and_no_window():
    assert identify([CARDS[VLLM]], "another") == Server(VLLM)


def test_a_gateway_is_what_its_model_says():
    hosted = {"id": "hosted", "owned_by": "openai"}
    assert identify([CARDS[VLLM], hosted], "hosted") == Server(PLAIN)
    assert identify([CARDS[VLLM], hosted], "m") == Server(VLLM, 8192)
    assert identify([CARDS[VLLM], hosted], "another") == Server(PLAIN)


@pytest.mark.parametrize(
    "models",
    [[], [{"id": "m"}], [{"id": "m", "owned_by": "openai"}], [{"id": "m", "owned_by": None}], ["m"], [None]],
)
def test_anything_else_is_plain(models):
    assert identify(models, "m") == Server(PLAIN)


def test_a_window_that_is_no_number_is_unknown():
    assert identify([{**CARDS[VLLM], "max_model_len": "long"}], "m") == Server(VLLM)
    assert identify([{**CARDS[LLAMA_CPP], "meta": None}], "m") == Server(LLAMA_CPP)


@pytest.mark.parametrize("engine", [VLLM, SGLANG], ids=lambda engine: engine.name)
def test_an_adapter_is_a_model_with_a_parent(engine):
    adapter = {"id": "lora", "owned_by": CARDS[engine]["owned_by"], "root": "/lora", "parent": "m"}
    assert identify([CARDS[engine], adapter], "lora") == Server(engine, adapter="lora")
    assert identify([CARDS[engine], adapter], "m") == Server(engine, 8192)
