"""Context reuse for LLM applications: the same answers from several times the prefix-cache hits."""

from contextpilot_integrations.block import BlockId, ContextBlock
from contextpilot_integrations.index.slots import Slots
from contextpilot_integrations.index.tree import ContextIndex
from contextpilot_integrations.namespace import Namespace
from contextpilot_integrations.pilot import ContextPilot, OnError, TokenCounter, estimate_tokens
from contextpilot_integrations.plan import BatchPlan, Outcome, Plan

__all__ = [
    "BatchPlan",
    "BlockId",
    "ContextBlock",
    "ContextIndex",
    "ContextPilot",
    "Namespace",
    "OnError",
    "Outcome",
    "Plan",
    "Slots",
    "TokenCounter",
    "estimate_tokens",
]
