"""A turn's memories as text for the turn's own message, less what the model can see already."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from contextpilot_integrations.annotation import is_ambiguous, location_annotation
from contextpilot_integrations.block import ContextBlock, marker
from contextpilot_integrations.mem0.found_ids import FoundIds
from contextpilot_integrations.mem0.view import View
from contextpilot_integrations.namespace import Namespace
from contextpilot_integrations.pilot import ContextPilot, estimate_tokens
from contextpilot_integrations.plan import Outcome, Plan
from contextpilot_integrations.wording import Wording

__all__ = ["UPDATE_TEMPLATE", "TurnContext", "TurnText", "turn_text"]

UPDATE_TEMPLATE = "Please note that {new} replaces {old} in the previous conversation."


@dataclass(frozen=True, slots=True)
class TurnContext:
    """A turn's memories.

    Attributes:
        text: For the turn's own message; put the question behind an empty line. Empty where nothing was
            found.
        found: What Mem0 found, copied, with the plan beside (`MemoryEntry`, `PlanEntry`).
        plan: The same plan: the blocks of all memories found that have a text, and whose they are.
    """

    text: str = field(repr=False)
    found: dict[str, Any] = field(repr=False)
    plan: Plan


@dataclass(frozen=True, slots=True)
class TurnText:
    """The text of a turn and how it came about.

    Attributes:
        text: The text.
        plan: What was planned.
        shown_as: The annotations that stand for memories in view, by rank.
        replaces: The labels of what memories were updated from, by rank.
    """

    text: str
    plan: Plan
    shown_as: dict[int, str] = field(default_factory=dict)
    replaces: dict[int, str] = field(default_factory=dict)


def turn_text(
    blocks: Sequence[ContextBlock],
    messages: Sequence[Mapping[str, Any]],
    *,
    pilot: ContextPilot,
    namespace: Namespace,
    update_template: str,
    ids: FoundIds,
) -> TurnText:
    """Write a turn's memories.

    Before the model's first answer they are aligned, for other conversations may share what they begin with.
    Behind it the prompt's prefix is the conversation, which no other request shares: there they keep their
    order of relevance, and those in view are named instead of repeated.

    Args:
        blocks: The memories' blocks, best first.
        messages: All that go out before the turn's own.
        pilot: Who aligns, counts tokens and has the wording.
        namespace: Whose cache the prompt meets; its preamble is what stands before the first message.
        update_template: How it is said that a memory was updated.
        ids: The ids of labels, as far as they are known; those of the blocks are added.
    """
    try:
        count = pilot.token_counter or estimate_tokens
        wording = Wording(pilot.location_template, pilot.passage_template, count)
        ids.add(blocks)
        view = View(blocks, messages, wording, update_template, ids)
        if view.answered or any(view.shows(block) or view.replaced_by(block) for block in blocks):
            return _Writer(blocks, view, wording, update_template).written(namespace)
    except Exception as error:
        pilot.report_failure(error)
        plan = Plan(tuple(blocks), tuple(range(len(blocks))), outcome=Outcome.FAILED, namespace=namespace)
        return TurnText(plan.render(), plan)
    if messages:
        namespace = _behind(messages, namespace)
    plan = pilot.prepare(blocks, namespace=namespace)
    return TurnText("\n\n".join(filter(None, (plan.render(), plan.order_annotation))), plan)


def _behind(messages: Sequence[Mapping[str, Any]], namespace: Namespace) -> Namespace:
    preamble = json.dumps([namespace.preamble, *map(dict, messages)], ensure_ascii=False, default=repr)
    return Namespace(namespace.endpoint, namespace.model, namespace.tenant, preamble)


class _Writer:
    """Writes the memories of a turn that others went before."""

    def __init__(
        self,
        blocks: Sequence[ContextBlock],
        view: View,
        wording: Wording,
        update_template: str,
    ) -> None:
        self._blocks, self._view = blocks, view
        self._wording, self._update_template = wording, update_template
        self._paragraphs: list[str] = []
        self._shown_as: dict[int, str] = {}
        self._replaces: dict[int, str] = {}

    def written(self, namespace: Namespace) -> TurnText:
        first: dict[bytes, int] = {}
        for rank, block in enumerate(self._blocks):
            first.setdefault(block.digest, rank)
        ranks = tuple(first.values())
        sent = tuple([self._blocks[rank] for rank in ranks])
        # Where a marker could be read as naming another text, nothing is named.
        ambiguous = is_ambiguous(sent)
        in_view: list[int] = []
        for rank, block in zip(ranks, sent, strict=True):
            if not ambiguous and self._view.shows(block):
                in_view.append(rank)
                continue
            self._name(in_view)
            in_view = []
            self._paragraphs.append(block.render())
            if not ambiguous and (old := self._view.replaced_by(block)) is not None:
                self._replaces[rank] = old
                self._paragraphs.append(_update(block.label, old, self._update_template))
        self._name(in_view)
        plan = Plan(
            sent,
            ranks,
            duplicates=tuple(sorted({*range(len(self._blocks))}.difference(ranks))),
            outcome=Outcome.LABEL_COLLISION if ambiguous else Outcome.UNCHANGED,
            namespace=namespace,
        )
        return TurnText("\n\n".join(self._paragraphs), plan, self._shown_as, self._replaces)

    def _name(self, ranks: Sequence[int]) -> None:
        """Name neighbours that are in view, in one annotation, where that is shorter than to repeat them."""
        if not ranks:
            return
        blocks = [self._blocks[rank] for rank in ranks]
        named = ", ".join([marker(block.label) for block in blocks])
        annotation = location_annotation(named, self._wording.location)
        in_full = "\n\n".join([block.render() for block in blocks])
        if self._wording.count(annotation) < self._wording.count(in_full):
            self._paragraphs.append(annotation)
            self._shown_as.update(dict.fromkeys(ranks, annotation))
        else:
            self._paragraphs.append(in_full)


def _update(new: str, old: str, template: str) -> str:
    return template.replace("{new}", marker(new)).replace("{old}", marker(old))
