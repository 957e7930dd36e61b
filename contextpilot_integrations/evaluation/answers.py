"""How good an answer is, by its words: the measures of SQuAD and of retrieval-augmented generation."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

__all__ = ["contains_answer", "normalized", "token_f1"]

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def normalized(text: str) -> list[str]:
    """Return the words of a text as SQuAD compares them: lower case, no punctuation, no articles.

    Source: Rajpurkar et al., SQuAD (EMNLP 2016), the official evaluation script.
    """
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def contains_answer(text: str, answers: Sequence[str]) -> bool:
    """Tell whether the words of a right answer stand in the text, all of them and one after another.

    The exact match of a model that answers in sentences: "It costs 28 crowns." has "28 crowns". An answer
    of no words, such as "the", stands nowhere.
    """
    words = normalized(text)
    return any(_stands_in(normalized(answer), words) for answer in answers)


def token_f1(text: str, answers: Sequence[str]) -> float:
    """Return the harmonic mean of precision and recall of the words, for the answer that fits best.

    From 0.0, where no word is shared, to 1.0, where both have the same words; 0.0 without any answer.
    """
    words = normalized(text)
    return max((_f1(words, normalized(answer)) for answer in answers), default=0.0)


def _stands_in(part: list[str], words: list[str]) -> bool:
    length = len(part)
    return length > 0 and any(
        words[start : start + length] == part for start in range(len(words) - length + 1)
    )


def _f1(words: list[str], gold: list[str]) -> float:
    shared = (Counter(words) & Counter(gold)).total()
    return 2 * shared / (len(words) + len(gold)) if shared else 0.0
