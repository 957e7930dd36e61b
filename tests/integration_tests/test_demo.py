"""The demo on its real model, with the questions of one theme, as against any server."""

import pytest

for package in ("bm25s", "gguf", "langchain_openai", "matplotlib", "openai", "xllamacpp"):
    pytest.importorskip(package)

from contextpilot_integrations.demo.handbook import questions
from contextpilot_integrations.demo.llama_server import LlamaServer
from contextpilot_integrations.demo.run import run_demo
from contextpilot_integrations.demo.weights import packaged_weights

try:
    packaged_weights()
except ImportError as missing:
    pytest.skip(str(missing), allow_module_level=True)

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def server():
    with LlamaServer() as server:
        yield server


def test_it_finds_more_cached_than_either_baseline(server, tmp_path, capsys):
    asked = [question for question in questions() if question.theme == "bicycle hire"][:3]
    passes = run_demo(
        base_url=server.base_url, model=server.model, output=tmp_path / "new" / "folder", asked=asked
    )
    original, longest_prefix, ours = (sum(one.cached_tokens) for one in passes)
    assert original <= longest_prefix < ours
    assert [len(one.answers) for one in passes] == [3, 3, 3]
    for one in passes:
        assert all(answer.text and answer.ttft > 0 for answer in one.answers)
        assert all(0 < answer.usage.completion_tokens <= 24 for answer in one.answers)
    assert (tmp_path / "new" / "folder" / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert f"{ours:,}" in capsys.readouterr().out


def test_a_wrong_place_is_named(tmp_path):
    with pytest.raises(OSError, match=r"http://127\.0\.0\.1:9/v1: "):
        run_demo(base_url="http://127.0.0.1:9/v1", model="m", output=tmp_path, asked=questions()[:1])
