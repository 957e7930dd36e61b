"""Documents whose text the model can see already, shown by an annotation that says where."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from langchain_core.documents import Document

from contextpilot_integrations.annotation import is_ambiguous, location_annotation
from contextpilot_integrations.block import marker
from contextpilot_integrations.langchain.documents import planned_documents, to_block
from contextpilot_integrations.langchain.sessions import Fingerprint
from contextpilot_integrations.pilot import ContextPilot, estimate_tokens
from contextpilot_integrations.plan import Outcome, Plan

__all__ = ["deduplicated"]


def deduplicated(
    documents: Sequence[Document], in_view: Collection[Fingerprint], pilot: ContextPilot
) -> list[Document]:
    """Return copies of a request's documents, best first, each once, the plan in their metadata.

    Those whose blocks are in view are shown by an annotation, where that is shorter; all are in full
    where a marker could be read as naming another text.

    Args:
        documents: The request, best first.
        in_view: The blocks that stand in messages before.
        pilot: Has the wording, and counts tokens.
    """
    blocks = [to_block(document) for document in documents]
    first: dict[bytes, int] = {}
    for rank, block in enumerate(blocks):
        first.setdefault(block.digest, rank)
    ranks = tuple(first.values())
    sent = tuple([blocks[rank] for rank in ranks])
    ambiguous = is_ambiguous(sent)
    count = pilot.token_counter or estimate_tokens
    annotations = {}
    for rank, block in zip(ranks, sent, strict=True):
        if not ambiguous and Fingerprint.of(block) in in_view:
            annotation = location_annotation(marker(block.label), pilot.location_template)
            if count(annotation) < count(block.render()):
                annotations[rank] = annotation
    plan = Plan(
        sent,
        ranks,
        duplicates=tuple(sorted({*range(len(blocks))}.difference(ranks))),
        outcome=Outcome.LABEL_COLLISION if ambiguous else Outcome.UNCHANGED,
    )
    return planned_documents(
        plan, documents, range(len(documents)), order_template=pilot.order_template, annotations=annotations
    )
