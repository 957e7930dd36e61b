"""What the quality benchmark asks: questions with answers whose passages context reuse reorders."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from contextpilot_integrations.annotation import order_annotation
from contextpilot_integrations.block import ContextBlock
from contextpilot_integrations.evaluation.answers import contains_answer, token_f1
from contextpilot_integrations.evaluation.prompt import build_prompt
from contextpilot_integrations.evaluation.traces import TraceRequest
from contextpilot_integrations.pilot import ContextPilot

__all__ = ["QualityItem", "Selection", "Variant", "handbook_requests", "neutral_sentence", "select_items"]


class Variant(StrEnum):
    """What becomes of a request's passages, and what is said about it before the question."""

    ORIGINAL = "original"
    """As retrieved."""
    ORIGINAL_ANNOTATED = "original + annotation"
    """As retrieved, and that very order named."""
    ALIGNED = "aligned"
    """As planned, and nothing said."""
    ANNOTATED = "aligned + annotation"
    """As planned, and the order retrieved named: what is sent by default."""
    WRONG = "aligned + wrong order"
    """As planned, and the order of relevance named from its end."""
    NEUTRAL = "aligned + neutral"
    """As planned, and as many words that say nothing of order."""


@dataclass(frozen=True, slots=True)
class QualityItem:
    """One question, and the two orders of its passages.

    Attributes:
        query_id: The request's name.
        question: What is asked.
        answers: The right answers, any of which will do.
        relevance: The distinct passages as retrieved, best first.
        aligned: The same in the order planned.
        wrong_answer: Another question's answer, as alike in form as there is, that none of the passages has.
    """

    query_id: str | int
    question: str
    answers: tuple[str, ...]
    relevance: tuple[ContextBlock, ...]
    aligned: tuple[ContextBlock, ...]
    wrong_answer: str

    @property
    def annotation(self) -> str:
        """What tells the model the order of relevance."""
        return order_annotation(self.relevance)

    def user_message(self, variant: Variant, neutral: str) -> str:
        """Return the passages, what is said about them, and the question.

        Args:
            variant: In which order, and what is said.
            neutral: What is said where nothing of order is.
        """
        original = variant in (Variant.ORIGINAL, Variant.ORIGINAL_ANNOTATED)
        said = {
            Variant.ORIGINAL_ANNOTATED: self.annotation,
            Variant.ANNOTATED: self.annotation,
            Variant.WRONG: order_annotation(self.relevance[::-1]),
            Variant.NEUTRAL: neutral,
        }
        return build_prompt(
            self.relevance if original else self.aligned,
            query=self.question,
            order_annotation=said.get(variant, ""),
            system="",
        )


@dataclass(frozen=True, slots=True)
class Selection:
    """The items, and out of how many they were taken.

    Attributes:
        requests: How many were planned, all in one batch.
        answerable: How many of them have a question, and its answer in a passage as sent.
        reordered: How many of these are sent in another order than retrieved.
        items: Of these the first ones, in the order to run them.
    """

    requests: int
    answerable: int
    reordered: int
    items: tuple[QualityItem, ...]


def handbook_requests(k: int) -> list[TraceRequest]:
    """Return 131 questions about the demo's handbook, each with the passages that BM25 ranks first.

    Args:
        k: How many passages.

    Raises:
        ImportError: If the ``demo`` extra is not installed.
        ValueError: If the handbook has fewer passages.
    """
    try:
        from contextpilot_integrations.demo.bm25 import BM25Retriever
        from contextpilot_integrations.demo.handbook import more_questions, passages, questions
    except ImportError as error:
        raise ImportError(
            f"the handbook's questions need {error.name}; install it with: "
            'pip install "contextpilot-integrations[demo]"'
        ) from error
    pages = passages()
    if k > len(pages):
        raise ValueError(f"k must be at most {len(pages)}, the passages of the handbook, not {k}")
    asked = [*questions(), *more_questions()]
    retrieved = BM25Retriever(pages, k=k).batch([question.question for question in asked])
    return [
        TraceRequest(
            query_id=question.query_id,
            session_id=question.user,
            turn=0,
            query=question.question,
            blocks=tuple(ContextBlock(document.id or "", document.page_content) for document in documents),
            answers=(question.answer,),
        )
        for question, documents in zip(asked, retrieved, strict=True)
    ]


def select_items(requests: Sequence[TraceRequest], *, limit: int, k: int, max_chars: int) -> Selection:
    """Plan all requests as one batch, and take those that can tell whether their order matters.

    These have a question, an answer that stands in one of the passages as sent, and an aligned order that
    is not the one retrieved. Sessions and turns are ignored.

    Args:
        requests: In arrival order.
        limit: How many items to take at most, the first to arrive.
        k: How many passages of a request to keep, the best ones.
        max_chars: Characters of a passage to keep, up to the end of a word.

    Raises:
        ValueError: If an argument is out of range, or no request can tell anything.
    """
    for name, value in (("items", limit), ("k", k), ("max_chars", max_chars)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")
    contexts = [
        tuple(dict.fromkeys(_cut(block, max_chars) for block in request.blocks))[:k] for request in requests
    ]
    batch = ContextPilot(on_error="raise").prepare_batch(contexts)
    answerable = [
        place
        for place, (request, context) in enumerate(zip(requests, contexts, strict=True))
        if request.query and any(contains_answer(block.text, request.answers) for block in context)
    ]
    reordered = [place for place in answerable if batch.plans[place].order_annotation]
    if not answerable:
        raise ValueError(
            'no request has a question ("query") and an "answer" that stands in one of its passages as sent; '
            "give answers, the passages' texts, or a larger --max-chars"
        )
    if not reordered:
        raise ValueError("no request is reordered, so there is nothing to compare; give more that overlap")
    taken = set(reordered[:limit])
    items = tuple(
        QualityItem(
            query_id=requests[place].query_id,
            question=requests[place].query or "",
            answers=requests[place].answers,
            relevance=contexts[place],
            aligned=batch.plans[place].blocks,
            wrong_answer=_wrong_answer(requests[place].answers, contexts[place], requests),
        )
        for place in batch.schedule
        if place in taken
    )
    return Selection(len(requests), len(answerable), len(reordered), items)


def neutral_sentence(words: int) -> str:
    """Return a sentence of about so many words, or tokens of a small model, that says nothing of order."""
    filler = " ".join(_FILLER).split()
    middle = [filler[n % len(filler)] for n in range(max(0, words - 9))]
    return " ".join(["Please read the context", *middle, "and answer the question."])


def _wrong_answer(
    answers: Sequence[str], context: Sequence[ContextBlock], requests: Sequence[TraceRequest]
) -> str:
    others = (
        answer
        for request in requests
        for answer in request.answers[:1]
        if not contains_answer(answer, answers)
        and not any(contains_answer(block.text, [answer]) for block in context)
    )
    found = max(others, key=lambda answer: token_f1(answer, answers), default=None)
    if found is None:
        raise ValueError(
            f"no other request's answer is wrong for {reprlib.repr(answers[0])}; "
            "give requests whose answers differ"
        )
    return found


_FILLER = (
    "that has been put together from the pages of several texts written by people who know their matter",
    "for readers who want to learn about it in plain words and with the care that such a subject asks for",
    "so that everybody can find what they are looking for at home or at work or on the way between the two",
)


def _cut(block: ContextBlock, max_chars: int) -> ContextBlock:
    if len(block.text) <= max_chars:
        return block
    cut = block.text[:max_chars]
    return ContextBlock(block.id, cut if block.text[max_chars].isspace() else cut.rpartition(" ")[0] or cut)
