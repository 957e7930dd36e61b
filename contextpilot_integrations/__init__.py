"""Context reuse for LLM applications: the same answers from several times the prefix-cache hits."""

from contextpilot_integrations.block import BlockId, ContextBlock

__all__ = ["BlockId", "ContextBlock"]
