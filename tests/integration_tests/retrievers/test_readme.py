"""The README's code for FAISS and Elasticsearch, as it stands."""

import pytest
from elasticsearch_stand_in import search_server
from langchain_core.documents import Document
from readme_code import code_under
from word_embeddings import WordEmbeddings


@pytest.fixture
def names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = [
        "a cargo bike costs 28 crowns a day",
        "a cargo bike carries 80 kilograms",
        "the ferry sails at noon",
    ]
    return {
        "your_embeddings": WordEmbeddings(),
        "your_documents": [
            Document(text, id=str(place), metadata={"lang": "en"}) for place, text in enumerate(texts)
        ],
        "your_questions": ["a cargo bike a day", "cargo bike kilograms", "noon ferry"],
        "your_key": None,
    }


def first_ranked(contexts):
    ranked = [
        min(context, key=lambda document: document.metadata["contextpilot"]["rank"]) for context in contexts
    ]
    return [document.id for document in ranked]


def test_the_code_for_faiss_runs(names):
    pytest.importorskip("faiss")
    exec(code_under("FAISS and Elasticsearch")[0], names)
    assert first_ranked(names["contexts"]) == ["0", "1", "2"]


def test_the_code_for_elasticsearch_runs(names):
    pytest.importorskip("elasticsearch")
    with search_server() as names["your_url"]:
        exec(code_under("FAISS and Elasticsearch")[1], names)
    assert first_ranked(names["contexts"]) == ["0", "1", "2"]
