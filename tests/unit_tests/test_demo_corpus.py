"""The shipped demo corpus: its shape, and the overlap of what its questions retrieve."""

import json
import re
from importlib.resources import files
from itertools import pairwise

import pytest

K = 6


def _read(name):
    text = (files("contextpilot_integrations") / "demo" / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


PASSAGES = _read("corpus.jsonl")
QUESTIONS = _read("questions.jsonl")
MORE_QUESTIONS = _read("more_questions.jsonl")
BY_ID = {passage["id"]: passage for passage in PASSAGES}


@pytest.fixture(scope="module")
def retrieved():
    """The ids that BM25 ranks first for each question, best first."""
    bm25s = pytest.importorskip("bm25s")

    def tokens(texts):
        return bm25s.tokenize(texts, stopwords="en", show_progress=False)

    index = bm25s.BM25(method="lucene")
    index.index(tokens([f"{p['title']}. {p['text']}" for p in PASSAGES]), show_progress=False)
    queries = tokens([q["question"] for q in QUESTIONS])
    rows, _ = index.retrieve(queries, k=K, show_progress=False, n_threads=1)
    return [[PASSAGES[i]["id"] for i in row] for row in rows]


def test_counts():
    assert len(PASSAGES) >= 80
    assert len({p["theme"] for p in PASSAGES}) >= 5
    assert len(QUESTIONS) == 40
    assert 5 <= len({q["user"] for q in QUESTIONS}) <= 6


def test_records_have_exactly_the_documented_fields():
    for passage in PASSAGES:
        assert set(passage) == {"id", "theme", "title", "text"}
    for question in QUESTIONS + MORE_QUESTIONS:
        assert set(question) == {"query_id", "user", "theme", "question", "answer", "gold_id"}
    for value in (v for record in PASSAGES + QUESTIONS + MORE_QUESTIONS for v in record.values()):
        assert isinstance(value, str)
        assert value == value.strip() != ""


def test_ids_are_unique_and_short():
    assert len(BY_ID) == len(PASSAGES)
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]{1,8}", passage_id) for passage_id in BY_ID)
    assert [q["query_id"] for q in QUESTIONS] == [f"q{i:02d}" for i in range(40)]
    numbers = range(40, 40 + len(MORE_QUESTIONS))
    assert [q["query_id"] for q in MORE_QUESTIONS] == [f"q{i:02d}" for i in numbers]


def test_every_passage_answers_a_question():
    assert {q["gold_id"] for q in QUESTIONS + MORE_QUESTIONS} == set(BY_ID)


@pytest.mark.parametrize("passage", PASSAGES, ids=lambda p: p["id"])
def test_length_of_a_passage(passage):
    assert 78 <= len(passage["text"].split()) <= 100
    assert 400 <= len(passage["text"]) <= 650


def test_passages_open_differently():
    openings = [" ".join(p["text"].split()[:3]) for p in PASSAGES]
    assert len(set(openings)) == len(openings)
    assert len({p["title"] for p in PASSAGES}) == len(PASSAGES)


@pytest.mark.parametrize("question", QUESTIONS + MORE_QUESTIONS, ids=lambda q: q["query_id"])
def test_the_answer_stands_in_the_gold_passage(question):
    gold = BY_ID[question["gold_id"]]
    assert question["answer"] in gold["text"]
    assert question["theme"] == gold["theme"]


def test_neighbouring_questions_are_of_different_themes():
    themes = [q["theme"] for q in QUESTIONS]
    assert all(a != b for a, b in pairwise(themes))
    assert set(themes) == {p["theme"] for p in PASSAGES}


def test_gold_passage_is_retrieved(retrieved):
    missed = [q["query_id"] for q, ids in zip(QUESTIONS, retrieved, strict=True) if q["gold_id"] not in ids]
    assert missed == []


def test_no_two_questions_retrieve_the_same_set(retrieved):
    assert len({frozenset(ids) for ids in retrieved}) == len(QUESTIONS)


def test_reuse_is_there_for_reordering_to_find(retrieved):
    # Served farthest-first, so that the first request of each topic comes before its followers:
    # the blocks that a request shares with the best of those served before it.
    first, *rest = [frozenset(ids) for ids in retrieved]
    best = [len(first & other) for other in rest]
    shared = 0
    while rest:
        i = best.index(min(best))
        shared += best.pop(i)
        served = rest.pop(i)
        best = [max(n, len(served & other)) for n, other in zip(best, rest, strict=True)]
    assert shared / (K * len(QUESTIONS)) >= 0.62


def test_relevance_order_alone_shares_few_leading_blocks(retrieved):
    seen = set()
    shared = 0
    for ids in retrieved:
        prefixes = [tuple(ids[: n + 1]) for n in range(K)]
        shared += sum(prefix in seen for prefix in prefixes)
        seen.update(prefixes)
    assert shared / (K * len(QUESTIONS)) < 0.15
