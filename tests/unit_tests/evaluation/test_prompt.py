import sys

import pytest

from contextpilot_integrations.block import ContextBlock
from contextpilot_integrations.evaluation import prompt
from contextpilot_integrations.evaluation.prompt import build_prompt, tokenize

BLOCKS = (ContextBlock("a", "Alpha."), ContextBlock("b", "Beta."))


def test_a_prompt_has_system_prompt_blocks_annotation_and_question():
    built = build_prompt(BLOCKS, query="Who?", order_annotation="[CB_b] > [CB_a]", system="Be brief.")
    assert built == "Be brief.\n\n[CB_a] Alpha.\n\n[CB_b] Beta.\n\n[CB_b] > [CB_a]\n\nWho?"


def test_what_is_empty_leaves_no_blank_lines():
    assert build_prompt(BLOCKS[:1], system="") == "[CB_a] Alpha."


def test_equal_leading_blocks_are_equal_leading_bytes():
    ahead = build_prompt(BLOCKS[:1])
    assert build_prompt(BLOCKS, query="Who?").startswith(ahead)


@pytest.fixture
def fresh():
    prompt._encoding.cache_clear()
    yield
    prompt._encoding.cache_clear()


def test_tokens_are_those_of_o200k_base():
    pytest.importorskip("bpe_openai")
    assert list(tokenize("hello world")) == [24912, 2375]
    assert list(tokenize("")) == []


def test_special_tokens_in_a_text_are_plain_text():
    pytest.importorskip("bpe_openai")
    assert len(tokenize("<|endoftext|>")) > 1


@pytest.mark.usefixtures("fresh")
def test_a_missing_tokenizer_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "bpe_openai", None)
    with pytest.raises(ImportError, match=r'pip install "contextpilot-integrations\[evaluation\]"'):
        tokenize("hello")
