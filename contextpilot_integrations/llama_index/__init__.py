"""LlamaIndex: a postprocessor, a retriever, a synthesizer that tells the order, a chat engine, token use."""

try:
    import llama_index.core as _llama_index_core  # noqa: F401
except ImportError as error:
    raise ImportError(
        "contextpilot_integrations.llama_index needs llama-index-core: "
        'pip install "contextpilot-integrations[llama-index]"'
    ) from error

from contextpilot_integrations.llama_index.chat_engine import ContextPilotChatEngine
from contextpilot_integrations.llama_index.events import ContextPilotEventHandler, ObservedCall
from contextpilot_integrations.llama_index.nodes import (
    VOLATILE_KEYS,
    format_nodes,
    order_annotation,
    plan_metadata,
    to_block,
)
from contextpilot_integrations.llama_index.postprocessor import ContextPilotPostprocessor
from contextpilot_integrations.llama_index.retriever import ContextPilotRetriever
from contextpilot_integrations.llama_index.synthesizer import ContextPilotSynthesizer
from contextpilot_integrations.plan_metadata import PlanMetadata

__all__ = [
    "VOLATILE_KEYS",
    "ContextPilotChatEngine",
    "ContextPilotEventHandler",
    "ContextPilotPostprocessor",
    "ContextPilotRetriever",
    "ContextPilotSynthesizer",
    "ObservedCall",
    "PlanMetadata",
    "format_nodes",
    "order_annotation",
    "plan_metadata",
    "to_block",
]
