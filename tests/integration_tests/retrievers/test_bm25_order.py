"""The order of BM25 is that of bm25s (Lucene's variant), on a thousand passages."""

import random
from itertools import groupby

import pytest

bm25s = pytest.importorskip("bm25s")

from langchain_core.documents import Document

from contextpilot_integrations.demo.handbook import passages
from contextpilot_integrations.retrievers.elasticsearch import ElasticsearchRetriever

K = 20
# The server computes in float32, so scores that are nearer than this count as equal.
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def corpus():
    """Passages of the handbook's words, frequent ones more often; one in ten is there twice.

    None has more than 39 words, for beyond that Lucene keeps lengths in classes, and bm25s as they are.
    """
    words = sorted(
        {word for passage in passages() for word in passage.text.lower().split() if word.isalpha()}
    )
    random_ = random.Random(1)
    weights = [1 / (rank + 1) for rank in range(len(words))]
    random_.shuffle(words)
    texts = []
    while len(texts) < 1000:
        text = " ".join(random_.choices(words, weights, k=random_.randint(8, 39)))
        texts += [text] * (2 if random_.random() < 0.1 else 1)
    return words, texts[:1000]


@pytest.fixture(scope="module")
def queries(corpus):
    words, _ = corpus
    random_ = random.Random(2)
    return [" ".join(random_.sample(words[:400], random_.randint(1, 6))) for _ in range(100)]


@pytest.fixture(scope="module")
def expected(corpus, queries):
    """For each query all passages that share a word with it, as (score, id), best first, ties by id."""
    _, texts = corpus
    model = bm25s.BM25(method="lucene", k1=1.2, b=0.75, dtype="float64")
    model.index([text.split() for text in texts], show_progress=False)
    rankings = []
    for query in queries:
        scores = model.get_scores(query.split())
        rankings.append(sorted((-score, f"{n:04}") for n, score in enumerate(scores) if score > 0))
    return rankings


async def test_the_order_is_that_of_bm25s(client, async_client, index, corpus, queries, expected):
    retriever = ElasticsearchRetriever(client=client, async_client=async_client, index=index, k=K)
    _, texts = corpus
    retriever.add_documents([Document(text, id=f"{n:04}") for n, text in enumerate(texts)])
    found = retriever.batch(queries)
    assert await retriever.abatch(queries) == found
    tied = 0
    for documents, ranking in zip(found, expected, strict=True):
        ids = [document.id for document in documents]
        assert len(ids) == min(K, len(ranking))
        start = 0
        for group in groups(ranking):
            here = ids[start : start + len(group)]
            # Which of those that are equal come first is settled by their ids, where the scores are equal.
            assert set(here) <= set(group)
            start += len(group)
        assert start >= len(ids)
        for _, equal in groupby(documents, key=lambda document: document.metadata["_score"]):
            equal_ids = [document.id for document in equal]
            assert equal_ids == sorted(equal_ids)
            tied += len(equal_ids) - 1
    assert tied > 50
    factors = {
        round(document.metadata["_score"] / -ranking[0][0], 3)
        for documents, ranking in zip(found, expected, strict=True)
        for document in documents[:1]
    }
    assert len(factors) == 1


def groups(ranking):
    """The ids of a ranking in groups of equal scores."""
    group, last = [], None
    for negative, document_id in ranking:
        if last is not None and negative - last > TOLERANCE * -last:
            yield group
            group = []
        group.append(document_id)
        last = negative
    if group:
        yield group
