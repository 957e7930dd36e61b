"""LangChain: a retriever, an aligner for batches, what writes blocks into prompts, and conversations."""

try:
    import langchain_core as _langchain_core  # noqa: F401
except ImportError as error:
    raise ImportError(
        "contextpilot_integrations.langchain needs langchain-core: "
        'pip install "contextpilot-integrations[langchain]"'
    ) from error

from contextpilot_integrations.langchain.aligner import ContextPilotAligner
from contextpilot_integrations.langchain.callbacks import ContextPilotCallbackHandler
from contextpilot_integrations.langchain.documents import PlanMetadata, plan_metadata
from contextpilot_integrations.langchain.formatting import (
    format_context,
    format_documents,
    order_annotation,
)
from contextpilot_integrations.langchain.retriever import ContextPilotRetriever
from contextpilot_integrations.langchain.rewriter import ContextPilotRewriter
from contextpilot_integrations.langchain.runs import ObservedRun
from contextpilot_integrations.langchain.scheduled import arun_scheduled, run_scheduled
from contextpilot_integrations.langchain.usage import read_usage

__all__ = [
    "ContextPilotAligner",
    "ContextPilotCallbackHandler",
    "ContextPilotRetriever",
    "ContextPilotRewriter",
    "ObservedRun",
    "PlanMetadata",
    "arun_scheduled",
    "format_context",
    "format_documents",
    "order_annotation",
    "plan_metadata",
    "read_usage",
    "run_scheduled",
]
