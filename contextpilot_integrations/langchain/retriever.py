"""A retriever that puts what another one finds in the order that the prefix cache likes."""

from __future__ import annotations

from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever, LangSmithRetrieverParams, RetrieverLike
from langchain_core.runnables import RunnableConfig, ensure_config
from langchain_core.runnables.config import set_config_context
from langchain_core.runnables.utils import coro_with_context
from pydantic import Field

from contextpilot_integrations.langchain.documents import check_documents
from contextpilot_integrations.langchain.planning import Planning

__all__ = ["ContextPilotRetriever"]


class ContextPilotRetriever(Planning, BaseRetriever):
    """Wraps a retriever and plans what it finds, one request at a time.

    Let it be the last step that orders documents: what comes after may drop some, and the order
    annotation follows; a step that reorders them loses the plan. Documents come out as copies with the
    plan in ``metadata["contextpilot"]`` (`PlanMetadata`).

    To load one, allow it and what it wraps: ``loads(text, allowed_objects=[ContextPilotRetriever, Wrapped],
    valid_namespaces=["contextpilot_integrations", ...])``.

    A tenant per call is LangChain's own ``configurable_fields(tenant=ConfigurableField(id="tenant"))``;
    the pilot stays shared.

    Args:
        retriever: The wrapped retriever: its order is the order of relevance, and its errors go through.
        k: How many of the best documents to keep, at most; also an argument of `invoke`, which comes
            first. None: all. How many are looked for is the wrapped retriever's own setting.

    Raises:
        ValueError: If ``k`` is negative.
        TypeError: If the wrapped retriever returns anything but documents.
    """

    retriever: RetrieverLike
    k: int | None = Field(default=None, ge=0)

    def invoke(self, input: str, config: RunnableConfig | None = None, **kwargs: Any) -> list[Document]:
        """Retrieve and plan; other keyword arguments than ``k`` go to the wrapped retriever."""
        # What is configured for this call has to reach the wrapped retriever too, not the callbacks alone.
        with set_config_context(ensure_config(config)) as context:
            return context.run(super().invoke, input, config, **kwargs)

    async def ainvoke(
        self, input: str, config: RunnableConfig | None = None, **kwargs: Any
    ) -> list[Document]:
        """Retrieve and plan as `invoke` does."""
        with set_config_context(ensure_config(config)) as context:
            return await coro_with_context(super().ainvoke(input, config, **kwargs), context)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None, **kwargs: Any
    ) -> list[Document]:
        limit = self._limit(k)
        found = self.retriever.invoke(query, {"callbacks": run_manager.get_child()}, **kwargs)
        return self._aligned(found, limit)

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        k: int | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        limit = self._limit(k)
        found = await self.retriever.ainvoke(query, {"callbacks": run_manager.get_child()}, **kwargs)
        # Planning takes well under a millisecond, so it runs in the loop.
        return self._aligned(found, limit)

    def _get_ls_params(self, **kwargs: Any) -> LangSmithRetrieverParams:
        wrapped = self.retriever
        inner = wrapped._get_ls_params() if isinstance(wrapped, BaseRetriever) else {}
        return LangSmithRetrieverParams(**{**inner, **super()._get_ls_params(**kwargs)})

    def _limit(self, k: int | None) -> int | None:
        if k is None:
            return self.k
        if k < 0:
            raise ValueError(f"k must be at least 0, got {k}")
        return k

    def _aligned(self, found: list[Document], limit: int | None) -> list[Document]:
        documents = check_documents(found)[:limit]
        return self._planned(documents, range(len(documents)))
