"""What the contract suite knows of an adapter. To put another one under contract, write a driver here."""

import copy
import random
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from llama_index.core.retrievers import BaseRetriever as LlamaIndexBaseRetriever
from llama_index.core.schema import NodeWithScore, TextNode

from contextpilot_integrations import ContextPilot, llama_index
from contextpilot_integrations.langchain import (
    ContextPilotAligner,
    ContextPilotCallbackHandler,
    ContextPilotRetriever,
    format_documents,
    plan_metadata,
)
from contextpilot_integrations.mem0 import AsyncContextPilotMemory, ContextPilotMemory, format_memories
from contextpilot_integrations.plan_metadata import text_id


@dataclass(frozen=True)
class Item:
    """A retrieved thing, before it takes the ecosystem's form."""

    id: str | None
    text: str
    score: float | None = None


@dataclass(frozen=True)
class Seen:
    """What an adapter gave out for one of them."""

    id: str | None
    text: str
    rank: int
    label: str


class Driver(ABC):
    """One adapter over one pilot, for one tenant and preamble."""

    def __init__(self, pilot: ContextPilot, *, tenant: str = "", preamble: str = "") -> None:
        self.pilot, self.tenant, self.preamble = pilot, tenant, preamble

    @abstractmethod
    def native(self, item: Item) -> Any:
        """Return the item in the ecosystem's form, its score where the ecosystem keeps scores."""

    @abstractmethod
    def send(self, natives: list[Any]) -> list[Any]:
        """Plan one request."""

    @abstractmethod
    async def asend(self, natives: list[Any]) -> list[Any]:
        """Plan one request through the async twin."""

    @abstractmethod
    def prompt(self, sent: list[Any]) -> str:
        """Return the prompt's context, order annotation included."""

    @abstractmethod
    def seen(self, sent: list[Any]) -> list[Seen]:
        """Return what was given out, in the order to send."""

    @abstractmethod
    def snapshot(self, natives: list[Any]) -> Any:
        """Return a deep copy that compares equal as long as nobody touches the natives."""

    def reaching(self, items: list[Item]) -> list[Item]:
        """Return those items that the ecosystem itself hands on to the adapter."""
        return items

    def written(self, text: str) -> str:
        """Return a block's text as the ecosystem writes it into a prompt."""
        return text


class _LangChain(Driver):
    def native(self, item: Item) -> Document:
        return Document(item.text, id=item.id, metadata={"score": item.score, "tags": ["kept"]})

    def prompt(self, sent: list[Document]) -> str:
        return format_documents.invoke(sent)

    def seen(self, sent: list[Document]) -> list[Seen]:
        for document in sent:
            assert document.metadata["tags"] == ["kept"]
        plans = [plan_metadata(document) for document in sent]
        return [
            Seen(d.id, d.page_content, p["rank"], p["label"]) for d, p in zip(sent, plans, strict=True) if p
        ]

    def snapshot(self, natives: list[Document]) -> Any:
        return [(id(document), copy.deepcopy(document)) for document in natives]


class _Finds(BaseRetriever):
    documents: list[Document]

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return self.documents

    async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return self.documents


class LangChainRetriever(_LangChain):
    def _retriever(self, natives: list[Document]) -> ContextPilotRetriever:
        # Not through the constructor: pydantic would copy the list, and the test could see nothing.
        wrapped = _Finds.model_construct(documents=natives)
        return ContextPilotRetriever(
            retriever=wrapped, pilot=self.pilot, tenant=self.tenant, preamble=self.preamble
        )

    def send(self, natives: list[Document]) -> list[Document]:
        return self._retriever(natives).invoke("question")

    async def asend(self, natives: list[Document]) -> list[Document]:
        return await self._retriever(natives).ainvoke("question")


class LangChainRetrieverInSession(LangChainRetriever):
    """A session's first turn: nothing is in view."""

    def _retriever(self, natives: list[Document]) -> Any:
        retriever = super()._retriever(natives)
        retriever.deduplicate = "session"
        return retriever.with_config(
            callbacks=[ContextPilotCallbackHandler()], configurable={"thread_id": "1"}
        )


class LangChainAligner(_LangChain):
    @property
    def aligner(self) -> ContextPilotAligner:
        return ContextPilotAligner(pilot=self.pilot, tenant=self.tenant, preamble=self.preamble)

    def send(self, natives: list[Document]) -> list[Document]:
        return self.aligner.invoke(natives)

    async def asend(self, natives: list[Document]) -> list[Document]:
        return await self.aligner.ainvoke(natives)


class LangChainAlignerBatch(LangChainAligner):
    def send(self, natives: list[Document]) -> list[Document]:
        return self.aligner.batch([natives])[0]

    async def asend(self, natives: list[Document]) -> list[Document]:
        return (await self.aligner.abatch([natives]))[0]


_UNNAMED = "unnamed-"  # A node always has an id.


class LlamaIndexPostprocessor(Driver):
    def native(self, item: Item) -> NodeWithScore:
        node = TextNode(
            id_=_UNNAMED + text_id(item.text) if item.id is None else item.id,
            text=item.text,
            metadata={"score": item.score, "tags": ["kept"]},
            excluded_llm_metadata_keys=["tags"],
        )
        return NodeWithScore(node=node, score=item.score)

    def settings(self) -> dict[str, Any]:
        return {"pilot": self.pilot, "tenant": self.tenant, "preamble": self.preamble}

    def send(self, natives: list[NodeWithScore]) -> list[NodeWithScore]:
        adapter = llama_index.ContextPilotPostprocessor(**self.settings())
        return adapter.postprocess_nodes(natives, query_str="question")

    async def asend(self, natives: list[NodeWithScore]) -> list[NodeWithScore]:
        adapter = llama_index.ContextPilotPostprocessor(**self.settings())
        return await adapter.apostprocess_nodes(natives, query_str="question")

    def prompt(self, sent: list[NodeWithScore]) -> str:
        return llama_index.format_nodes(sent)

    def seen(self, sent: list[NodeWithScore]) -> list[Seen]:
        for item in sent:
            assert item.metadata["tags"] == ["kept"]
            assert repr(item.score) == repr(item.metadata["score"])
        plans = [llama_index.plan_metadata(item) for item in sent]
        return [
            Seen(
                None if item.node_id.startswith(_UNNAMED) else item.node_id,
                item.text,
                plan["rank"],
                plan["label"],
            )
            for item, plan in zip(sent, plans, strict=True)
            if plan
        ]

    def snapshot(self, natives: list[NodeWithScore]) -> Any:
        return [(id(item), id(item.node), copy.deepcopy(item)) for item in natives]

    def written(self, text: str) -> str:
        return text.rstrip()


class _FindsNodes(LlamaIndexBaseRetriever):
    def __init__(self, nodes: list[NodeWithScore]) -> None:
        super().__init__()
        self.nodes = nodes

    def _retrieve(self, query_bundle: Any) -> list[NodeWithScore]:
        return self.nodes

    async def _aretrieve(self, query_bundle: Any) -> list[NodeWithScore]:
        return self.nodes


class LlamaIndexRetriever(LlamaIndexPostprocessor):
    def send(self, natives: list[NodeWithScore]) -> list[NodeWithScore]:
        return llama_index.ContextPilotRetriever(_FindsNodes(natives), **self.settings()).retrieve("question")

    async def asend(self, natives: list[NodeWithScore]) -> list[NodeWithScore]:
        adapter = llama_index.ContextPilotRetriever(_FindsNodes(natives), **self.settings())
        return await adapter.aretrieve("question")

    def reaching(self, items: list[Item]) -> list[Item]:
        # LlamaIndex's retrievers themselves hand on one node per id.
        first: dict[str, Item] = {}
        for item in items:
            first.setdefault(self.native(item).node_id, item)
        return [*first.values()]


class _Mem0Finds:
    """Finds what it was told to, in the shape of Mem0's search."""

    def __init__(self, memories: list[dict[str, Any]]) -> None:
        self.memories = memories

    def search(self, query: str, **kwargs: Any) -> dict[str, Any]:
        return {"results": self.memories}


class _AsyncMem0Finds(_Mem0Finds):
    async def search(self, query: str, **kwargs: Any) -> dict[str, Any]:
        return {"results": self.memories}


class _Mem0(Driver):
    """Mem0 takes the tenant from the filters."""

    def native(self, item: Item) -> dict[str, Any]:
        return {"id": item.id, "memory": item.text, "score": item.score, "metadata": {"tags": ["kept"]}}

    def memory(self, natives: list[dict[str, Any]]) -> ContextPilotMemory:
        return ContextPilotMemory(_Mem0Finds(natives), pilot=self.pilot, preamble=self.preamble)

    def async_memory(self, natives: list[dict[str, Any]]) -> AsyncContextPilotMemory:
        return AsyncContextPilotMemory(_AsyncMem0Finds(natives), pilot=self.pilot, preamble=self.preamble)

    @property
    def filters(self) -> dict[str, str]:
        return {"user_id": self.tenant or "someone"}

    def seen(self, sent: list[dict[str, Any]]) -> list[Seen]:
        for memory in sent:
            assert memory["metadata"] == {"tags": ["kept"]}
        entries = [memory["contextpilot"] for memory in sent]
        return [Seen(m["id"], m["memory"], e["rank"], e["label"]) for m, e in zip(sent, entries, strict=True)]

    def snapshot(self, natives: list[dict[str, Any]]) -> Any:
        return [(id(memory), repr(memory)) for memory in natives]  # As text, where NaN equals NaN.


class _Sent(list[dict[str, Any]]):
    """Memories in the order to send, and what else came with them."""

    found: dict[str, Any]
    text: str = ""

    @classmethod
    def of(cls, found: dict[str, Any], text: str = "") -> "_Sent":
        placed = [memory for memory in found["results"] if memory["contextpilot"]["position"] is not None]
        sent = cls(sorted(placed, key=lambda memory: memory["contextpilot"]["position"]))
        sent.found, sent.text = found, text
        return sent


class Mem0Search(_Mem0):
    def send(self, natives: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return _Sent.of(self.memory(natives).search("question", filters=self.filters))

    async def asend(self, natives: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return _Sent.of(await self.async_memory(natives).search("question", filters=self.filters))

    def prompt(self, sent: list[dict[str, Any]]) -> str:
        return format_memories(sent.found) if isinstance(sent, _Sent) else ""


class Mem0FirstTurn(_Mem0):
    def send(self, natives: list[dict[str, Any]]) -> list[dict[str, Any]]:
        turn = self.memory(natives).turn_context("question", filters=self.filters)
        return _Sent.of(turn.found, turn.text)

    async def asend(self, natives: list[dict[str, Any]]) -> list[dict[str, Any]]:
        turn = await self.async_memory(natives).turn_context("question", filters=self.filters)
        return _Sent.of(turn.found, turn.text)

    def prompt(self, sent: list[dict[str, Any]]) -> str:
        return sent.text if isinstance(sent, _Sent) else ""


@pytest.fixture(
    scope="session",
    params=[
        LangChainRetriever,
        LangChainRetrieverInSession,
        LangChainAligner,
        LangChainAlignerBatch,
        LlamaIndexPostprocessor,
        LlamaIndexRetriever,
        Mem0Search,
        Mem0FirstTurn,
    ],
    ids=lambda driver: driver.__name__,
)
def driver(request: pytest.FixtureRequest) -> type[Driver]:
    return request.param


@pytest.fixture(scope="session")
def item() -> type[Item]:
    return Item


@pytest.fixture(scope="session")
def traffic() -> list[list[Item]]:
    """Sixty requests over thirty documents, ten in each: overlapping, so that most are reordered."""
    random_ = random.Random(7)
    corpus = [Item(f"doc-{n}", f"The text of document {n}. " * 5) for n in range(30)]
    return [random_.sample(corpus, 10) for _ in range(60)]
