"""Retrieval by BM25, on an Elasticsearch server.

::

    client = connect("https://localhost:9200", api_key=your_key)
    retriever = ElasticsearchRetriever(client=client, index="handbook", k=10)
    retriever.add_documents(documents)  # makes the index where it is missing
    contexts = (retriever | ContextPilotAligner()).batch(questions)  # one search, one plan
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Self

try:
    import elasticsearch as _elasticsearch  # noqa: F401
    import langchain_core as _langchain_core  # noqa: F401
except ImportError as error:
    raise ImportError(
        "contextpilot_integrations.retrievers.elasticsearch needs elasticsearch and langchain-core: "
        'pip install "contextpilot-integrations[elasticsearch]"'
    ) from error

from elasticsearch import AsyncElasticsearch, BadRequestError, Elasticsearch
from elasticsearch.helpers import async_streaming_bulk, streaming_bulk
from langchain_core.documents import Document
from langchain_core.runnables.config import run_in_executor
from pydantic import Field, field_validator, model_validator
from tqdm import tqdm

from contextpilot_integrations.retrievers.batch import BatchRetriever, Found
from contextpilot_integrations.retrievers.elasticsearch_bulk import BULK, BulkOutcome, additions, deletions
from contextpilot_integrations.retrievers.elasticsearch_client import (
    Target,
    connect,
    connect_async,
    explained,
    failure,
)
from contextpilot_integrations.retrievers.elasticsearch_fields import Clauses, Fields
from contextpilot_integrations.retrievers.filters import allowed_values
from contextpilot_integrations.retrievers.records import to_records

__all__ = ["ElasticsearchRetriever", "connect", "connect_async"]

_QUERIES_AT_ONCE = 1_000
_WHOLE: dict[str, Any] = {"allow_partial_search_results": False}


class ElasticsearchRetriever(BatchRetriever):
    """Finds documents by the words that they share with the query, scored by BM25.

    Documents come back with their ids and metadata, and the score in ``metadata["_score"]``, which is not
    kept when they are added again. Those of equal score stand in the order of their ids where
    `create_index` or `add_documents` made the index, else in the server's order. A batch is one
    multi-search (one for every 1,000 queries), of which the server runs as many at a time as it likes, or
    as ``max_concurrency`` says. A query that the server could answer only in part fails. What fails in a
    way that can pass is a ``ConnectionError`` or a ``TimeoutError``, for `with_retry`.

    With a client of one kind alone, the other side is missing (`invoke`) or runs in a thread (`ainvoke`).

    It is not serializable: a client holds connections and credentials.

    Args:
        client: For `invoke` and `batch`: what `connect` returns, or any client of the official package.
        async_client: For `ainvoke` and `abatch`: what `connect_async` returns.
        index: Which index to search: its name, an alias, a pattern, or several with commas between them. All
            that there are is ``"*"``, never an empty name.
        k: How many documents to find, at most; also an argument of `invoke`, which comes first.
        filter: What metadata must hold, such as ``{"lang": "en", "year": [2024, 2025]}`` (one of the values
            of a list; dots lead into nested metadata), or a list of clauses in the server's own language,
            such as ``[{"range": {"metadata.year": {"gte": 2024}}}]``. As an argument of `invoke` it narrows
            further.
        text_field: The field that is searched and becomes the document's text, its full path where it stands
            in an object (``"body.content"``). Several texts in it become one, a line for each.
        metadata_field: The field that holds the metadata, an object, or its path; None: all other fields do.

    Raises:
        ValueError: If ``k`` is negative, a name in ``index`` is empty, there is no client, or the server
            refuses a request as wrong.
        TypeError: If a filter compares with anything but strings, numbers and bools, or is none.
        ConnectionError, TimeoutError, PermissionError, LookupError: As the message says, with what to do.
    """

    client: Elasticsearch | None = Field(default=None, exclude=True, repr=False)
    async_client: AsyncElasticsearch | None = Field(default=None, exclude=True, repr=False)
    index: str
    filter: Clauses | None = None
    text_field: str = "text"
    metadata_field: str | None = "metadata"

    @model_validator(mode="after")
    def _checked_clients(self) -> Self:
        if self.client is None and self.async_client is None:
            raise ValueError("pass client=connect(...), async_client=connect_async(...) or both")
        return self

    @field_validator("index")
    @classmethod
    def _checked_index(cls, given: str) -> str:
        # The server takes no name for all names: an unset variable would lay other indices open.
        if not all(name.strip() for name in given.split(",")):
            raise ValueError(f"index must name an index, got {given!r}: to search all there are, pass '*'")
        return given

    @field_validator("filter")
    @classmethod
    def _checked_filter(cls, given: Any) -> Any:
        if isinstance(given, Mapping):
            allowed_values(given)
        return given

    def create_index(self, *, analyzer: str = "standard") -> None:
        """Make the index, where it is missing, for documents that are found by BM25.

        Args:
            analyzer: How text becomes words: the name of an analyzer of the server, such as "english".

        Raises:
            ValueError: If ``metadata_field`` is None, or the server does not accept the name or the analyzer.
        """
        client, mappings = self._sync_client, self._fields.mappings(analyzer)
        with explained(client, self.index):
            if not client.indices.exists(index=self.index):
                try:
                    client.indices.create(index=self.index, mappings=mappings)
                except BadRequestError as error:
                    _unless_it_exists(error)

    async def acreate_index(self, *, analyzer: str = "standard") -> None:
        """Make the index as `create_index` does."""
        if self.async_client is None:
            return await run_in_executor(None, lambda: self.create_index(analyzer=analyzer))
        client, mappings = self.async_client, self._fields.mappings(analyzer)
        with explained(client, self.index):
            if not await client.indices.exists(index=self.index):
                try:
                    await client.indices.create(index=self.index, mappings=mappings)
                except BadRequestError as error:
                    _unless_it_exists(error)
        return None

    def add_documents(self, documents: Iterable[Document]) -> list[str]:
        """Add documents, which can be found when this returns; a bar on the terminal shows how far it is.

        One whose id is there already takes its place. The index is made where it is missing.

        Args:
            documents: Their metadata must be what JSON can hold.

        Returns:
            Their ids, in order; documents that are equal in all count once.

        Raises:
            TypeError: If there is anything but documents, or metadata that JSON cannot hold.
            ValueError: If two different documents have one id, or the server refuses one; the others are
                there then, and adding all again is safe.
        """
        records = to_records(documents)
        client, outcome = self._sync_client, BulkOutcome(self._sync_client, self.index)
        self.create_index()
        with explained(client, self.index), _bar(len(records)) as bar:
            for ok, item in streaming_bulk(client, additions(records, self.index, self._fields), **BULK):
                outcome.add(ok, item)
                bar.update()
            client.indices.refresh(index=self.index)
        outcome.check()
        return [record.id for record in records]

    async def aadd_documents(self, documents: Iterable[Document]) -> list[str]:
        """Add documents as `add_documents` does."""
        if self.async_client is None:
            return await run_in_executor(None, self.add_documents, documents)
        records = to_records(documents)
        client, outcome = self.async_client, BulkOutcome(self.async_client, self.index)
        await self.acreate_index()
        with explained(client, self.index), _bar(len(records)) as bar:
            async for ok, item in async_streaming_bulk(
                client, additions(records, self.index, self._fields), **BULK
            ):
                outcome.add(ok, item)
                bar.update()
            await client.indices.refresh(index=self.index)
        outcome.check()
        return [record.id for record in records]

    def delete(self, ids: Collection[str]) -> int:
        """Delete documents; return how many there were. An id that is unknown is no error.

        Raises:
            TypeError: If ``ids`` is a single string, or holds anything but strings.
        """
        client, outcome = self._sync_client, BulkOutcome(self._sync_client, self.index)
        with explained(client, self.index):
            for ok, item in streaming_bulk(client, deletions(ids, self.index), **BULK):
                outcome.add(ok, item)
            client.indices.refresh(index=self.index)
        outcome.check()
        return outcome.done

    async def adelete(self, ids: Collection[str]) -> int:
        """Delete documents as `delete` does."""
        if self.async_client is None:
            return await run_in_executor(None, self.delete, ids)
        client, outcome = self.async_client, BulkOutcome(self.async_client, self.index)
        with explained(client, self.index):
            async for ok, item in async_streaming_bulk(client, deletions(ids, self.index), **BULK):
                outcome.add(ok, item)
            await client.indices.refresh(index=self.index)
        outcome.check()
        return outcome.done

    def _search(
        self,
        queries: Sequence[str],
        *,
        k: int | None = None,
        filter: Clauses | None = None,
        max_concurrency: int | None = None,
    ) -> Found:
        client, bodies = self._sync_client, self._searches(queries, k, filter)
        answers: list[Mapping[str, Any]] = []
        with explained(client, self.index):
            if len(bodies) == 1:
                answers = [client.search(index=self.index, body=bodies[0], **_WHOLE).body]
            else:
                for request in _multi_searches(bodies, max_concurrency):
                    answers += client.msearch(index=self.index, **request)["responses"]
        return [self._documents(answer, client) for answer in answers]

    async def _asearch(
        self,
        queries: Sequence[str],
        *,
        k: int | None = None,
        filter: Clauses | None = None,
        max_concurrency: int | None = None,
    ) -> Found:
        if self.async_client is None:
            options: dict[str, Any] = {"k": k, "filter": filter, "max_concurrency": max_concurrency}
            return await run_in_executor(None, lambda: self._search(queries, **options))
        client, bodies = self.async_client, self._searches(queries, k, filter)
        answers: list[Mapping[str, Any]] = []
        with explained(client, self.index):
            if len(bodies) == 1:
                answers = [(await client.search(index=self.index, body=bodies[0], **_WHOLE)).body]
            else:
                for request in _multi_searches(bodies, max_concurrency):
                    answers += (await client.msearch(index=self.index, **request))["responses"]
        return [self._documents(answer, client) for answer in answers]

    @property
    def _sync_client(self) -> Elasticsearch:
        if self.client is None:
            raise ValueError("this needs a client that is not async: pass client=connect(...)")
        return self.client

    @property
    def _fields(self) -> Fields:
        return Fields(self.text_field, self.metadata_field)

    def _searches(
        self, queries: Sequence[str], k: int | None, narrower: Clauses | None
    ) -> list[dict[str, Any]]:
        return self._fields.searches(queries, self._limit(k), self.filter, narrower)

    def _documents(self, answer: Mapping[str, Any], client: Target) -> list[Document] | Exception:
        if "error" in answer:
            return failure(answer.get("status", 500), answer, client, self.index)
        try:
            return [self._fields.document(hit) for hit in answer["hits"]["hits"]]
        except ValueError as error:
            return error


def _multi_searches(
    bodies: Sequence[dict[str, Any]], max_concurrency: int | None
) -> Iterable[dict[str, Any]]:
    """Return the arguments of the requests that ask for all bodies, each preceded by its header."""
    for start in range(0, len(bodies), _QUERIES_AT_ONCE):
        some = bodies[start : start + _QUERIES_AT_ONCE]
        request: dict[str, Any] = {"searches": [line for body in some for line in (_WHOLE, body)]}
        if max_concurrency is not None:
            request["max_concurrent_searches"] = max_concurrency
        yield request


def _unless_it_exists(error: BadRequestError) -> None:
    """Raise an error again, but for the one that says that somebody was quicker to make the index."""
    if error.error != "resource_already_exists_exception":
        raise error


def _bar(total: int) -> Any:
    return tqdm(total=total, desc="indexing", unit="document", disable=None)
