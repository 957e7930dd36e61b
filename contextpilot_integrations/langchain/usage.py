"""How many prompt tokens a chat model's engine had cached."""

from __future__ import annotations

from langchain_core.messages import AIMessage

from contextpilot_integrations.engines.usage import Usage

__all__ = ["read_usage"]

# Under the service tiers "priority" and "flex", langchain-openai reports the count under another key.
_CACHED = ("cache_read", "priority_cache_read", "flex_cache_read")


def read_usage(message: AIMessage) -> Usage:
    """Read the token counts off an answer, or off the sum of a stream's chunks.

    What is not reported is None. With a custom base URL, ``ChatOpenAI`` streams counts only with
    ``stream_usage=True``.
    """
    counts = message.usage_metadata
    if counts is None:
        return Usage()
    details: dict[str, object] = {**counts.get("input_token_details", {})}
    cached = next((count for key in _CACHED if isinstance(count := details.get(key), int)), None)
    return Usage(counts.get("input_tokens"), counts.get("output_tokens"), cached)
