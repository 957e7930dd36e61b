"""A retriever that puts what another one finds in the order that the prefix cache likes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal
from uuid import UUID

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    BaseRunManager,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever, LangSmithRetrieverParams, RetrieverLike
from langchain_core.runnables import RunnableConfig, ensure_config
from langchain_core.runnables.config import set_config_context
from langchain_core.runnables.utils import coro_with_context
from pydantic import Field

from contextpilot_integrations.langchain.callbacks import ContextPilotCallbackHandler
from contextpilot_integrations.langchain.deduplication import deduplicated
from contextpilot_integrations.langchain.documents import check_documents, plan_metadata, to_block
from contextpilot_integrations.langchain.planning import Planning
from contextpilot_integrations.langchain.sessions import Fingerprint, SessionKey

__all__ = ["ContextPilotRetriever"]

logger = logging.getLogger(__name__)


class ContextPilotRetriever(Planning, BaseRetriever):
    """Wraps a retriever and plans what it finds, one request at a time.

    Let it be the last step that orders documents: what comes after may drop some, and the order
    annotation follows; a step that reorders them loses the plan. Documents come out as copies with the
    plan in ``metadata["contextpilot"]`` (`PlanMetadata`).

    With ``deduplicate="session"`` a document whose text the model can see in the conversation is written
    as an annotation that says where; its ``page_content`` stays, for citations. That takes a
    `ContextPilotCallbackHandler` among the callbacks and an id of the session: the argument ``session_id``
    of `invoke`, else ``configurable`` ``thread_id`` or ``session_id``, else the same in the metadata. Left
    out is only what reached the model before in this session and stands verbatim in the messages that the
    chain was given, so the history has to hold the turns as they were sent. A step behind the retriever
    must not cut that history: the handler warns when one did. For such chains there is
    `ContextPilotRewriter`, which works on the messages themselves. Where turns of before stand in the
    history, documents keep their order of relevance, for the conversation is the prefix.

    To load one, allow it and what it wraps: ``loads(text, allowed_objects=[ContextPilotRetriever, Wrapped],
    valid_namespaces=["contextpilot_integrations", ...])``.

    A tenant per call is LangChain's own ``configurable_fields(tenant=ConfigurableField(id="tenant"))``;
    the pilot stays shared.

    Args:
        retriever: The wrapped retriever: its order is the order of relevance, and its errors go through.
        k: How many of the best documents to keep, at most; also an argument of `invoke`, which comes
            first. None: all. How many are looked for is the wrapped retriever's own setting.
        deduplicate: "session" sends a text once per conversation. None: every time.

    Raises:
        ValueError: If ``k`` is negative.
        TypeError: If the wrapped retriever returns anything but documents.
    """

    retriever: RetrieverLike
    k: int | None = Field(default=None, ge=0)
    deduplicate: Literal["session"] | None = None

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
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        session_id: str | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        limit = self._limit(k)
        found = self.retriever.invoke(query, {"callbacks": run_manager.get_child()}, **kwargs)
        return self._sent(check_documents(found)[:limit], run_manager, session_id)

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        k: int | None = None,
        session_id: str | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        limit = self._limit(k)
        found = await self.retriever.ainvoke(query, {"callbacks": run_manager.get_child()}, **kwargs)
        # Planning takes about a millisecond, so it runs in the loop.
        return self._sent(check_documents(found)[:limit], run_manager, session_id)

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

    def _sent(
        self, documents: list[Document], run_manager: BaseRunManager, session_id: str | None
    ) -> list[Document]:
        watched = self._watched(run_manager, session_id) if self.deduplicate else None
        if watched is None:
            return self._planned(documents, range(len(documents)))
        handler, session = watched
        sent = self._deduplicated(documents, handler, run_manager.run_id, session)
        if sent is None:
            sent = self._planned(documents, range(len(documents)))
        handler.add_blocks(run_manager.run_id, session, *_whole_and_annotations(sent))
        return sent

    def _deduplicated(
        self,
        documents: list[Document],
        handler: ContextPilotCallbackHandler,
        run_id: UUID,
        session: SessionKey,
    ) -> list[Document] | None:
        """Return what to send behind turns of before; None where no block of theirs is in view."""
        try:
            in_view = handler.blocks_in_view(run_id, session)
            return deduplicated(documents, in_view, self.pilot) if in_view else None
        except Exception as error:
            self.pilot.report_failure(error, "de-duplication")
            return deduplicated(documents, (), self.pilot)

    def _watched(
        self, run_manager: BaseRunManager, session_id: str | None
    ) -> tuple[ContextPilotCallbackHandler, SessionKey] | None:
        handlers = (h for h in run_manager.handlers if isinstance(h, ContextPilotCallbackHandler))
        if (handler := next(handlers, None)) is None:
            _warn_once("there is no ContextPilotCallbackHandler among the callbacks")
            return None
        places = (ensure_config()["configurable"], run_manager.metadata)
        ids = (place.get(name) for place in places for name in ("thread_id", "session_id"))
        session_id = next((found for found in (session_id, *ids) if found is not None), None)
        if session_id is None:
            _warn_once("there is no session's id; pass it as {'configurable': {'thread_id': ...}}")
            return None
        return handler, (self.tenant, str(session_id))


def _whole_and_annotations(sent: Sequence[Document]) -> tuple[list[Fingerprint], dict[str, Fingerprint]]:
    whole, annotations = [], {}
    for document in sent:
        fingerprint, entry = Fingerprint.of(to_block(document)), plan_metadata(document)
        if entry and entry["shown_as"] is not None:
            annotations[entry["shown_as"]] = fingerprint
        else:
            whole.append(fingerprint)
    return whole, annotations


@cache
def _warn_once(reason: str) -> None:
    logger.warning('with deduplicate="session" every text is sent all the same: %s', reason)
