"""A Llama with random weights: it answers nonsense, but an engine caches its prompts as any model's."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from contextpilot_integrations.annotation import order_annotation
from contextpilot_integrations.block import ContextBlock
from contextpilot_integrations.demo.handbook import passages, questions

__all__ = ["CHAT_TEMPLATE", "write_tiny_llama"]

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""ChatML, as Qwen and SmolLM2 have it, without any system prompt of its own."""

_END, _TURN_START, _TURN_END = _SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_HEAD = 64  # vLLM's attention on the CPU wants a multiple of 32.


def write_tiny_llama(
    folder: str | os.PathLike[str],
    *,
    hidden_size: int = 256,
    layers: int = 4,
    max_tokens: int = 8192,
    seed: int = 0,
    texts: Iterable[str] = (),
    vocabulary: int = 4096,
) -> int:
    """Write a model with random weights and a tokenizer trained on the demo's corpus.

    The same arguments give the same files. 256 x 4 has 4 M parameters; 512 x 8 has 28 M, and its prefill is
    long enough to be measured.

    Args:
        folder: Where to; made if it is not there.
        hidden_size: The width, a multiple of 64.
        layers: The depth.
        max_tokens: The longest sequence.
        seed: What the weights are drawn from.
        texts: What the tokenizer is trained on besides. Of other English it makes about 1.6 times as many
            tokens as SmolLM2's; of these, with a vocabulary of 8,192, about 4 % more.
        vocabulary: How many tokens it knows at most.

    Returns:
        The number of parameters.

    Raises:
        ImportError: If transformers or tokenizers is not installed.
        ValueError: If ``hidden_size`` is no multiple of 64.
    """
    if hidden_size % _HEAD:
        raise ValueError(f"hidden_size must be a multiple of {_HEAD}, got {hidden_size}")
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=_trained([*_corpus(), *texts], vocabulary),
        eos_token=_TURN_END,
        pad_token=_END,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=hidden_size * 11 // 4,
        num_hidden_layers=layers,
        num_attention_heads=hidden_size // _HEAD,
        max_position_embeddings=max_tokens,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config).to(torch.bfloat16)
    Path(folder).mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder, safe_serialization=True)
    parameters: int = model.num_parameters()
    return parameters


def _corpus() -> list[str]:
    """Return the demo's passages and questions, and what prose lacks: brackets, and letters in any order."""
    texts = [text for passage in passages() for text in (passage.title, passage.text)]
    markers = order_annotation([ContextBlock(passage.title, passage.text) for passage in passages()])
    return [*texts, *(question.question for question in questions()), markers]


def _trained(texts: Iterable[str], vocabulary: int) -> Any:
    """Train a byte-level BPE, so that every text has tokens and comes back from them."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(_SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer
