import importlib
import sys

import pytest

import contextpilot_integrations.llama_index as package


def test_all_names_are_there_and_sorted():
    assert all(hasattr(package, name) for name in package.__all__)
    assert package.__all__ == [
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


def test_without_llama_index_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "llama_index.core", None)
    monkeypatch.delitem(sys.modules, "contextpilot_integrations.llama_index")
    with pytest.raises(ImportError, match=r'pip install "contextpilot-integrations\[llama-index\]"'):
        importlib.import_module("contextpilot_integrations.llama_index")
