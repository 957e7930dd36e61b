"""BM25 retrieval for the demo, as a LangChain retriever.

BM25 rather than an embedding model: it is a real retriever whose lists differ in order from question to
question as any retriever's do, it needs no second model to install, and it gives the same lists everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import PrivateAttr

from contextpilot_integrations.demo.handbook import Passage
from contextpilot_integrations.demo.requirements import require

__all__ = ["BM25Retriever"]


class BM25Retriever(BaseRetriever):
    """Finds passages by title and text (bm25s, Lucene's variant, English stop words).

    Args:
        passages: The corpus.
        k: How many passages to return.
    """

    k: int = 6
    _index: Any = PrivateAttr()
    _documents: list[Document] = PrivateAttr()

    def __init__(self, passages: Sequence[Passage], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._documents = [
            Document(id=passage.id, page_content=passage.text, metadata={"title": passage.title})
            for passage in passages
        ]
        self._index = require("bm25s").BM25(method="lucene")
        texts = [f"{passage.title}. {passage.text}" for passage in passages]
        self._index.index(self._tokenized(texts), show_progress=False)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        return self._found(query)

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun
    ) -> list[Document]:
        return self._found(query)

    def _found(self, query: str) -> list[Document]:
        (numbers,), _ = self._index.retrieve(self._tokenized([query]), k=self.k, show_progress=False)
        return [self._documents[number] for number in numbers]

    def _tokenized(self, texts: list[str]) -> Any:
        return require("bm25s").tokenize(texts, stopwords="en", show_progress=False)
