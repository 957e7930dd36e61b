"""A vLLM server that cannot start says why, and leaves nothing behind."""

import importlib.util
import os
import tempfile

import pytest

from contextpilot_integrations.evaluation.vllm_server import VLLMServer

without_vllm = pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is here")


@pytest.fixture
def temporary(monkeypatch):
    """An empty folder that temporary files go to, with a path short enough for sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield folder


@without_vllm
def test_a_server_that_ends_shows_its_log_and_leaves_nothing(temporary):
    server = VLLMServer("no-model")
    with pytest.raises(RuntimeError, match="ended with 1 before it was ready") as failure:
        server.start()
    assert "No module named 'vllm'" in str(failure.value)
    assert os.listdir(temporary) == []
    with pytest.raises(RuntimeError, match="not running"):
        server.base_url  # noqa: B018


def test_a_folder_with_too_long_a_path_is_refused(temporary, monkeypatch):
    long = os.path.join(temporary, "x" * 80)
    os.mkdir(long)
    monkeypatch.setattr(tempfile, "tempdir", long)
    with pytest.raises(ValueError, match="set TMPDIR to a shorter one"):
        VLLMServer("no-model").start()
    assert os.listdir(long) == []
