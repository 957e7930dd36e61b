"""LangChain documents as context blocks, and back with the plan in their metadata.

The plan travels on the documents themselves, as plain JSON: they may be pickled, serialized or filtered
on their way to the prompt.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from itertools import pairwise
from types import MappingProxyType
from typing import Any, TypedDict, TypeVar, cast

from langchain_core.documents import Document

from contextpilot_integrations.block import BlockId, ContextBlock
from contextpilot_integrations.plan import Plan

__all__ = [
    "PLAN_KEY",
    "PlanMetadata",
    "check_documents",
    "plan_metadata",
    "planned_documents",
    "relevance_ranks",
    "to_block",
]

PLAN_KEY = "contextpilot"

T = TypeVar("T")


class PlanMetadata(TypedDict):
    """What ``metadata["contextpilot"]`` holds, plain JSON.

    Attributes:
        rank: The document's place among those retrieved, counted from 0, best first.
        position: Its place in the order to send, counted from 0.
        label: What its marker in the prompt shows.
        digest: 32 hex digits that stand for its id and text.
        shown_as: The location annotation that the prompt shows instead of its text, which the model can see
            in an earlier message. None where the text is sent.
        request: Hex digits, equal on all documents that were planned together.
        outcome: What became of the request (`Outcome`).
        search_path: Where the request's node stands in the context index.
        expected_cached_blocks: How many leading blocks the engine should have cached.
        expected_cached_tokens: Their weight in tokens, by the pilot's token counter.
        order_template: The order annotation's wording.
        schedule_position: The request's turn in its batch, counted from 0. None where it was planned alone.
    """

    rank: int
    position: int
    label: str
    digest: str
    shown_as: str | None
    request: str
    outcome: str
    search_path: list[int]
    expected_cached_blocks: int
    expected_cached_tokens: int
    order_template: str
    schedule_position: int | None


def to_block(document: Document) -> ContextBlock:
    """Return the context block that a document is.

    Its id is the document's id, else a digest of the text: never its rank. An id in the metadata is not
    taken, since chunks often carry their parent's. Nothing of the metadata gets into the prompt.
    """
    identity: BlockId | None = document.id
    if identity is None:
        text = document.page_content.encode("utf-8", "surrogatepass")
        identity = hashlib.blake2b(text, digest_size=16).hexdigest()
    return ContextBlock(identity, document.page_content)


def plan_metadata(document: Document) -> PlanMetadata | None:
    """Return what the pilot wrote into a document's metadata; None where it never saw the document."""
    entry = document.metadata.get(PLAN_KEY)
    if isinstance(entry, dict) and entry.keys() >= PlanMetadata.__required_keys__:
        return cast(PlanMetadata, entry)
    return None


def relevance_ranks(documents: Sequence[Document]) -> list[int] | None:
    """Return the ranks of documents that still stand in the order of one plan; some may be gone.

    None where there is no such plan. A later step that puts documents in another order, or adds some,
    has the last word: its order is then the order of relevance.
    """
    entries = [entry for document in documents if (entry := plan_metadata(document))]
    if len(entries) < len(documents) or len({entry["request"] for entry in entries}) > 1:
        return None
    if any(before["position"] >= after["position"] for before, after in pairwise(entries)):
        return None
    return [entry["rank"] for entry in entries]


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
    relevance = sorted(zip(plan.ranks, plan.blocks, strict=True), key=lambda ranked: ranked[0])
    request = hashlib.blake2b(b"".join(block.digest for _, block in relevance), digest_size=8).hexdigest()
    return [
        _with_plan(
            documents[place],
            PlanMetadata(
                rank=ranks[place],
                position=position,
                label=block.label,
                digest=block.digest.hex(),
                shown_as=annotations.get(place),
                request=request,
                outcome=plan.outcome.value,
                search_path=list(plan.search_path),
                expected_cached_blocks=plan.expected_cached_blocks,
                expected_cached_tokens=plan.expected_cached_tokens,
                order_template=order_template,
                schedule_position=schedule_position,
            ),
        )
        for position, (place, block) in enumerate(zip(plan.ranks, plan.blocks, strict=True))
    ]


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
    fields: dict[str, Any] = {
        name: _copied(value) for name, value in vars(document).items() if name != "metadata"
    }
    # Key by key, so that one value that cannot be copied does not leave the whole mapping shared.
    fields["metadata"] = {key: _copied(value) for key, value in document.metadata.items()} | {PLAN_KEY: entry}
    return document.model_copy(update=fields)


def _copied(value: T) -> T:
    """Copy a value all the way down; what refuses (a lock, a client) is shared."""
    try:
        return deepcopy(value)
    except Exception:
        return value
