"""The model that the tests run: the same files every time, small or larger."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from contextpilot_integrations.evaluation.tiny_llama import write_tiny_llama

TEXT = "What does a cargo bike cost? 貨物 <b>\t\n"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_same_arguments_give_the_same_files(model, tmp_path):
    assert write_tiny_llama(tmp_path) == pytest.approx(4.2e6, rel=0.02)
    assert contents(tmp_path) == contents(model)


def test_another_seed_gives_other_weights_and_nothing_else(model, tmp_path):
    write_tiny_llama(tmp_path, seed=1)
    before, after = contents(model), contents(tmp_path)
    assert {name for name in before if before[name] != after[name]} == {"model.safetensors"}


def test_the_benchmarks_size(tmp_path):
    assert write_tiny_llama(tmp_path, hidden_size=512, layers=8) == pytest.approx(27.8e6, rel=0.01)


def test_a_width_that_heads_do_not_fill_is_refused(tmp_path):
    with pytest.raises(ValueError, match="multiple of 64"):
        write_tiny_llama(tmp_path, hidden_size=100)


def test_every_text_comes_back_from_its_tokens(model):
    tokenizer = AutoTokenizer.from_pretrained(model)
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "?"}], tokenize=False)
    assert chat == "<|im_start|>user\n?<|im_end|>\n"
