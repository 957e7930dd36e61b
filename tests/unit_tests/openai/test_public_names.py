import importlib
import sys

import pytest

import contextpilot_integrations.openai as package


def test_all_names_are_there_and_sorted():
    assert all(hasattr(package, name) for name in package.__all__)
    assert package.__all__ == [
        "AsyncCompletionStream",
        "AsyncCompletions",
        "Completion",
        "CompletionStream",
        "Completions",
    ]


def test_without_openai_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "openai", None)
    monkeypatch.delitem(sys.modules, "contextpilot_integrations.openai")
    with pytest.raises(ImportError, match=r'pip install "contextpilot-integrations\[openai\]"'):
        importlib.import_module("contextpilot_integrations.openai")
