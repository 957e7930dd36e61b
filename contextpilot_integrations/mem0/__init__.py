"""Mem0: a memory whose searches are planned, and a turn's memories as text that repeats nothing in view."""

from importlib.util import find_spec as _find_spec

# Looked for and not imported, since on import Mem0 writes to the user's home directory.
if _find_spec("mem0") is None:
    raise ImportError(
        'contextpilot_integrations.mem0 needs mem0ai: pip install "contextpilot-integrations[mem0]"'
    )

from contextpilot_integrations.mem0.async_memory import AsyncContextPilotMemory
from contextpilot_integrations.mem0.formatting import format_memories
from contextpilot_integrations.mem0.memory import ContextPilotMemory
from contextpilot_integrations.mem0.results import MemoryEntry, PlanEntry
from contextpilot_integrations.mem0.turn import UPDATE_TEMPLATE, TurnContext

__all__ = [
    "UPDATE_TEMPLATE",
    "AsyncContextPilotMemory",
    "ContextPilotMemory",
    "MemoryEntry",
    "PlanEntry",
    "TurnContext",
    "format_memories",
]
