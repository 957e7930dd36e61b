"""LangChain documents as context blocks, and back with the plan in their metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from langchain_core.documents import Document

from contextpilot_integrations.block import ContextBlock
from contextpilot_integrations.plan import Plan
from contextpilot_integrations.plan_metadata import (
    PLAN_KEY,
    PlanMetadata,
    copied,
    plan_entries,
    ranks_in_order,
    read_plan,
    text_id,
)

__all__ = [
    "PLAN_KEY",
    "PlanMetadata",
    "check_documents",
    "plan_metadata",
    "planned_documents",
    "relevance_ranks",
    "to_block",
]


def to_block(document: Document) -> ContextBlock:
    """Return the context block that a document is.

    Its id is the document's id, else a digest of the text: never its rank. An id in the metadata is not
    taken, since chunks often carry their parent's. Nothing of the metadata gets into the prompt.
    """
    text = document.page_content
    return ContextBlock(text_id(text) if document.id is None else document.id, text)


def plan_metadata(document: Document) -> PlanMetadata | None:
    """Return what the pilot wrote into a document's metadata; None where it never saw the document."""
    return read_plan(document.metadata)


def relevance_ranks(documents: Sequence[Document]) -> list[int] | None:
    """Return the ranks of documents that still stand in the order of one plan; some may be gone.

    None where there is no such plan. A later step that puts documents in another order, or adds some,
    has the last word: its order is then the order of relevance.
    """
    return ranks_in_order([plan_metadata(document) for document in documents])


def planned_documents(
    plan: Plan,
    documents: Sequence[Document],
    ranks: Sequence[int],
    *,
    order_template: str,
    schedule_position: int | None = None,
    annotations: Mapping[int, str] = MappingProxyType({}),
) -> list[Document]:
    """Return copies of a request's documents in the order to send, each with the plan in its metadata.

    Args:
        plan: What the pilot planned for them.
        documents: The request as it was given to the pilot.
        ranks: What to call the rank of each.
        order_template: The pilot's.
        schedule_position: The request's turn in its batch.
        annotations: What the prompt shows instead of a document's text, by its place in the request.
    """
    entries = plan_entries(
        plan,
        ranks,
        order_template=order_template,
        schedule_position=schedule_position,
        annotations=annotations,
    )
    return [_with_plan(documents[place], entry) for place, entry in entries]


def check_documents(documents: object) -> list[Document]:
    """Return the documents as a list.

    Raises:
        TypeError: If it is anything but a list or tuple of documents.
    """
    if not isinstance(documents, list | tuple):
        raise TypeError(f"documents must be a list of Document objects, not {type(documents).__name__}")
    for document in documents:
        if not isinstance(document, Document):
            raise TypeError(f"documents must be Document objects, not {type(document).__name__}")
    return list(documents)


def _with_plan(document: Document, entry: PlanMetadata) -> Document:
    fields = copied(vars(document))
    return document.model_copy(update={**fields, "metadata": {**fields["metadata"], PLAN_KEY: entry}})
