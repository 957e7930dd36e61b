"""On a server that speaks Elasticsearch's API: the one that ELASTICSEARCH_URL names, else the stand-in."""

import asyncio
import random

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.load import dumpd
from word_embeddings import WordEmbeddings

from contextpilot_integrations import ContextPilot
from contextpilot_integrations.langchain import ContextPilotAligner
from contextpilot_integrations.retrievers import elasticsearch as elasticsearch_retriever
from contextpilot_integrations.retrievers.elasticsearch import ElasticsearchRetriever, connect
from contextpilot_integrations.retrievers.faiss import FaissRetriever

WORDS = [f"word{number}" for number in range(60)]


def documents():
    random_ = random.Random(3)
    return [
        Document(
            " ".join(random_.choices(WORDS, k=random_.randint(5, 20))),
            id=f"d{n:03}",
            metadata={"n": n, "even": n % 2 == 0, "source": {"page": n // 10}, "tags": ["a b", f"t {n % 3}"]},
        )
        for n in range(200)
    ]


def some_queries(count):
    random_ = random.Random(4)
    return [" ".join(random_.sample(WORDS, 4)) for _ in range(count)]


def ids(found):
    return [document.id for document in found]


@pytest.fixture(scope="module", autouse=True)
def _documents(client, index):
    ElasticsearchRetriever(client=client, index=index).add_documents(documents())


class TestWhatIsFound:
    async def test_documents_as_they_were_added_best_first(self, retriever, either):
        added = {document.id: document for document in documents()}
        for query in some_queries(10):
            found = await either(retriever, "invoke", query)
            scores = [document.metadata.pop("_score") for document in found]
            assert len(found) == 10
            assert scores == sorted(scores, reverse=True)
            assert found == [added[document.id] for document in found]
            assert all(set(document.page_content.split()) & set(query.split()) for document in found)

    async def test_alone_in_a_batch_sync_and_async_alike(self, retriever, either):
        queries = some_queries(20)
        alone = [retriever.invoke(query) for query in queries]
        assert await either(retriever, "batch", queries) == alone
        assert [await either(retriever, "invoke", query) for query in queries] == alone

    async def test_equals_stand_in_the_order_of_their_ids(self, client, fresh_index, either):
        retriever = ElasticsearchRetriever(client=client, index=fresh_index)
        numbers = random.Random(6).sample(range(50), 50)
        retriever.add_documents([Document("the same text", id=f"{n:02}") for n in numbers])
        for k in (1, 7, 50):
            assert ids(await either(retriever, "invoke", "same", k=k)) == [f"{n:02}" for n in range(k)]

    async def test_k(self, retriever, either):
        assert await either(retriever, "invoke", "word1", k=0) == []
        assert len(await either(retriever, "invoke", "word1", k=1)) == 1
        assert len((await either(retriever, "batch", ["word1", "word2"], k=3))[1]) == 3
        with pytest.raises(ValueError, match="k must be at least 0"):
            await either(retriever, "invoke", "word1", k=-1)

    async def test_nothing_to_find(self, retriever, either):
        assert await either(retriever, "invoke", "") == []
        assert await either(retriever, "batch", ["unknown", "🚲" * 500]) == [[], []]


class TestFilters:
    @pytest.mark.parametrize(
        "condition",
        [
            {"even": True, "source.page": [1, 2]},
            [{"term": {"metadata.even": True}}, {"range": {"metadata.n": {"gte": 10, "lt": 30}}}],
        ],
    )
    async def test_all_that_is_found_passes(self, retriever, either, condition):
        query = " ".join(WORDS)
        for found in (
            await either(retriever, "invoke", query, filter=condition, k=100),
            *await either(retriever, "batch", [query, query], filter=condition, k=100),
        ):
            assert sorted(document.metadata["n"] for document in found) == list(range(10, 30, 2))

    async def test_strings_are_compared_as_wholes(self, retriever, either):
        query = " ".join(WORDS)
        found = await either(retriever, "invoke", query, filter={"tags": "t 1"}, k=100)
        assert {document.metadata["n"] % 3 for document in found} == {1}
        assert await either(retriever, "invoke", query, filter={"tags": "t"}) == []

    async def test_scores_stay_and_the_calls_filter_narrows(self, retriever, either):
        everything = await either(retriever, "invoke", "word1 word2", k=200)
        retriever.filter = {"even": True}
        passing = [document for document in everything if document.metadata["even"]]
        assert await either(retriever, "invoke", "word1 word2", k=200) == passing
        n = passing[0].metadata["n"]
        assert await either(retriever, "invoke", "word1 word2", filter={"n": [n, n + 1]}) == passing[:1]

    def test_what_cannot_be_compared(self, client):
        with pytest.raises(TypeError, match=r"filter\['n'\]"):
            ElasticsearchRetriever(client=client, index="i", filter={"n": {"gte": 3}})

    @pytest.mark.parametrize("given", ["even", 3, b"even", ["even"], {"even"}])
    async def test_what_is_no_filter(self, retriever, either, given):
        with pytest.raises(TypeError, match=r"filter must be a mapping .* or a list of mappings"):
            await either(retriever, "invoke", "word1", filter=given)

    async def test_whole_numbers_that_the_server_does_not_tell_apart(self, retriever, either):
        assert await either(retriever, "invoke", "word1", filter={"n": [2**53 - 1, 1 - 2**53]}) == []
        for number in (2**53, -(2**53), 2**60):
            with pytest.raises(ValueError, match=r"filter\['n'\] must be less than 2\*\*53"):
                await either(retriever, "invoke", "word1", filter={"n": [1, number]})
        clauses = [{"term": {"metadata.n": 2**60}}]
        assert await either(retriever, "invoke", "word1", filter=clauses) == []

    async def test_numbers_of_numpys(self, retriever, either):
        query = " ".join(WORDS)
        condition = {"n": {np.int64(2), np.float32(3)}, "even": True}
        assert ids(await either(retriever, "invoke", query, filter=condition)) == ["d002"]

    async def test_both_stores_mean_the_same(self, client, fresh_index, either):
        metadata = [
            {"authors": [{"name": "ada"}, {"name": "ben"}]},
            {"a": {"b.c": 1}},
            {"a": {"b": {"c": 2}}},
            {"t": [["x"], "y"]},
            {"score": 97},
        ]
        given = [Document("text", id=str(n), metadata=one) for n, one in enumerate(metadata)]
        on_a_server = ElasticsearchRetriever(client=client, index=fresh_index)
        in_memory = FaissRetriever(embeddings=WordEmbeddings())
        expected = {"authors.name": "ada", "a.b.c": [1, 3], "t": "x", "score": 97}
        for retriever in (on_a_server, in_memory):
            retriever.add_documents(given)
            for (key, value), place in zip(expected.items(), "0134", strict=True):
                assert ids(await either(retriever, "invoke", "text", filter={key: value})) == [place]
            with pytest.raises(ValueError, match=r"filter\['score'\] must be finite, got nan"):
                await either(retriever, "invoke", "text", filter={"score": float("nan")})


class TestBatches:
    async def test_five_hundred_queries_are_one_request_and_one_plan(
        self, retriever, requests, either, monkeypatch
    ):
        plans = []
        original = ContextPilot.prepare_batch

        def counted(self, contexts, **kwargs):
            plans.append(len(contexts))
            return original(self, contexts, **kwargs)

        monkeypatch.setattr(ContextPilot, "prepare_batch", counted)
        queries = some_queries(500)
        contexts = await either(retriever | ContextPilotAligner(), "batch", queries)
        assert requests() == [f"POST /{retriever.index}/_msearch"]
        assert plans == [500]
        for query, context in zip(queries[:20], contexts, strict=False):
            assert sorted(ids(context)) == sorted(ids(retriever.invoke(query)))
        turns = [context[0].metadata["contextpilot"]["schedule_position"] for context in contexts]
        assert sorted(turns) == list(range(500))

    async def test_very_many_are_a_few_requests(self, retriever, requests, either, monkeypatch):
        monkeypatch.setattr(elasticsearch_retriever, "_QUERIES_AT_ONCE", 20)
        queries = some_queries(50)
        found = await either(retriever, "batch", queries, k=1, config={"max_concurrency": 2})
        paths = {request.partition("?")[0] for request in requests()}
        assert paths == {f"POST /{retriever.index}/_msearch"}
        assert len(requests()) == 3
        assert all("max_concurrent_searches=2" in request for request in requests())
        assert found == [retriever.invoke(query, k=1) for query in queries]

    async def test_a_query_that_fails_leaves_the_others(self, client, fresh_index, either):
        retriever = ElasticsearchRetriever(client=client, index=fresh_index, text_field="body")
        retriever.create_index()
        client.index(index=fresh_index, id="1", document={"body": "good"})
        client.index(index=fresh_index, id="2", document={"body": ["bad", 2]}, refresh=True)
        found, error = await either(retriever, "batch", ["good", "bad"], return_exceptions=True)
        assert ids(found) == ["1"]
        with pytest.raises(
            ValueError, match=f"document '2' of index '{fresh_index}' has no text.*text_field"
        ):
            raise error


class TestAddingAndDeleting:
    async def test_documents_come_and_go(self, client, async_client, fresh_index, either):
        retriever = ElasticsearchRetriever(client=client, async_client=async_client, index=fresh_index)
        given = documents()[:20]
        for _ in range(2):
            assert await either(retriever, "add_documents", given) == ids(given)
            assert client.count(index=fresh_index)["count"] == 20
        await either(retriever, "add_documents", [Document("entirely new", id="d007")])
        (found,) = await either(retriever, "invoke", "entirely")
        assert (found.id, found.page_content) == ("d007", "entirely new")
        assert await either(retriever, "delete", ["d007", "d008", "unknown"]) == 2
        assert await either(retriever, "invoke", "entirely") == []
        assert client.count(index=fresh_index)["count"] == 18

    @pytest.mark.parametrize("given", ["12", [1, 2], b"12"])
    async def test_deleting_what_are_no_ids(self, client, fresh_index, either, given):
        retriever = ElasticsearchRetriever(client=client, index=fresh_index)
        retriever.add_documents([Document("text", id="1"), Document("text", id="2")])
        with pytest.raises(TypeError, match="ids must be"):
            await either(retriever, "delete", given)
        assert client.count(index=fresh_index)["count"] == 2

    async def test_what_was_found_is_the_same_document_when_it_is_added_again(
        self, client, fresh_index, either
    ):
        retriever = ElasticsearchRetriever(client=client, index=fresh_index)
        retriever.add_documents([Document("an exam", metadata={"score": 97})])
        before = await either(retriever, "invoke", "exam")
        assert (len(before), before[0].metadata["score"]) == (1, 97)
        await either(retriever, "add_documents", before)
        await either(retriever, "add_documents", [before[0].model_copy(update={"id": None})])
        assert await either(retriever, "invoke", "exam") == before

    async def test_the_mapping(self, client, async_client, fresh_index, either):
        retriever = ElasticsearchRetriever(client=client, async_client=async_client, index=fresh_index)
        await either(retriever, "create_index", analyzer="english")
        await either(retriever, "create_index")
        metadata = {"date": "2026-01-01", "price": 10, "weight": 0.5}
        await either(retriever, "add_documents", [Document("She rides", metadata=metadata)])
        properties = client.indices.get_mapping(index=fresh_index)[fresh_index]["mappings"]["properties"]
        assert properties["text"].items() >= {"type": "text", "analyzer": "english"}.items()
        types = {key: field["type"] for key, field in properties["metadata"]["properties"].items()}
        assert types == {"date": "keyword", "price": "double", "weight": "double"}
        assert len(await either(retriever, "invoke", "riding")) == 1

    async def test_what_the_server_refuses_is_named_and_not_shown(self, client, fresh_index, either):
        retriever = ElasticsearchRetriever(client=client, index=fresh_index)
        retriever.add_documents([Document("first", metadata={"n": 1})])
        bad = [
            Document("secret text", id="bad", metadata={"n": "secret value"}),
            Document("second", id="good", metadata={"n": 2}),
        ]
        with pytest.raises(ValueError, match=r"1 of 2 documents failed, the first with id 'bad'") as caught:
            await either(retriever, "add_documents", bad)
        assert "secret" not in f"{caught.value!r} {caught.value.__cause__!r}"
        assert ids(retriever.invoke("second")) == ["good"]

    async def test_an_index_that_others_made(self, client, fresh_index, either):
        client.indices.create(index=fresh_index, mappings={"properties": {"lang": {"type": "keyword"}}})
        source = {"body": "the text", "lang": "en", "year": 2026}
        client.index(index=fresh_index, id="1", document=source, refresh=True)
        retriever = ElasticsearchRetriever(
            client=client, index=fresh_index, text_field="body", metadata_field=None, filter={"lang": "en"}
        )
        (found,) = await either(retriever, "invoke", "text")
        score = found.metadata.pop("_score")
        assert (found.id, found.page_content, found.metadata) == (
            "1",
            "the text",
            {"lang": "en", "year": 2026},
        )
        assert score > 0
        with pytest.raises(ValueError, match="set metadata_field"):
            await either(retriever, "add_documents", [Document("more")])

    @pytest.mark.parametrize(
        "source",
        [
            {"page": {"body": "the text", "n": 3}, "about": {"source": {"lang": "en"}}},
            {"page.body": "the text", "page": {"n": 3}, "about": {"source": {"lang": "en"}}},
        ],
    )
    async def test_fields_that_stand_in_objects(self, client, fresh_index, either, source):
        client.index(index=fresh_index, id="1", document=source, refresh=True)
        settings = {"client": client, "index": fresh_index, "text_field": "page.body"}
        expected = {"about.source": {"lang": "en"}, None: {"page": {"n": 3}, "about": source["about"]}}
        for field, metadata in expected.items():
            retriever = ElasticsearchRetriever(**settings, metadata_field=field)
            (found,) = await either(retriever, "invoke", "text")
            assert found.metadata.pop("_score") > 0
            assert (found.page_content, found.metadata) == ("the text", metadata)

    async def test_metadata_whose_keys_hold_the_path(self, client, fresh_index, either):
        source = {"text": "the text", "metadata.lang": "en", "metadata": {"n": 3}}
        client.index(index=fresh_index, id="1", document=source, refresh=True)
        retriever = ElasticsearchRetriever(client=client, index=fresh_index)
        (found,) = await either(retriever, "invoke", "text", filter={"lang": "en"})
        assert found.metadata.pop("_score") > 0
        assert found.metadata == {"lang": "en", "n": 3}

    async def test_documents_are_added_to_fields_in_objects(self, client, fresh_index, either):
        fields = {"text_field": "page.body", "metadata_field": "page.about"}
        retriever = ElasticsearchRetriever(client=client, index=fresh_index, **fields)
        given = Document("the text", id="1", metadata={"lang": "en"})
        await either(retriever, "add_documents", [given])
        (found,) = await either(retriever, "invoke", "text", filter={"lang": "en"})
        assert found.metadata.pop("_score") > 0
        assert found == given

    async def test_a_field_with_several_texts(self, client, fresh_index, either):
        source = {"body": ["one text", "and another"]}
        client.index(index=fresh_index, id="1", document=source, refresh=True)
        retriever = ElasticsearchRetriever(client=client, index=fresh_index, text_field="body")
        (found,) = await either(retriever, "invoke", "another")
        assert found.page_content == "one text\nand another"

    @pytest.mark.parametrize("wrong", ["a string", [{"n": 1}, {"n": 2}], 3])
    async def test_metadata_that_are_no_object(self, client, fresh_index, either, wrong):
        client.index(index=fresh_index, id="1", document={"text": "good", "other": None})
        client.index(index=fresh_index, id="2", document={"text": "bad", "other": wrong}, refresh=True)
        retriever = ElasticsearchRetriever(client=client, index=fresh_index, metadata_field="other")
        found, error = await either(retriever, "batch", ["good", "bad"], return_exceptions=True)
        assert [document.metadata.keys() for document in found] == [{"_score"}]
        with pytest.raises(ValueError, match=r"document '2' .* in its field 'other': set metadata_field"):
            raise error

    def test_no_bar_where_there_is_no_terminal(self, client, fresh_index, capsys):
        ElasticsearchRetriever(client=client, index=fresh_index).add_documents(documents())
        assert capsys.readouterr() == ("", "")


class TestIndices:
    @pytest.mark.parametrize("name", ["", " ", ",", "handbook,", ",handbook", "handbook, ,minutes"])
    def test_one_without_a_name_would_be_all_there_are(self, client, index, name):
        with pytest.raises(ValueError, match=r"index must name an index, got .*: to search all"):
            ElasticsearchRetriever(client=client, index=name)
        retriever = ElasticsearchRetriever(client=client, index=index)
        with pytest.raises(ValueError, match="index must name an index"):
            retriever.index = name
        assert retriever.index == index

    async def test_several(self, client, async_client, index, fresh_index, either):
        ElasticsearchRetriever(client=client, index=fresh_index).add_documents([Document("unheard", id="n")])
        for names in (f"{index},{fresh_index}", "contextpilot-test-*"):
            both = ElasticsearchRetriever(client=client, async_client=async_client, index=names)
            assert "n" in ids(await either(both, "invoke", "unheard"))
            assert await either(both, "invoke", "word1") != []


class TestClients:
    async def test_one_of_a_kind(self, client, async_client, index):
        only_sync = ElasticsearchRetriever(client=client, index=index)
        only_async = ElasticsearchRetriever(async_client=async_client, index=index)
        expected = only_sync.invoke("word1")
        assert await only_sync.ainvoke("word1") == await only_async.ainvoke("word1") == expected
        assert await only_sync.abatch(["word1"] * 2) == await only_async.abatch(["word1"] * 2)
        with pytest.raises(ValueError, match=r"pass client=connect\(\.\.\.\)"):
            only_async.invoke("word1")
        with pytest.raises(ValueError, match="or both"):
            ElasticsearchRetriever(index=index)

    async def test_threads_and_tasks_share_one(self, retriever):
        queries = some_queries(16)
        expected = [retriever.invoke(query) for query in queries]
        threads = [asyncio.to_thread(retriever.invoke, query) for query in queries]
        tasks = [retriever.ainvoke(query) for query in queries * 6]
        found = await asyncio.gather(*threads, *tasks)
        assert found == expected * 7

    async def test_it_is_not_serializable_and_keeps_secrets(self, search_url, index):
        with connect(search_url, api_key="very-secret") as client:
            retriever = ElasticsearchRetriever(client=client, index=index)
            assert dumpd(retriever)["type"] == "not_implemented"
            assert (
                "very-secret" not in f"{retriever!r} {dumpd(retriever)} {retriever.model_dump()} {client!r}"
            )
