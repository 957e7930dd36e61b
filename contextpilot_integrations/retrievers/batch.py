"""A retriever whose batch is one search, with a traced run for each query."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from operator import index
from typing import Any, SupportsIndex, TypeAlias, TypeVar, cast

from langchain_core.callbacks import (
    AsyncCallbackManager,
    AsyncCallbackManagerForRetrieverRun,
    CallbackManager,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import get_config_list
from pydantic import ConfigDict, Field

__all__ = ["BatchRetriever", "Found"]

Found: TypeAlias = list[list[Document] | Exception]

Manager = TypeVar("Manager", CallbackManager, AsyncCallbackManager)


class BatchRetriever(BaseRetriever):
    """A retriever that searches for many queries at once.

    `batch` and `abatch` make one search of all queries, and so does each chain that starts with the
    retriever: ``(retriever | aligner).batch(questions)``. Every query has a run of its own, with its own
    config: callbacks, tags, metadata, ``run_name`` and ``run_id``. The runs start before the search and end
    after it, so each lasts as long as the batch. Keyword arguments hold for all queries. What
    `configurable_fields` sets differently for each query is another retriever for each, which LangChain
    calls one by one.

    A search that fails as a whole fails every query; what `with_retry` then asks again is one search too.

    Args:
        k: How many documents to find for a query, at most; also an argument of `invoke` and `batch`, which
            comes first.

    Raises:
        ValueError: If ``k`` is negative.
        TypeError: If a query is no string, or ``k`` no whole number.
    """

    model_config = ConfigDict(validate_assignment=True)

    k: int = Field(default=10, ge=0)

    @abstractmethod
    def _search(
        self,
        queries: Sequence[str],
        *,
        k: int | None = None,
        filter: Any = None,
        max_concurrency: int | None = None,
    ) -> Found:
        """Find documents for each query: at least one query is given, each a string.

        Args:
            queries: What to look for.
            k: How many documents this call wants for each, if it says so (`_limit`).
            filter: What else the metadata must fulfil in this call.
            max_concurrency: How many requests may be in flight, where there is more than one.

        Returns:
            For each query its documents, best first, or the reason why it alone failed.
        """

    @abstractmethod
    async def _asearch(
        self,
        queries: Sequence[str],
        *,
        k: int | None = None,
        filter: Any = None,
        max_concurrency: int | None = None,
    ) -> Found:
        """Find documents as `_search` does, without blocking the event loop."""

    def batch(
        self,
        inputs: list[str],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[list[Document]]:
        """Find documents for all queries in one search; the lists come in the order of the queries."""
        if not inputs:
            return []
        configs = get_config_list(config, len(inputs))
        runs = [
            self._callbacks(CallbackManager, config, kwargs).on_retriever_start(
                None, query, name=config.get("run_name") or self.get_name(), run_id=config.get("run_id")
            )
            for query, config in zip(inputs, configs, strict=True)
        ]
        try:
            queries = [query for query in inputs if isinstance(query, str)]
            found = self._search(queries, **_options(configs, kwargs)) if queries else []
            results = _with_refused(inputs, found)
        except BaseException as error:
            results = [error] * len(inputs)
        for run, result in zip(runs, results, strict=True):
            if isinstance(result, BaseException):
                run.on_retriever_error(result)
            else:
                run.on_retriever_end(result)
        return _returned(results, return_exceptions)

    async def abatch(
        self,
        inputs: list[str],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[list[Document]]:
        """Find documents for all queries in one search, as `batch` does."""
        if not inputs:
            return []
        configs = get_config_list(config, len(inputs))
        runs = await asyncio.gather(
            *(
                self._callbacks(AsyncCallbackManager, config, kwargs).on_retriever_start(
                    None, query, name=config.get("run_name") or self.get_name(), run_id=config.get("run_id")
                )
                for query, config in zip(inputs, configs, strict=True)
            )
        )
        try:
            queries = [query for query in inputs if isinstance(query, str)]
            found = await self._asearch(queries, **_options(configs, kwargs)) if queries else []
            results = _with_refused(inputs, found)
        except BaseException as error:
            results = [error] * len(inputs)
        await asyncio.gather(
            *(
                run.on_retriever_error(result)
                if isinstance(result, BaseException)
                else run.on_retriever_end(result)
                for run, result in zip(runs, results, strict=True)
            )
        )
        return _returned(results, return_exceptions)

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        filter: Any = None,
    ) -> list[Document]:
        if not isinstance(query, str):
            raise _refusal(query)
        return _returned(self._search([query], k=k, filter=filter), False)[0]

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        k: int | None = None,
        filter: Any = None,
    ) -> list[Document]:
        if not isinstance(query, str):
            raise _refusal(query)
        return _returned(await self._asearch([query], k=k, filter=filter), False)[0]

    def _limit(self, k: int | None) -> int:
        """Return how many documents to find, given the call's own ``k``."""
        if k is None:
            return self.k
        if not isinstance(k, SupportsIndex):
            raise TypeError(f"k must be a whole number, not {type(k).__name__}")
        k = index(k)
        if k < 0:
            raise ValueError(f"k must be at least 0, got {k}")
        return k

    def _callbacks(self, kind: type[Manager], config: RunnableConfig, options: dict[str, Any]) -> Manager:
        metadata = {**(config.get("metadata") or {}), **self._get_ls_params(**options)}
        return kind.configure(
            config.get("callbacks"),
            inheritable_tags=config.get("tags"),
            local_tags=self.tags,
            inheritable_metadata=metadata,
            local_metadata=self.metadata,
        )


def _options(configs: Sequence[RunnableConfig], options: dict[str, Any]) -> dict[str, Any]:
    return {"max_concurrency": configs[0].get("max_concurrency"), **options}


def _with_refused(inputs: Sequence[object], found: Found) -> list[list[Document] | BaseException]:
    """Put what was found for the strings among the inputs in their places."""
    count = sum(isinstance(query, str) for query in inputs)
    if len(found) != count:
        raise RuntimeError(f"the search returned {len(found)} results for {count} queries")
    results = iter(found)
    return [next(results) if isinstance(query, str) else _refusal(query) for query in inputs]


def _refusal(query: object) -> TypeError:
    return TypeError(f"a query must be a string, not {type(query).__name__}")


def _returned(
    results: Sequence[list[Document] | BaseException], return_exceptions: bool
) -> list[list[Document]]:
    """Return the results; what is no mere failure of a query (a cancellation, an interrupt) is raised."""
    for result in results:
        if isinstance(result, BaseException) and not (return_exceptions and isinstance(result, Exception)):
            raise result
    return cast("list[list[Document]]", list(results))
