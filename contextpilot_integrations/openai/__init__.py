"""The openai client: prompts planned, sent, and what came back of each, one by one or as a batch."""

try:
    import openai as _openai  # noqa: F401
except ImportError as error:
    raise ImportError(
        'contextpilot_integrations.openai needs openai: pip install "contextpilot-integrations[openai]"'
    ) from error

from contextpilot_integrations.openai.async_completions import AsyncCompletions
from contextpilot_integrations.openai.completion import Completion
from contextpilot_integrations.openai.completions import Completions
from contextpilot_integrations.openai.streams import AsyncCompletionStream, CompletionStream

__all__ = [
    "AsyncCompletionStream",
    "AsyncCompletions",
    "Completion",
    "CompletionStream",
    "Completions",
]
