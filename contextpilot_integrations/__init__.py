"""Context reuse for LLM applications: the same answers from several times the prefix-cache hits."""

from contextpilot_integrations.block import BlockId, ContextBlock
from contextpilot_integrations.conversation import rewrite
from contextpilot_integrations.edits import Edit, EditKind, Place, Rewriting, restore
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
    "Edit",
    "EditKind",
    "Namespace",
    "OnError",
    "Outcome",
    "Place",
    "Plan",
    "Rewriting",
    "Slots",
    "TokenCounter",
    "estimate_tokens",
    "restore",
    "rewrite",
]
