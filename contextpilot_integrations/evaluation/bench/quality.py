"""Whether reordering hurts the answers of a real model, and whether the order annotation repairs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, Protocol

from contextpilot_integrations.evaluation.answers import contains_answer, token_f1
from contextpilot_integrations.evaluation.bench.paired import MeanInterval, bootstrap_mean
from contextpilot_integrations.evaluation.bench.quality_items import (
    QualityItem,
    Selection,
    Variant,
    neutral_sentence,
)

__all__ = [
    "ANSWER_TOKENS",
    "CONTRASTS",
    "MEASURES",
    "SYSTEM",
    "Difference",
    "Model",
    "QualityResult",
    "Score",
    "bench_quality",
    "findings",
    "score_answers",
]

SYSTEM = "Answer the question from the context below, in a few words."
ANSWER_TOKENS = 16
MEASURES = ("log_likelihood", "margin", "match", "f1")

CONTRASTS = (
    *((variant, Variant.ORIGINAL) for variant in Variant if variant is not Variant.ORIGINAL),
    # Whether the annotation works, and whether by what it says: not by being there, nor by any order.
    (Variant.ANNOTATED, Variant.ALIGNED),
    (Variant.ANNOTATED, Variant.NEUTRAL),
    (Variant.ANNOTATED, Variant.WRONG),
)
"""The pairs that are compared: a variant, and against which."""


class Model(Protocol):
    """What is asked of a model: see `LlamaCppClient`."""

    def prompt_tokens(self, system: str, user: str) -> list[int]:
        """Return the tokens of a chat, up to where the answer begins."""

    def answer_tokens(self, text: str) -> list[int]:
        """Return the tokens of an answer."""

    def log_likelihoods(self, prompt: Sequence[int], answer: Sequence[int]) -> list[float]:
        """Return the log-probability of each token of an answer."""

    def complete(self, prompt: Sequence[int], *, max_tokens: int) -> str:
        """Return the greedy answer."""


@dataclass(frozen=True, slots=True)
class Score:
    """How well a model did on one prompt.

    Attributes:
        log_likelihood: The mean log-probability of a token of the first right answer, in nats.
        margin: How much that is above the same of a wrong answer. What makes any short answer likelier, such
            as a call to be brief, leaves it as it is.
        match: 1.0 where the words of a right answer stand in the greedy answer, else 0.0.
        f1: The words that the greedy answer shares with the right one, from 0.0 to 1.0.
        prompt_tokens: The prompt's length.
        text: The greedy answer.
    """

    log_likelihood: float
    margin: float
    match: float
    f1: float
    prompt_tokens: int
    text: str


@dataclass(frozen=True, slots=True)
class Difference:
    """A variant minus another one, over the same items.

    Attributes:
        variant: Which one.
        against: Minus which.
        measure: In what: ``log_likelihood`` or ``margin`` (nats per token), ``match`` or ``f1`` (shares).
        interval: The mean difference, and its 95 % interval.
    """

    variant: Variant
    against: Variant
    measure: str
    interval: MeanInterval

    def to_dict(self) -> dict[str, Any]:
        """Return the figures under their names."""
        pair = {"variant": self.variant.value, "against": self.against.value, "measure": self.measure}
        return {**pair, **asdict(self.interval)}


@dataclass(frozen=True, slots=True)
class QualityResult:
    """All scores of a run.

    Attributes:
        model: The model's name.
        selection: What was asked.
        scores: For each variant its scores, in the order of the items.
    """

    model: str
    selection: Selection
    scores: Mapping[Variant, tuple[Score, ...]]

    def mean(self, variant: Variant, measure: str) -> float:
        """Return a variant's mean over the items."""
        return fmean(self._values(variant, measure))

    def difference(self, variant: Variant, against: Variant, measure: str) -> Difference:
        """Return the paired difference of two variants."""
        pairs = zip(self._values(variant, measure), self._values(against, measure), strict=True)
        return Difference(variant, against, measure, bootstrap_mean([one - other for one, other in pairs]))

    def differences(self) -> list[Difference]:
        """Return all paired differences, measure by measure."""
        return [self.difference(*pair, measure) for measure in MEASURES for pair in CONTRASTS]

    def to_dict(self) -> dict[str, Any]:
        """Return the figures under their names."""
        return {
            "model": self.model,
            "items": len(self.selection.items),
            "requests": self.selection.requests,
            "answerable": self.selection.answerable,
            "reordered": self.selection.reordered,
            "variants": [
                {
                    "variant": variant.value,
                    "prompt_tokens": self.mean(variant, "prompt_tokens"),
                    **{measure: self.mean(variant, measure) for measure in MEASURES},
                }
                for variant in self.scores
            ],
            "differences": [difference.to_dict() for difference in self.differences()],
        }

    def _values(self, variant: Variant, measure: str) -> list[float]:
        return [getattr(score, measure) for score in self.scores[variant]]


def bench_quality(
    selection: Selection, model: Model, name: str, *, on_scored: Callable[[], object] = lambda: None
) -> QualityResult:
    """Score every item in every variant.

    Args:
        selection: The items.
        model: Who answers.
        name: What it is called.
        on_scored: Called after each item and variant.

    Raises:
        OSError: If the model's server fails.
    """
    scores: dict[Variant, list[Score]] = {variant: [] for variant in Variant}
    # Prompts that begin alike run one after another, so that a server with one slot finds them cached.
    orders = (
        (Variant.ORIGINAL, Variant.ORIGINAL_ANNOTATED),
        (Variant.ALIGNED, Variant.ANNOTATED, Variant.WRONG, Variant.NEUTRAL),
    )
    for variants in orders:
        for item in selection.items:
            neutral = neutral_sentence(len(model.answer_tokens(item.annotation)))
            for variant in variants:
                scores[variant].append(score_answers(model, item, item.user_message(variant, neutral)))
                on_scored()
    return QualityResult(name, selection, {variant: tuple(found) for variant, found in scores.items()})


def score_answers(model: Model, item: QualityItem, user: str) -> Score:
    """Score the right answer and the model's own one after a prompt.

    Args:
        model: Who answers.
        item: The question, for its answers.
        user: The user's message, after the system prompt that all prompts share.

    Raises:
        OSError: If the model's server fails.
    """
    prompt = model.prompt_tokens(SYSTEM, user)
    right, wrong = (
        fmean(model.log_likelihoods(prompt, model.answer_tokens(answer)))
        for answer in (item.answers[0], item.wrong_answer)
    )
    text = model.complete(prompt, max_tokens=ANSWER_TOKENS)
    return Score(
        log_likelihood=right,
        margin=right - wrong,
        match=float(contains_answer(text, item.answers)),
        f1=token_f1(text, item.answers),
        prompt_tokens=len(prompt),
        text=text,
    )


def findings(result: QualityResult) -> Iterable[str]:
    """Say in sentences what the likelihoods show, and what they do not."""
    questions = {
        "Reordering alone": (Variant.ALIGNED, Variant.ORIGINAL),
        "Reordering with the annotation": (Variant.ANNOTATED, Variant.ORIGINAL),
        "The annotation after reordering": (Variant.ANNOTATED, Variant.ALIGNED),
        "The annotation instead of a neutral sentence": (Variant.ANNOTATED, Variant.NEUTRAL),
        "The annotation instead of one that names the wrong order": (Variant.ANNOTATED, Variant.WRONG),
    }
    for subject, pair in questions.items():
        likelihood, margin = (
            _change(result.difference(*pair, measure).interval) for measure in ("log_likelihood", "margin")
        )
        yield f"{subject}: the right answer's likelihood {likelihood}; its lead over a wrong answer {margin}."
    yield (
        f"All of it holds for {result.model}, these {len(result.selection.items)} reordered prompts and this "
        "prompt's wording; it says nothing about larger models. Each interval stands for itself: of twenty "
        "comparisons without any effect, one is expected to look like one."
    )


def _change(interval: MeanInterval) -> str:
    verb = "falls" if interval.high < 0 else "rises" if interval.low > 0 else "shows no change"
    return f"{verb} ({interval.mean:+.3f} nats a token, {interval.low:+.3f} to {interval.high:+.3f})"
