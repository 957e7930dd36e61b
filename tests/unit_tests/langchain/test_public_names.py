import importlib
import sys

import pytest

import contextpilot_integrations.langchain as package


def test_all_names_are_there_and_sorted():
    assert sorted(package.__all__) == package.__all__
    assert all(hasattr(package, name) for name in package.__all__)
    assert package.__all__ == [
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


def test_without_langchain_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "langchain_core", None)
    monkeypatch.delitem(sys.modules, "contextpilot_integrations.langchain")
    with pytest.raises(ImportError, match=r'pip install "contextpilot-integrations\[langchain\]"'):
        importlib.import_module("contextpilot_integrations.langchain")
