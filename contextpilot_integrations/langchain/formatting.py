"""Documents into a prompt's text: the blocks, and right before the question what their order was.

Each is a plain function; LangChain makes it a step of a chain: ``retriever | format_documents``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from langchain_core.documents import Document

from contextpilot_integrations import annotation
from contextpilot_integrations.langchain.documents import plan_metadata, relevance_ranks, to_block

__all__ = ["format_context", "format_documents", "order_annotation"]


def format_documents(documents: Sequence[Document]) -> str:
    r"""Write documents one paragraph each, and after them the order annotation where there is one.

    Put the question behind it ("{context}\n\n{question}"). For a template with something between the
    blocks and the question: ``retriever | {"context": format_context, "order": order_annotation}``.
    """
    return "\n\n".join(filter(None, (format_context(documents), order_annotation(documents))))


def format_context(documents: Sequence[Document]) -> str:
    """Write documents in the order given, one paragraph each: a marker, then the text verbatim."""
    return "\n\n".join(to_block(document).render() for document in documents)


def order_annotation(documents: Sequence[Document]) -> str:
    """Tell the model the order of relevance, where the documents stand in another.

    It names just the documents given, so a step after the pilot may have dropped some. It is empty where
    they are in order of relevance, did not all come from one plan or were reordered since, and where
    markers would be ambiguous.
    """
    ranks = relevance_ranks(documents)
    if not ranks or all(before < after for before, after in pairwise(ranks)):
        return ""
    blocks = [to_block(document) for document in documents]
    if annotation.is_ambiguous(blocks):
        return ""
    relevance = [block for _, block in sorted(zip(ranks, blocks, strict=True), key=lambda ranked: ranked[0])]
    entry = plan_metadata(documents[0])
    template = entry["order_template"] if entry else annotation.ORDER_TEMPLATE
    return annotation.order_annotation(relevance, template)
