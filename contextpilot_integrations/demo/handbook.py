"""The demo's corpus, the handbook of a harbour town that does not exist, and questions about it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

__all__ = ["Passage", "Question", "more_questions", "passages", "questions"]


@dataclass(frozen=True, slots=True)
class Passage:
    """One page of the handbook, about 120 tokens."""

    id: str
    theme: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Question:
    """A citizen's question; ``answer`` stands verbatim in the passage ``gold_id``."""

    query_id: str
    user: str
    theme: str
    question: str
    answer: str
    gold_id: str


def passages() -> list[Passage]:
    """Return the whole handbook."""
    return [Passage(**row) for row in _rows("corpus.jsonl")]


def questions() -> list[Question]:
    """Return the questions in the order in which they arrive, the themes interleaved."""
    return [Question(**row) for row in _rows("questions.jsonl")]


def more_questions() -> list[Question]:
    """Return further questions, so that together with the demo's every passage holds an answer."""
    return [Question(**row) for row in _rows("more_questions.jsonl")]


def _rows(name: str) -> list[dict[str, Any]]:
    text = files("contextpilot_integrations.demo").joinpath(name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]
