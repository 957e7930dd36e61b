"""What an adapter costs a request beyond planning itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter_ns
from typing import Any, TypeAlias

from contextpilot_integrations.block import ContextBlock
from contextpilot_integrations.evaluation.bench.contexts import draw_contexts
from contextpilot_integrations.evaluation.bench.quantiles import nearest_rank
from contextpilot_integrations.pilot import ContextPilot

__all__ = ["AdapterLatency", "bench_adapters"]

_CHARACTERS = 500
_WARM_UP = 50
_TURNS = 10

Call: TypeAlias = Callable[[], object]
Calls: TypeAlias = list[tuple[Call, Call | None]]
"""Each request through the adapter, and through the ecosystem alone."""


@dataclass(frozen=True, slots=True)
class AdapterLatency:
    """Milliseconds of a request, each the median of all.

    Attributes:
        adapter: Which one; "openai.Completions" plans and writes the messages, and sends nothing, and each
            request of "mem0.ContextPilotMemory.turn_context" is a turn of a conversation that has ten.
        k: Blocks in each request.
        ours_ms: Retrieving at once and planning, through the adapter.
        plain_ms: Retrieving at once, through the ecosystem alone; 0 where without the adapter there would be
            no step at all.
        core_ms: Planning the same blocks (`ContextPilot.prepare`).
    """

    adapter: str
    k: int
    ours_ms: float
    plain_ms: float
    core_ms: float

    @property
    def overhead_ms(self) -> float:
        """What the adapter itself takes."""
        return self.ours_ms - self.plain_ms - self.core_ms

    def to_dict(self) -> dict[str, Any]:
        """Return the figures under their names."""
        return {
            "adapter": self.adapter,
            "k": self.k,
            "ours_ms": self.ours_ms,
            "plain_ms": self.plain_ms,
            "core_ms": self.core_ms,
            "overhead_ms": self.overhead_ms,
        }


def bench_adapters(
    requests: int = 500, k: int = 20, *, on_measured: Callable[[], object] = lambda: None
) -> list[AdapterLatency]:
    """Measure the adapters whose ecosystems are installed, all on the same requests.

    For every request the three are taken in turn, so a machine that slows down is as slow for all.

    Args:
        requests: How many requests, drawn by Zipf from 600 blocks.
        k: Blocks in each.
        on_measured: Called after each adapter.

    Raises:
        ValueError: If ``requests`` is less than 1, or ``k`` not from 1 to 600.
    """
    if requests < 1:
        raise ValueError(f"requests must be at least 1, not {requests}")
    contexts = [
        [ContextBlock(f"document-{number}", _text(number)) for number in drawn]
        for drawn in draw_contexts(requests + _WARM_UP, k)
    ]
    results = []
    for name, adapter in _ADAPTERS.items():
        try:
            calls = adapter(contexts)
        except ImportError:
            continue
        results.append(_measured(name, k, contexts, calls))
        on_measured()
    return results


def _measured(name: str, k: int, contexts: Sequence[Sequence[ContextBlock]], calls: Calls) -> AdapterLatency:
    core = ContextPilot()
    times: list[tuple[int, int, int]] = []
    for context, (ours, plain) in zip(contexts, calls, strict=True):
        times.append((_ns(ours), _ns(plain) if plain else 0, _ns(partial(core.prepare, context))))
    ours_ms, plain_ms, core_ms = (
        nearest_rank(column, 0.5) / 1e6 for column in zip(*times[_WARM_UP:], strict=True)
    )
    return AdapterLatency(name, k, ours_ms, plain_ms, core_ms)


def _ns(call: Call) -> int:
    start = perf_counter_ns()
    call()
    return perf_counter_ns() - start


def _text(number: int) -> str:
    return f"What document {number} says. " * (_CHARACTERS // 25)


def _metadata(block: ContextBlock) -> dict[str, Any]:
    """Return what LlamaIndex's SimpleDirectoryReader notes of a file."""
    return {
        "page_label": "7",
        "file_name": f"{block.id}.pdf",
        "file_path": f"/handbook/{block.id}.pdf",
        "file_type": "application/pdf",
        "file_size": 123_456,
        "creation_date": "2026-01-31",
        "last_modified_date": "2026-02-28",
    }


def _langchain_retriever(contexts: Sequence[Sequence[ContextBlock]]) -> Calls:
    from langchain_core.callbacks import CallbackManagerForRetrieverRun
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever

    from contextpilot_integrations.langchain import ContextPilotRetriever

    class Finds(BaseRetriever):
        def _get_relevant_documents(
            self, query: str, *, run_manager: CallbackManagerForRetrieverRun
        ) -> list[Document]:
            return found[int(query)]

    found = _documents(contexts)
    plain = Finds()
    ours = ContextPilotRetriever(retriever=plain)
    return [
        (partial(ours.invoke, str(place)), partial(plain.invoke, str(place)))
        for place in range(len(contexts))
    ]


def _langchain_aligner(contexts: Sequence[Sequence[ContextBlock]]) -> Calls:
    from contextpilot_integrations.langchain import ContextPilotAligner

    ours = ContextPilotAligner()
    return [(partial(ours.invoke, documents), None) for documents in _documents(contexts)]


def _documents(contexts: Sequence[Sequence[ContextBlock]]) -> list[list[Any]]:
    from langchain_core.documents import Document

    return [
        [Document(block.text, id=str(block.id), metadata=_metadata(block)) for block in context]
        for context in contexts
    ]


def _llama_index_retriever(contexts: Sequence[Sequence[ContextBlock]]) -> Calls:
    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.schema import NodeWithScore, QueryBundle

    from contextpilot_integrations.llama_index import ContextPilotRetriever

    class Finds(BaseRetriever):
        def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
            return found[int(query_bundle.query_str)]

    found = _nodes(contexts)
    plain = Finds()
    ours = ContextPilotRetriever(plain)
    return [
        (partial(ours.retrieve, str(place)), partial(plain.retrieve, str(place)))
        for place in range(len(contexts))
    ]


def _llama_index_postprocessor(contexts: Sequence[Sequence[ContextBlock]]) -> Calls:
    from contextpilot_integrations.llama_index import ContextPilotPostprocessor

    ours = ContextPilotPostprocessor()
    return [(partial(ours.postprocess_nodes, nodes), None) for nodes in _nodes(contexts)]


def _nodes(contexts: Sequence[Sequence[ContextBlock]]) -> list[list[Any]]:
    from llama_index.core.schema import NodeRelationship, NodeWithScore, RelatedNodeInfo, TextNode

    def node(block: ContextBlock) -> NodeWithScore:
        metadata = _metadata(block)
        hidden = [key for key in metadata if key not in ("page_label", "file_path")]
        relationships = {
            kind: RelatedNodeInfo(node_id=f"{block.id}-{kind.value}", metadata=metadata)
            for kind in (NodeRelationship.SOURCE, NodeRelationship.PREVIOUS, NodeRelationship.NEXT)
        }
        return NodeWithScore(
            node=TextNode(
                id_=str(block.id),
                text=block.text,
                metadata=metadata,
                relationships=relationships,
                excluded_llm_metadata_keys=hidden,
                excluded_embed_metadata_keys=hidden,
            ),
            score=0.5,
        )

    return [[node(block) for block in context] for context in contexts]


def _mem0_memory(contexts: Sequence[Sequence[ContextBlock]]) -> Calls:
    from contextpilot_integrations.mem0 import ContextPilotMemory

    plain = _mem0_finds(contexts)
    ours = ContextPilotMemory(plain)
    return [
        (partial(ours.search, str(place)), partial(plain.search, str(place)))
        for place in range(len(contexts))
    ]


def _mem0_turn_context(contexts: Sequence[Sequence[ContextBlock]]) -> Calls:
    from contextpilot_integrations.mem0 import ContextPilotMemory

    plain = _mem0_finds(contexts)
    ours = ContextPilotMemory(plain)
    messages: list[dict[str, str]] = []

    def turn(place: int) -> None:
        if place % _TURNS == 0:
            messages.clear()
        text = ours.turn_context(str(place), messages).text
        messages.append({"role": "user", "content": f"{text}\n\nWhy?"})
        messages.append({"role": "assistant", "content": "That is why."})

    return [(partial(turn, place), partial(plain.search, str(place))) for place in range(len(contexts))]


def _mem0_finds(contexts: Sequence[Sequence[ContextBlock]]) -> Any:
    class Finds:
        def search(self, query: str) -> dict[str, Any]:
            return {"results": found[int(query)]}

    found = [
        [{"id": block.id, "memory": block.text, "score": 0.5, "metadata": None} for block in context]
        for context in contexts
    ]
    return Finds()


def _openai_completions(contexts: Sequence[Sequence[ContextBlock]]) -> Calls:
    import openai

    from contextpilot_integrations.openai import Completions

    client = openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="none")
    ours = Completions(ContextPilot(), client, model="model")
    return [(partial(ours.stream, context, "Why?"), None) for context in contexts]


_ADAPTERS: dict[str, Callable[[Sequence[Sequence[ContextBlock]]], Calls]] = {
    "langchain.ContextPilotRetriever": _langchain_retriever,
    "langchain.ContextPilotAligner": _langchain_aligner,
    "llama_index.ContextPilotRetriever": _llama_index_retriever,
    "llama_index.ContextPilotPostprocessor": _llama_index_postprocessor,
    "mem0.ContextPilotMemory": _mem0_memory,
    "mem0.ContextPilotMemory.turn_context": _mem0_turn_context,
    "openai.Completions": _openai_completions,
}
