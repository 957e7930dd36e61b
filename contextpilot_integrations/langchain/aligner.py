"""A step that plans documents: one request as it comes, or a whole batch at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.documents import Document
from langchain_core.runnables import RunnableConfig, RunnableSerializable

from contextpilot_integrations.block import ContextBlock
from contextpilot_integrations.langchain.documents import (
    check_documents,
    planned_documents,
    relevance_ranks,
    to_block,
)
from contextpilot_integrations.langchain.planning import Planning
from contextpilot_integrations.plan import BatchPlan

__all__ = ["ContextPilotAligner"]


class ContextPilotAligner(Planning, RunnableSerializable[list[Document], list[Document]]):
    """Plans lists of documents; put it behind a plain retriever, as the last step that orders documents.

    `invoke` plans one request. `batch` makes one offline plan for the whole list, and so does
    ``(retriever | aligner).batch(questions)``: contexts come back in the order given, each with its turn
    in ``metadata["contextpilot"]["schedule_position"]``; `run_scheduled` then runs them in that order.

    Documents that a pilot planned before are planned anew from their order of relevance; what counts as
    sent is then both plans, so use one component or the other.

    One batch is one namespace. With ``configurable_fields`` LangChain runs a batch as single requests:
    for several tenants make an aligner each, which may share the pilot.

    To load one: ``loads(text, allowed_objects=[ContextPilotAligner],
    valid_namespaces=["contextpilot_integrations"])``.

    Raises:
        TypeError: If an input is anything but a list of documents.
    """

    def invoke(
        self, input: list[Document], config: RunnableConfig | None = None, **kwargs: Any
    ) -> list[Document]:
        """Plan one request, which is then taken as sent."""
        return self._call_with_config(self._align, input, config)

    async def ainvoke(
        self, input: list[Document], config: RunnableConfig | None = None, **kwargs: Any
    ) -> list[Document]:
        """Plan one request as `invoke` does; it takes about a millisecond, so it runs in the loop."""
        return await self._acall_with_config(self._aalign, input, config)

    def batch(
        self,
        inputs: list[list[Document]],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[list[Document]]:
        """Plan requests that are all known, together; they are taken as sent in the order of the schedule."""
        return self._batch_with_config(self._align_all, inputs, config, return_exceptions=return_exceptions)

    async def abatch(
        self,
        inputs: list[list[Document]],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[list[Document]]:
        """Plan a batch as `batch` does, in a thread."""
        return await self._abatch_with_config(
            self._aalign_all, inputs, config, return_exceptions=return_exceptions
        )

    def _align(self, documents: list[Document]) -> list[Document]:
        request = _Request.of(documents)
        return self._planned(request.documents, request.ranks)

    async def _aalign(self, documents: list[Document]) -> list[Document]:
        return self._align(documents)

    def _align_all(self, contexts: list[list[Document]]) -> list[Exception | list[Document]]:
        requests = [_Request.attempted(documents) for documents in contexts]
        return self._finished(requests, self.pilot.prepare_batch(_blocks(requests), namespace=self.namespace))

    async def _aalign_all(self, contexts: list[list[Document]]) -> list[Exception | list[Document]]:
        requests = [_Request.attempted(documents) for documents in contexts]
        return self._finished(
            requests, await self.pilot.aprepare_batch(_blocks(requests), namespace=self.namespace)
        )

    def _finished(
        self, requests: Sequence[_Request | Exception], batch: BatchPlan
    ) -> list[Exception | list[Document]]:
        turns = {place: turn for turn, place in enumerate(batch.schedule)}
        plans = enumerate(batch.plans)
        results: list[Exception | list[Document]] = []
        for request in requests:
            if isinstance(request, Exception):
                results.append(request)
                continue
            place, plan = next(plans)
            results.append(
                planned_documents(
                    plan,
                    request.documents,
                    request.ranks,
                    order_template=self.pilot.order_template,
                    schedule_position=turns[place],
                )
            )
        return results


@dataclass(frozen=True, slots=True)
class _Request:
    """Documents in order of relevance, with the rank of each."""

    documents: list[Document]
    ranks: list[int]
    blocks: list[ContextBlock]

    @classmethod
    def of(cls, given: object) -> _Request:
        documents = check_documents(given)
        ranks = relevance_ranks(documents)
        if ranks is None:
            ranks = list(range(len(documents)))
        else:
            ranked = sorted(zip(ranks, documents, strict=True), key=lambda pair: pair[0])
            ranks, documents = [rank for rank, _ in ranked], [document for _, document in ranked]
        return cls(documents, ranks, [to_block(document) for document in documents])

    @classmethod
    def attempted(cls, given: object) -> _Request | Exception:
        try:
            return cls.of(given)
        except Exception as error:
            return error


def _blocks(requests: Sequence[_Request | Exception]) -> list[list[ContextBlock]]:
    return [request.blocks for request in requests if isinstance(request, _Request)]
