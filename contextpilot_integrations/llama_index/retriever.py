"""A retriever that puts what another one finds in the order that the prefix cache likes."""

from __future__ import annotations

from collections.abc import Sequence

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks import CallbackManager
from llama_index.core.prompts.mixin import PromptMixinType
from llama_index.core.schema import NodeWithScore, QueryBundle

from contextpilot_integrations.llama_index.nodes import checked_keys
from contextpilot_integrations.llama_index.postprocessor import ContextPilotPostprocessor
from contextpilot_integrations.pilot import ContextPilot

__all__ = ["ContextPilotRetriever"]


class ContextPilotRetriever(BaseRetriever):
    """Wraps a retriever and plans what it finds, one request at a time.

    Take it where no postprocessor orders nodes behind the retriever; else let `ContextPilotPostprocessor` be
    the last of them. Nodes come out as they do there.

    Args:
        retriever: The wrapped retriever: its order is the order of relevance, and its errors go through.
        pilot: Who plans. Share one among all components whose prompts meet the same engine. None: a new one.
        endpoint: Where the engine is, for instance its base URL.
        model: The model's name there.
        tenant: Whoever must not share a cache with anyone else.
        preamble: All that stands before the first block, where it is known: system prompt, template.
        metadata_keys: The metadata that the model sees, the same for all nodes. None: what each node itself
            shows, less the volatile (`VOLATILE_KEYS`).
        callback_manager: LlamaIndex's. None: the wrapped retriever's.

    Raises:
        TypeError: If ``metadata_keys`` is a str.
    """

    def __init__(
        self,
        retriever: BaseRetriever,
        pilot: ContextPilot | None = None,
        *,
        endpoint: str = "",
        model: str = "",
        tenant: str = "",
        preamble: str = "",
        metadata_keys: Sequence[str] | None = None,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        keys = checked_keys(metadata_keys)
        super().__init__(callback_manager or getattr(retriever, "callback_manager", None))
        self.retriever = retriever
        self.postprocessor = ContextPilotPostprocessor(
            pilot=pilot or ContextPilot(),
            endpoint=endpoint,
            model=model,
            tenant=tenant,
            preamble=preamble,
            metadata_keys=None if keys is None else [*keys],
            callback_manager=self.callback_manager,
        )

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        found = self.retriever.retrieve(query_bundle)
        return self.postprocessor.planned(found)

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        found = await self.retriever.aretrieve(query_bundle)
        # Planning takes about a millisecond, so it runs in the loop.
        return self.postprocessor.planned(found)

    def _handle_recursive_retrieval(
        self, query_bundle: QueryBundle, nodes: list[NodeWithScore]
    ) -> list[NodeWithScore]:
        return nodes  # The wrapped retriever has followed its references, and dropped what came twice.

    async def _ahandle_recursive_retrieval(
        self, query_bundle: QueryBundle, nodes: list[NodeWithScore]
    ) -> list[NodeWithScore]:
        return nodes

    def _get_prompt_modules(self) -> PromptMixinType:
        return {"retriever": self.retriever}
