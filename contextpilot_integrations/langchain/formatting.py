"""Documents into a prompt's text: the blocks, and right before the question what their order was.

Each is a Runnable, a step of a chain: ``retriever | format_documents``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda

from contextpilot_integrations.langchain.documents import plan_metadata, to_block
from contextpilot_integrations.plan_metadata import order_annotation as planned_order_annotation

__all__ = ["format_context", "format_documents", "order_annotation"]


def _context(documents: Sequence[Document]) -> str:
    return "\n\n".join(map(_shown, documents))


def _shown(document: Document) -> str:
    block, entry = to_block(document), plan_metadata(document)
    # The annotation stands for the text that was planned; a step behind the pilot may have changed it.
    if entry and entry["shown_as"] is not None and entry["digest"] == block.digest.hex():
        return entry["shown_as"]
    return block.render()


def _annotation(documents: Sequence[Document]) -> str:
    entries = [plan_metadata(document) for document in documents]
    return planned_order_annotation(entries, [to_block(document) for document in documents])


def _context_and_annotation(documents: Sequence[Document]) -> str:
    return "\n\n".join(filter(None, (_context(documents), _annotation(documents))))


def _step(name: str, write: Callable[[Sequence[Document]], str]) -> RunnableLambda[Sequence[Document], str]:
    async def twin(documents: Sequence[Document]) -> str:
        return write(documents)  # In the loop: there is nothing to wait for.

    return RunnableLambda(write, afunc=twin, name=name)


format_context = _step("format_context", _context)
"""Writes documents in the order given, one paragraph each: a marker, then the text verbatim.

A document whose text stands in an earlier message is written as the annotation that says so.
"""

order_annotation = _step("order_annotation", _annotation)
"""Tells the model the order of relevance, where the documents stand in another.

It names just the documents given, so a step after the pilot may have dropped some. It is empty where they
are in order of relevance, did not all come from one plan or were reordered since, and where markers would
be ambiguous.
"""

format_documents = _step("format_documents", _context_and_annotation)
"""Writes documents one paragraph each, and after them the order annotation where there is one.

Put the question behind it (``"{context}\\n\\n{question}"``). For a template with something between the blocks
and the question: ``retriever | {"context": format_context, "order": order_annotation}``.
"""
