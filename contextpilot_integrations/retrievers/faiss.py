"""Retrieval by embeddings, on FAISS, in memory.

::

    retriever = FaissRetriever(embeddings=your_embeddings, k=10)
    retriever.add_documents(documents)
    retriever.save("handbook")
    retriever = FaissRetriever.load("handbook", embeddings=your_embeddings, k=10)
    contexts = (retriever | ContextPilotAligner()).batch(questions)  # one search, one plan
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

try:
    import faiss as _faiss  # noqa: F401
    import filelock as _filelock  # noqa: F401
    import langchain_core as _langchain_core  # noqa: F401
except ImportError as error:
    raise ImportError(
        "contextpilot_integrations.retrievers.faiss needs faiss-cpu, filelock and langchain-core: "
        'pip install "contextpilot-integrations[faiss]"'
    ) from error

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import LangSmithRetrieverParams
from langchain_core.runnables.config import ContextThreadPoolExecutor, run_in_executor
from langchain_core.runnables.utils import gather_with_concurrency
from numpy.typing import ArrayLike
from pydantic import Field, PrivateAttr, field_validator
from tqdm import tqdm

from contextpilot_integrations.retrievers.batch import BatchRetriever, Found
from contextpilot_integrations.retrievers.document_index import DocumentIndex, checked_vectors
from contextpilot_integrations.retrievers.filters import Filter, allowed_values, matches
from contextpilot_integrations.retrievers.records import Record, to_records

__all__ = ["DocumentIndex", "FaissRetriever"]

_TEXTS_AT_ONCE = 256


class FaissRetriever(BatchRetriever):
    """Finds the documents whose embeddings are nearest to the query's, by cosine, exactly.

    Documents come back as copies with their ids and metadata, and the cosine in ``metadata["_score"]``, which
    is not kept when they are added again; equal ones keep the order in which they were added. A document
    without an id gets a digest of its text and metadata as one, so adding it twice changes nothing. It
    may be searched by threads and by tasks while documents are added.

    A batch embeds all queries in one call of ``embed_documents``, where that gives what ``embed_query`` does:
    this is tried on one query, once per retriever. Embeddings that treat queries in another way (a prefix, a
    task) are asked for each query, several at a time. Either way the vectors are looked for in one search.

    It is not serializable: embeddings mostly are not, and documents are data, not settings. Use `save` and
    `load`, which never unpickle anything.

    Args:
        embeddings: Any LangChain embeddings, the same for documents and for queries.
        index: The documents; retrievers may share one. A new, empty one unless given.
        k: How many documents to find, at most; also an argument of `invoke`, which comes first.
        filter: What metadata must hold, such as ``{"lang": "en", "year": [2024, 2025]}`` (one of the values
            of a list; dots lead into nested metadata), or a function that takes the metadata and says whether
            to search the document. As an argument of `invoke` it narrows further. It is asked for all
            documents, once for a whole batch, while the index cannot be changed: a function that searches or
            changes the same index raises RuntimeError.

    Raises:
        ValueError: If ``k`` is negative, or the embeddings are not those that the index was made with.
        TypeError: If a filter compares with anything but strings, numbers and bools, or is none.
    """

    embeddings: Embeddings
    index: DocumentIndex = Field(default_factory=DocumentIndex, exclude=True, repr=False)
    filter: Filter | Callable[[Mapping[str, Any]], bool] | None = None
    _embeds_queries_like_documents: bool | None = PrivateAttr(default=None)

    @field_validator("filter")
    @classmethod
    def _checked_filter(cls, given: Any) -> Any:
        if isinstance(given, Mapping):
            allowed_values(given)
        return given

    def add_documents(self, documents: Iterable[Document]) -> list[str]:
        """Embed documents and add them, all or none; a bar on the terminal shows how far it is.

        One whose id is there already takes its place.

        Args:
            documents: Their metadata must be what JSON can hold, for they will be saved.

        Returns:
            Their ids, in order; documents that are equal in all count once.

        Raises:
            TypeError: If there is anything but documents, or metadata that JSON cannot hold.
            ValueError: If two different documents have one id, or the embeddings do not fit the index.
        """
        records = to_records(documents)
        # Each portion becomes an array at once: as lists of floats, vectors take eight times the memory.
        portions = [
            checked_vectors(self.embeddings.embed_documents(texts), len(texts))
            for texts in _with_progress(records)
        ]
        if portions:
            self.index.add(records, np.concatenate(portions))
        return [record.id for record in records]

    async def aadd_documents(self, documents: Iterable[Document]) -> list[str]:
        """Embed and add documents as `add_documents` does."""
        records = to_records(documents)
        portions = [
            checked_vectors(await self.embeddings.aembed_documents(texts), len(texts))
            for texts in _with_progress(records)
        ]
        if portions:
            await run_in_executor(None, self.index.add, records, np.concatenate(portions))
        return [record.id for record in records]

    def delete(self, ids: Collection[str]) -> int:
        """Delete documents; return how many there were. An id that is unknown is no error.

        Raises:
            TypeError: If ``ids`` is a single string, or holds anything but strings.
        """
        return self.index.remove(ids)

    async def adelete(self, ids: Collection[str]) -> int:
        """Delete documents as `delete` does."""
        return await run_in_executor(None, self.index.remove, ids)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Save documents and vectors; see `DocumentIndex.save`. The embeddings are not saved."""
        self.index.save(folder)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], *, embeddings: Embeddings, **settings: Any) -> Self:
        """Return a retriever of saved documents; see `DocumentIndex.load`.

        Args:
            folder: Where they were saved.
            embeddings: Those that the documents were added with.
            settings: The other arguments of the class.
        """
        return cls(embeddings=embeddings, index=DocumentIndex.load(folder), **settings)

    def _search(
        self,
        queries: Sequence[str],
        *,
        k: int | None = None,
        filter: Filter | Callable[[Mapping[str, Any]], bool] | None = None,
        max_concurrency: int | None = None,
    ) -> Found:
        limit, condition = self._limit(k), self._condition(filter)
        return [*self.index.search(self._embedded(queries, max_concurrency), limit, condition)]

    async def _asearch(
        self,
        queries: Sequence[str],
        *,
        k: int | None = None,
        filter: Filter | Callable[[Mapping[str, Any]], bool] | None = None,
        max_concurrency: int | None = None,
    ) -> Found:
        limit, condition = self._limit(k), self._condition(filter)
        vectors = await self._aembedded(queries, max_concurrency)
        return [*await run_in_executor(None, self.index.search, vectors, limit, condition)]

    def _embedded(self, queries: Sequence[str], max_concurrency: int | None) -> ArrayLike:
        if len(queries) == 1:
            return [self.embeddings.embed_query(queries[0])]
        if self._embeds_queries_like_documents is not False:
            vectors = self.embeddings.embed_documents([*queries])
            if self._embeds_queries_like_documents or self._are_alike(
                vectors[0], self.embeddings.embed_query(queries[0])
            ):
                return vectors
        with ContextThreadPoolExecutor(max_workers=max_concurrency) as executor:
            return [*executor.map(self.embeddings.embed_query, [*queries])]

    async def _aembedded(self, queries: Sequence[str], max_concurrency: int | None) -> ArrayLike:
        if len(queries) == 1:
            return [await self.embeddings.aembed_query(queries[0])]
        if self._embeds_queries_like_documents is not False:
            vectors = await self.embeddings.aembed_documents([*queries])
            if self._embeds_queries_like_documents or self._are_alike(
                vectors[0], await self.embeddings.aembed_query(queries[0])
            ):
                return vectors
        return await gather_with_concurrency(max_concurrency, *map(self.embeddings.aembed_query, queries))

    def _are_alike(self, as_document: ArrayLike, as_query: ArrayLike) -> bool:
        """Say whether a text has the same direction as a document and as a query, and remember it."""
        left, right = np.asarray(as_document, np.float64), np.asarray(as_query, np.float64)
        lengths = np.linalg.norm(left) * np.linalg.norm(right)
        if not lengths:
            return False  # zeros have no direction: the next batch tells
        # Computed in a batch, a vector may differ in its last bits; a prefix moves it much further.
        alike = left.shape == right.shape and bool(left @ right >= 0.99999 * lengths)
        self._embeds_queries_like_documents = alike
        return alike

    def _condition(
        self, narrower: Filter | Callable[[Mapping[str, Any]], bool] | None
    ) -> Callable[[Mapping[str, Any]], bool] | None:
        conditions = [_as_condition(given) for given in (self.filter, narrower) if given is not None]
        if not conditions:
            return None
        return lambda metadata: all(condition(metadata) for condition in conditions)

    def _get_ls_params(self, **kwargs: Any) -> LangSmithRetrieverParams:
        model = getattr(self.embeddings, "model", None) or getattr(self.embeddings, "model_name", None)
        params = LangSmithRetrieverParams(
            **super()._get_ls_params(**kwargs),
            ls_vector_store_provider="FAISS",
            ls_embedding_provider=type(self.embeddings).__name__,
        )
        if isinstance(model, str):
            params["ls_embedding_model"] = model
        return params


def _as_condition(
    given: Filter | Callable[[Mapping[str, Any]], bool],
) -> Callable[[Mapping[str, Any]], bool]:
    if not isinstance(given, Mapping):
        if not callable(given):
            raise TypeError(
                'filter must be a mapping such as {"lang": "en"}, or a function that takes the metadata, '
                f"not {type(given).__name__}"
            )
        return given
    allowed = allowed_values(given)
    return lambda metadata: matches(allowed, metadata)


def _with_progress(records: Sequence[Record]) -> Iterator[list[str]]:
    """Yield the texts of records, so many at a time, and show on a terminal how many were embedded."""
    with tqdm(total=len(records), desc="embedding", unit="document", disable=None) as bar:
        for start in range(0, len(records), _TEXTS_AT_ONCE):
            texts = [record.text for record in records[start : start + _TEXTS_AT_ONCE]]
            yield texts
            bar.update(len(texts))
