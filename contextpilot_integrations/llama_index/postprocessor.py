"""A node postprocessor that puts nodes in the order that the prefix cache likes."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

from llama_index.core.bridge.pydantic import ConfigDict, Field, field_validator, model_validator
from llama_index.core.callbacks import CBEventType, EventPayload
from llama_index.core.instrumentation.events.rerank import ReRankEndEvent, ReRankStartEvent
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle
from llama_index_instrumentation import get_dispatcher

from contextpilot_integrations.llama_index.nodes import Request, checked_keys, planned_nodes
from contextpilot_integrations.namespace import Namespace
from contextpilot_integrations.pilot import ContextPilot

__all__ = ["ContextPilotPostprocessor"]

dispatcher = get_dispatcher(__name__)


class ContextPilotPostprocessor(BaseNodePostprocessor):
    """Plans what a retriever found, one request at a time; the last of a query engine's postprocessors.

    What comes after it may drop nodes, and the order annotation follows; what sorts them or gives them other
    scores loses the plan. Nodes come out as copies with id, score, text and type as they were, the plan
    in ``metadata["contextpilot"]`` (`PlanMetadata`), and a marker in front of what the model sees of them.
    To tell the model their order of relevance, give the query engine a `ContextPilotSynthesizer`.

    Metadata in front of a text is part of the block. Scores and the like (`VOLATILE_KEYS`), which differ from
    query to query, are kept out of what the model sees, and so is the plan.

    Nodes that a pilot planned before are planned anew from their order of relevance.

    Args:
        pilot: Who plans. Share one among all components whose prompts meet the same engine. `to_dict` leaves
            it out and pickling keeps its settings alone: a loaded component has a new pilot until ``pilot``
            is assigned. One with a ``token_counter`` that cannot be pickled, a lambda for instance, cannot.
        endpoint: Where the engine is, for instance its base URL.
        model: The model's name there.
        tenant: Whoever must not share a cache with anyone else.
        preamble: All that stands before the first block, where it is known: system prompt, template.
        metadata_keys: The metadata that the model sees, the same for all nodes. None: what each node itself
            shows, less the volatile.

    Raises:
        TypeError: If ``metadata_keys`` is a str, or when it is pickled and its pilot cannot be.
        ValueError: If an argument is of another type or unknown.
    """

    model_config = ConfigDict(extra="forbid")

    pilot: ContextPilot = Field(default_factory=ContextPilot, exclude=True, repr=False)
    endpoint: str = ""
    model: str = ""
    tenant: str = ""
    preamble: str = Field(default="", repr=False)
    metadata_keys: list[str] | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_class_name(cls, given: Any) -> Any:
        if isinstance(given, Mapping):  # As `model_dump` has it.
            return {name: value for name, value in given.items() if name != "class_name"}
        return given

    @field_validator("metadata_keys", mode="before")
    @classmethod
    def _check_metadata_keys(cls, metadata_keys: Any) -> Any:
        return checked_keys(metadata_keys)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the settings.

        Raises:
            TypeError: If the pilot cannot be pickled.
        """
        try:
            pickle.dumps(self.pilot)
        except Exception as error:
            raise TypeError(
                f"the pilot cannot be pickled ({error}); "
                "let its token_counter be a function that can be imported, or leave it out"
            ) from error
        # LlamaIndex's own takes what else cannot be pickled away, and from the very object that is pickled.
        return super(ContextPilotPostprocessor, self.model_copy()).__getstate__()

    @classmethod
    def class_name(cls) -> str:
        """Return the name that stands for the class in serialized components."""
        return "ContextPilotPostprocessor"

    @property
    def namespace(self) -> Namespace:
        """Whose cache the prompts meet."""
        return Namespace(endpoint=self.endpoint, model=self.model, tenant=self.tenant, preamble=self.preamble)

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        name, top_n = self.class_name(), len(nodes)
        dispatcher.event(ReRankStartEvent(query=query_bundle, nodes=nodes, top_n=top_n, model_name=name))
        payload: dict[str, Any] = {
            EventPayload.NODES: nodes,
            EventPayload.MODEL_NAME: name,
            EventPayload.QUERY_STR: query_bundle.query_str if query_bundle else "",
            EventPayload.TOP_K: top_n,
        }
        with self.callback_manager.event(CBEventType.RERANKING, payload=payload) as event:
            planned = self.planned(nodes)
            event.on_end(payload={EventPayload.NODES: planned})
        dispatcher.event(ReRankEndEvent(nodes=planned))
        return planned

    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        # Planning takes about a millisecond, so it runs in the loop.
        return self._postprocess_nodes(nodes, query_bundle)

    def planned(self, nodes: list[NodeWithScore]) -> list[NodeWithScore]:
        """Return the nodes planned, without LlamaIndex's events."""
        try:
            request = Request.of(nodes, self.metadata_keys)
        except Exception as error:
            self.pilot.report_failure(error)
            return list(nodes)
        plan = self.pilot.prepare(request.blocks, namespace=self.namespace)
        return planned_nodes(plan, request, order_template=self.pilot.order_template)
