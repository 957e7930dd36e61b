"""The prompt that a request becomes, and its tokens."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from functools import cache
from typing import Any

from contextpilot_integrations.block import ContextBlock

__all__ = ["SYSTEM_PROMPT", "build_prompt", "count_tokens", "tokenize"]

SYSTEM_PROMPT = "Answer the question with the help of the context below."


def build_prompt(
    blocks: Iterable[ContextBlock],
    *,
    query: str | None = None,
    order_annotation: str = "",
    system: str = SYSTEM_PROMPT,
) -> str:
    """Return a request as one string: system prompt, blocks, order annotation, question.

    Blank lines stand between the parts; an empty part leaves none behind.

    Args:
        blocks: The blocks in the order sent.
        query: The question; None where it is not known.
        order_annotation: What tells the model the order of relevance.
        system: The system prompt.
    """
    parts = [system, *(block.render() for block in blocks), order_annotation, query or ""]
    return "\n\n".join(part for part in parts if part)


def tokenize(text: str) -> array[int]:
    """Return the o200k_base tokens of a text; what looks like a special token is plain text.

    A prompt must be counted whole: the counts of its parts do not add up, since a separator can merge
    with what stands beside it.

    Raises:
        ImportError: If the ``evaluation`` extra is not installed.
    """
    return array("I", _encoding().encode_ordinary(text))  # 4 bytes a token, where a list takes 36


def count_tokens(text: str) -> int:
    """Return how many o200k_base tokens a text has.

    Raises:
        ImportError: If the ``evaluation`` extra is not installed.
    """
    return len(_encoding().encode_ordinary(text))


@cache
def _encoding() -> Any:
    try:
        from bpe_openai import get_encoding
    except ImportError as exc:
        raise ImportError(
            'counting tokens needs bpe-openai: pip install "contextpilot-integrations[evaluation]"'
        ) from exc
    return get_encoding("o200k_base")
