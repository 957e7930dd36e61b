"""What the retriever and the aligner have in common: a pilot, and where the prompts go."""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.documents import Document
from langchain_core.load.serializable import Serializable
from pydantic import ConfigDict, Field

from contextpilot_integrations.langchain.documents import planned_documents, to_block
from contextpilot_integrations.namespace import Namespace
from contextpilot_integrations.pilot import ContextPilot

__all__ = ["Planning"]


class Planning(Serializable):
    """The fields of a component that plans documents.

    Args:
        pilot: Who plans. Share one among all components whose prompts meet the same engine. Serialization
            leaves it out and pickling keeps its settings alone: a loaded component has a new pilot until
            ``pilot`` is assigned.
        endpoint: Where the engine is, for instance its base URL.
        model: The model's name there.
        tenant: Whoever must not share a cache with anyone else.
        preamble: All that stands before the first block, where it is known: system prompt, tools, template.
    """

    pilot: ContextPilot = Field(default_factory=ContextPilot, exclude=True, repr=False)
    endpoint: str = ""
    model: str = ""
    tenant: str = ""
    preamble: str = Field(default="", repr=False)

    model_config = ConfigDict(arbitrary_types_allowed=True)

    @classmethod
    def is_lc_serializable(cls) -> bool:
        """Return True: the settings travel."""
        return True

    @property
    def namespace(self) -> Namespace:
        """Whose cache the prompts meet."""
        return Namespace(endpoint=self.endpoint, model=self.model, tenant=self.tenant, preamble=self.preamble)

    def _planned(self, documents: Sequence[Document], ranks: Sequence[int]) -> list[Document]:
        """Plan one request; ``ranks`` says what to call the rank of each document."""
        plan = self.pilot.prepare([to_block(document) for document in documents], namespace=self.namespace)
        return planned_documents(plan, documents, ranks, order_template=self.pilot.order_template)
