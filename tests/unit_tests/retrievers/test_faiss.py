import asyncio
import pickle
import random
import threading
import tracemalloc
from collections import Counter

import pytest

faiss = pytest.importorskip("faiss")
pytest.importorskip("langchain_core")

import numpy as np
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.load import dumpd
from word_embeddings import PrefixedEmbeddings, WordEmbeddings

from contextpilot_integrations import ContextPilot
from contextpilot_integrations.langchain import ContextPilotAligner
from contextpilot_integrations.retrievers.faiss import FaissRetriever

WORDS = [f"word{number}" for number in range(60)]


def text(random_):
    return " ".join(random_.choices(WORDS, k=random_.randint(5, 20)))


@pytest.fixture(scope="module")
def documents():
    random_ = random.Random(3)
    return [
        Document(
            text(random_), id=f"d{n}", metadata={"n": n, "even": n % 2 == 0, "source": {"page": n // 10}}
        )
        for n in range(200)
    ]


@pytest.fixture(scope="module")
def queries():
    random_ = random.Random(4)
    return [" ".join(random_.sample(WORDS, 4)) for _ in range(40)]


@pytest.fixture
def retriever(documents):
    retriever = FaissRetriever(embeddings=WordEmbeddings(), k=5)
    retriever.add_documents(documents)
    retriever.embeddings.calls.clear()
    return retriever


@pytest.fixture
def searches(monkeypatch):
    """How many queries each search of a FAISS index had."""
    sizes = []
    original = faiss.IndexFlatIP.search

    def counted(self, x, *args, **kwargs):
        sizes.append(len(x))
        return original(self, x, *args, **kwargs)

    monkeypatch.setattr(faiss.IndexFlatIP, "search", counted)
    return sizes


def ids(found):
    return [document.id for document in found]


class TestWhatIsFound:
    def test_the_nearest_by_cosine(self, retriever, documents, queries):
        vectors = np.array([WordEmbeddings().vector(document.page_content) for document in documents])
        for query in queries:
            wanted = np.array(WordEmbeddings().vector(query))
            cosines = vectors @ wanted / np.linalg.norm(vectors, axis=1) / np.linalg.norm(wanted)
            order = np.lexsort((np.arange(len(documents)), -cosines.round(6)))[:5]
            found = retriever.invoke(query)
            assert ids(found) == [documents[place].id for place in order]
            assert [d.metadata["_score"] for d in found] == pytest.approx(cosines[order], abs=1e-6)

    async def test_alone_in_a_batch_sync_and_async_alike(self, retriever, queries):
        alone = [retriever.invoke(query) for query in queries]
        assert retriever.batch(queries) == alone
        assert await retriever.abatch(queries) == alone
        assert [await retriever.ainvoke(query) for query in queries] == alone

    def test_equals_keep_the_order_in_which_they_were_added(self, queries):
        retriever = FaissRetriever(embeddings=WordEmbeddings())
        same = [Document(WORDS[0], id=f"same{n}") for n in range(60)]
        retriever.add_documents([Document("other", id="other"), *same])
        expected = [f"same{n}" for n in range(60)]
        for k in (1, 3, 59, 60):
            assert ids(retriever.invoke(WORDS[0], k=k)) == expected[:k]
            assert [ids(found) for found in retriever.batch([WORDS[0]] * 30, k=k)] == [expected[:k]] * 30
        retriever.delete(["same0", "same2"])
        assert ids(retriever.invoke(WORDS[0], k=2)) == ["same1", "same3"]

    def test_equals_that_float32_tells_apart(self):
        retriever = FaissRetriever(embeddings=WordEmbeddings())
        query = " ".join(WORDS[:7])
        longer = [Document(" ".join([query] * (n % 19 + 1)), id=f"{n:03}") for n in range(190)]
        retriever.add_documents(longer)
        vectors = retriever.index._vectors.reconstruct_n(0, 19)
        assert len({vector.tobytes() for vector in vectors}) > 1
        for k in (1, 5, 60):
            expected = ids(longer)[:k]
            assert ids(retriever.invoke(query, k=k)) == expected
            assert [ids(found) for found in retriever.batch([query] * 30, k=k)] == [expected] * 30

    def test_a_query_of_no_known_word_scores_zero(self, retriever):
        found = retriever.invoke("")
        assert ids(found) == ["d0", "d1", "d2", "d3", "d4"]
        assert {document.metadata["_score"] for document in found} == {0.0}

    def test_k(self, retriever, documents):
        assert retriever.invoke(WORDS[0], k=0) == []
        assert len(retriever.invoke(WORDS[0], k=1)) == 1
        assert len(retriever.invoke(WORDS[0], k=10_000)) == len(documents)
        with pytest.raises(ValueError, match="k must be at least 0, got -1"):
            retriever.invoke(WORDS[0], k=-1)

    async def test_an_empty_index(self):
        retriever = FaissRetriever(embeddings=WordEmbeddings())
        assert retriever.invoke("word") == await retriever.ainvoke("word") == []
        assert retriever.batch(["word", "word"]) == [[], []]
        assert retriever.add_documents([]) == []

    def test_what_is_found_is_the_callers_own(self, retriever):
        first = retriever.invoke(WORDS[0])
        first[0].metadata["source"]["page"] = "changed"
        first[0].metadata["new"] = 1
        assert retriever.invoke(WORDS[0])[0].metadata.keys() == {"n", "even", "source", "_score"}
        assert retriever.invoke(WORDS[0])[0].metadata["source"]["page"] != "changed"


class TestFilters:
    async def test_all_that_is_found_passes(self, retriever, queries):
        for condition in ({"even": True, "source.page": [1, 2]}, lambda m: m["even"] and 10 <= m["n"] < 30):
            for found in (
                retriever.invoke(queries[0], filter=condition, k=100),
                await retriever.ainvoke(queries[0], filter=condition, k=100),
                *retriever.batch(queries[:2], filter=condition, k=100)[:1],
            ):
                assert sorted(document.metadata["n"] for document in found) == list(range(10, 30, 2))

    def test_it_is_the_order_of_all_with_the_others_left_out(self, retriever, queries):
        for query in queries:
            everything = retriever.invoke(query, k=200)
            passing = [document for document in everything if document.metadata["even"]]
            assert retriever.invoke(query, filter={"even": True}) == passing[:5]

    def test_the_calls_filter_narrows_the_retrievers(self, retriever):
        retriever.filter = {"even": True}
        assert {d.metadata["n"] for d in retriever.invoke("word1", filter={"n": [1, 2, 3]})} == {2}
        assert retriever.invoke("word1", filter={"n": 1}) == []

    def test_a_batch_asks_it_once_for_each_document(self, retriever, documents, queries):
        asked = Counter()

        def condition(metadata):
            asked[metadata["n"]] += 1
            return True

        retriever.batch(queries, filter=condition)
        assert asked == Counter(range(len(documents)))

    async def test_a_function_that_uses_the_index_itself(self, retriever):
        for use in (lambda: retriever.invoke("word2"), lambda: retriever.delete(["d1"])):
            with pytest.raises(RuntimeError, match="a filter must not search or change its own"):
                retriever.invoke("word1", filter=lambda metadata, use=use: bool(use()))
            with pytest.raises(RuntimeError, match="a filter must not search or change its own"):
                await retriever.ainvoke("word1", filter=lambda metadata, use=use: bool(use()))
        other = FaissRetriever(embeddings=WordEmbeddings())
        other.add_documents([Document("word2", id="o")])
        assert len(retriever.invoke("word1", filter=lambda metadata: bool(other.invoke("word2")))) == 5

    def test_what_cannot_be_compared(self, retriever):
        with pytest.raises(TypeError, match=r"filter\['n'\]"):
            retriever.invoke("word1", filter={"n": None})
        with pytest.raises(TypeError, match=r"filter\['n'\]"):
            FaissRetriever(embeddings=WordEmbeddings(), filter={"n": {"gte": 3}})

    @pytest.mark.parametrize("given", ["even", 3, [{"term": {"n": 1}}]])
    async def test_what_is_no_filter(self, retriever, given):
        expected = "filter must be a mapping .* or a function that takes the metadata, not"
        with pytest.raises(TypeError, match=expected):
            retriever.invoke("word1", filter=given)
        with pytest.raises(TypeError, match=expected):
            await retriever.abatch(["word1", "word2"], filter=given)


class TestBatches:
    @pytest.mark.parametrize("prefix", ["", "a"])
    async def test_five_hundred_queries_are_one_search_and_one_plan(
        self, retriever, searches, monkeypatch, prefix
    ):
        plans = []
        original = ContextPilot.prepare_batch

        def counted(self, contexts, **kwargs):
            plans.append(len(contexts))
            return original(self, contexts, **kwargs)

        monkeypatch.setattr(ContextPilot, "prepare_batch", counted)
        random_ = random.Random(5)
        queries = [" ".join(random_.sample(WORDS, 4)) for _ in range(500)]
        aligner = ContextPilotAligner()
        chain = retriever | aligner
        contexts = await chain.abatch(queries) if prefix else chain.batch(queries)
        assert (searches, plans) == ([500], [500])
        calls = retriever.embeddings.calls
        assert calls == [(f"{prefix}embed_documents", 500), (f"{prefix}embed_query", 1)]
        found = retriever.batch(queries)
        assert [sorted(ids(context)) for context in contexts] == [sorted(ids(one)) for one in found]
        turns = [context[0].metadata["contextpilot"]["schedule_position"] for context in contexts]
        assert sorted(turns) == list(range(500))

    async def test_whether_queries_are_embedded_like_documents_is_tried_once(self, retriever):
        retriever.batch(["word1", "word2"])
        retriever.batch(["word1", "word2", "word3"])
        await retriever.abatch(["word1", "word2"])
        assert retriever.embeddings.calls == [
            ("embed_documents", 2),
            ("embed_query", 1),
            ("embed_documents", 3),
            ("aembed_documents", 2),
        ]

    @pytest.mark.parametrize("asynchronous", [False, True])
    async def test_embeddings_that_are_not_alike_are_asked_for_each_query(
        self, documents, queries, searches, asynchronous
    ):
        retriever = FaissRetriever(embeddings=PrefixedEmbeddings(), k=5)
        retriever.add_documents([*documents, Document("query: query: word", id="q")])
        alone = [retriever.invoke(query) for query in queries]
        del searches[:]
        for _ in range(2):
            retriever.embeddings.calls.clear()
            found = await retriever.abatch(queries) if asynchronous else retriever.batch(queries)
            assert found == alone
        assert searches == [40, 40]
        assert {name for name, _ in retriever.embeddings.calls} == {
            "aembed_query" if asynchronous else "embed_query"
        }
        assert len(retriever.embeddings.calls) == 40

    @pytest.mark.parametrize("embeddings", [WordEmbeddings, PrefixedEmbeddings])
    async def test_a_query_that_embeds_to_zeros_does_not_tell_how_others_are_embedded(
        self, documents, queries, embeddings
    ):
        for first in (FaissRetriever.batch, FaissRetriever.abatch):
            retriever = FaissRetriever(embeddings=embeddings(), k=5)
            retriever.add_documents([*documents, Document("query: query: word", id="q")])
            alone = [retriever.invoke(query) for query in ["", *queries]]
            begun = first(retriever, ["", *queries])
            assert (await begun if asyncio.iscoroutine(begun) else begun) == alone
            assert retriever.batch(queries) == await retriever.abatch(queries) == alone[1:]


class TestAddingAndDeleting:
    async def test_adding_twice_changes_nothing(self, retriever, documents, queries):
        def everything():
            return {document.id: document for document in retriever.invoke(queries[0], k=1000)}

        before = everything()
        assert retriever.add_documents(documents[::-1]) == ids(documents[::-1])
        assert everything() == before
        anonymous = [Document("a text"), Document("a text", metadata={"n": 1})]
        first = retriever.add_documents(anonymous)
        assert await retriever.aadd_documents(anonymous) == first
        assert len(retriever.index) == len(documents) + 2
        retriever.delete(first)
        assert everything() == before

    async def test_what_was_found_is_the_same_document_when_it_is_added_again(self):
        retriever = FaissRetriever(embeddings=WordEmbeddings())
        retriever.add_documents([Document("an exam", metadata={"score": 97})])
        before = retriever.invoke("exam")
        assert before[0].metadata == {"score": 97, "_score": pytest.approx(0.707107)}
        retriever.add_documents(before)
        await retriever.aadd_documents([before[0].model_copy(update={"id": None})])
        assert retriever.invoke("exam") == before

    def test_a_new_text_takes_the_place_of_the_old(self, retriever, documents):
        retriever.add_documents([Document("entirely new", id="d7", metadata={"v": 2})])
        assert len(retriever.index) == len(documents)
        (found,) = retriever.invoke("entirely new", k=1)
        assert (found.id, found.page_content, found.metadata["v"]) == ("d7", "entirely new", 2)
        everything = retriever.invoke(WORDS[0], k=1000)
        assert Counter(ids(everything)) == Counter(ids(documents))
        expected = {document.id: document.page_content for document in documents} | {"d7": "entirely new"}
        assert {document.id: document.page_content for document in everything} == expected

    async def test_deleting(self, retriever, documents, queries):
        gone = [f"d{n}" for n in range(0, 200, 3)]
        assert retriever.delete([*gone, "unknown", gone[0]]) == len(gone)
        assert await retriever.adelete(gone) == 0
        assert "d3" not in retriever.index
        assert "d4" in retriever.index
        rest = FaissRetriever(embeddings=WordEmbeddings(), k=5)
        rest.add_documents([document for document in documents if document.id not in gone])
        assert retriever.batch(queries) == rest.batch(queries)
        retriever.delete(ids(documents))
        assert len(retriever.index) == 0
        assert retriever.invoke(WORDS[0]) == []

    @pytest.mark.parametrize(
        ("given", "message"),
        [("d12", r"not a string: pass \[id\]"), (["d1", 2], "not int"), ([Document("d1")], "not Document")],
    )
    async def test_deleting_what_are_no_ids(self, retriever, documents, given, message):
        with pytest.raises(TypeError, match=f"ids must be .*{message}"):
            retriever.delete(given)
        with pytest.raises(TypeError, match=message):
            await retriever.adelete(given)
        assert len(retriever.index) == len(documents)

    def test_many_are_embedded_in_portions(self):
        retriever = FaissRetriever(embeddings=WordEmbeddings())
        assert len(retriever.add_documents(Document(f"text {n}") for n in range(600))) == 600
        assert retriever.embeddings.calls == [("embed_documents", n) for n in (256, 256, 88)]

    @pytest.mark.parametrize("asynchronous", [False, True])
    async def test_adding_takes_the_memory_of_a_few_copies_of_the_vectors(self, asynchronous):
        class Floats(Embeddings):
            """Gives lists of floats, each float an object of its own."""

            def embed_documents(self, texts):
                return np.random.default_rng(len(texts)).random((len(texts), 512)).tolist()

            def embed_query(self, text):
                return self.embed_documents([text])[0]

        given = [Document(f"text {n}", id=str(n)) for n in range(6000)]
        retriever = FaissRetriever(embeddings=Floats())
        tracemalloc.start()
        try:
            added = retriever.aadd_documents(given) if asynchronous else retriever.add_documents(given)
            assert len(await added if asynchronous else added) == len(given)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 4 * len(given) * 512 * 4

    @pytest.mark.parametrize("given", [[[1.0, 2.0]] * 255, [[1.0, 2.0]] * 257])
    def test_a_portion_with_another_number_of_vectors(self, given):
        class Other(WordEmbeddings):
            def embed_documents(self, texts):
                return given

        retriever = FaissRetriever(embeddings=Other())
        with pytest.raises(ValueError, match=f"shape \\({len(given)}, 2\\), not 256 vectors"):
            retriever.add_documents(Document(f"text {n}") for n in range(512))
        assert len(retriever.index) == 0

    def test_no_bar_where_there_is_no_terminal(self, retriever, documents, capsys):
        retriever.add_documents(documents)
        assert capsys.readouterr() == ("", "")

    @pytest.mark.parametrize(
        ("vectors", "message"),
        [
            ([[1.0, 2.0]], "vectors of 2 numbers, the index holds vectors of 256"),
            ([[float("nan")] * 256], "not finite"),
            ([[1.0] * 256] * 2, r"shape \(2, 256\), not 1 vectors"),
            ([[]], r"shape \(1, 0\)"),
        ],
    )
    def test_embeddings_that_do_not_fit_leave_all_as_it_was(self, retriever, queries, vectors, message):
        class Other(WordEmbeddings):
            def embed_documents(self, texts):
                return vectors

        before = retriever.batch(queries)
        other = FaissRetriever(embeddings=Other(), index=retriever.index)
        with pytest.raises(ValueError, match=message):
            other.add_documents([Document("new", id="d0")])
        assert retriever.batch(queries) == before

    def test_another_models_query(self, retriever):
        class Other(WordEmbeddings):
            def embed_query(self, text):
                return [1.0, 2.0]

        other = FaissRetriever(embeddings=Other(), index=retriever.index)
        with pytest.raises(ValueError, match="use the embeddings that it was made with"):
            other.invoke("word")


class TestConcurrency:
    def test_threads_search_while_documents_come_and_go(self, documents):
        retriever = FaissRetriever(embeddings=WordEmbeddings(), k=20)
        retriever.add_documents(documents[:50])
        texts = {document.id: document.page_content for document in documents}
        done, problems = threading.Event(), []

        def search(seed):
            random_ = random.Random(seed)
            while not done.is_set():
                queries = [" ".join(random_.sample(WORDS, 3)) for _ in range(3)]
                for query, found in zip(queries, retriever.batch(queries), strict=True):
                    scores = [document.metadata["_score"] for document in found]
                    wanted = np.array(WordEmbeddings().vector(query))
                    for document, score in zip(found, scores, strict=True):
                        vector = np.array(WordEmbeddings().vector(texts[document.id]))
                        cosine = vector @ wanted / np.linalg.norm(vector) / np.linalg.norm(wanted)
                        if document.page_content != texts[document.id] or abs(cosine - score) > 1e-5:
                            problems.append((query, document))
                    # The first fifty stay, so there are always twenty to find.
                    if len({*ids(found)}) != 20 or scores != sorted(scores, reverse=True):
                        problems.append((query, ids(found)))

        threads = [threading.Thread(target=search, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for start in range(50, 200, 10):
            retriever.add_documents(documents[start : start + 10])
            retriever.delete(ids(documents[start : start + 5]))
        done.set()
        for thread in threads:
            thread.join()
        assert problems == []
        assert len(retriever.index) == 50 + 15 * 5

    async def test_a_hundred_tasks(self, retriever, queries):
        alone = retriever.batch(queries)
        tasks = [retriever.ainvoke(queries[n % 40]) for n in range(100)]
        adding = [retriever.aadd_documents([Document(f"new{n}", id=f"new{n}")]) for n in range(20)]
        found = (await asyncio.gather(*tasks, *adding))[:100]
        assert found == [alone[n % 40] for n in range(100)]
        assert len(retriever.index) == 220

    async def test_the_async_side_leaves_the_loop_free(self, retriever, monkeypatch):
        loop_thread, threads = threading.get_ident(), []
        original = retriever.index.search
        monkeypatch.setattr(
            retriever.index, "search", lambda *args: threads.append(threading.get_ident()) or original(*args)
        )
        await retriever.ainvoke("word1")
        await retriever.abatch(["word1", "word2"])
        assert len(threads) == 2
        assert loop_thread not in threads
        assert {name for name, _ in retriever.embeddings.calls} == {"aembed_query", "aembed_documents"}


class TestSettings:
    def test_it_is_not_serializable_and_its_index_says_how_to_travel(self, retriever):
        assert dumpd(retriever)["type"] == "not_implemented"
        with pytest.raises(TypeError, match="save it, and load it where it is needed"):
            pickle.dumps(retriever)

    def test_a_shared_index(self, retriever):
        other = FaissRetriever(embeddings=WordEmbeddings(), index=retriever.index, k=1)
        assert other.invoke(WORDS[0]) == retriever.invoke(WORDS[0])[:1]

    def test_tracing_names_it_and_its_embeddings(self, retriever):
        class Metadata(BaseCallbackHandler):
            def on_retriever_start(self, serialized, query, *, metadata, **kwargs):
                seen.append(metadata)

        seen = []
        retriever.invoke("word1", {"callbacks": [Metadata()]})
        retriever.batch(["word1"], {"callbacks": [Metadata()]})
        assert seen[0] == seen[1]
        assert (
            seen[0].items()
            >= {
                "ls_retriever_name": "faiss",
                "ls_vector_store_provider": "FAISS",
                "ls_embedding_provider": "WordEmbeddings",
            }.items()
        )
