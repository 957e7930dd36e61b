import asyncio
import uuid

import pytest

pytest.importorskip("langchain_core")

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.runnables import ConfigurableField, RunnableLambda
from pydantic import PrivateAttr

from contextpilot_integrations.retrievers.batch import BatchRetriever


class Toy(BatchRetriever):
    """Finds numbered texts for each query; some queries fail."""

    _searches: list = PrivateAttr(default_factory=list)
    _concurrency: list = PrivateAttr(default_factory=list)

    def _search(self, queries, *, k=None, filter=None, max_concurrency=None):
        self._searches.append(list(queries))
        self._concurrency.append(max_concurrency)
        if "everything fails" in queries:
            raise LookupError("no index")
        return [self._found(query, self._limit(k), filter) for query in queries]

    async def _asearch(self, queries, **options):
        await asyncio.sleep(0)
        return self._search(queries, **options)

    def _found(self, query, k, filter):
        if query == "fails":
            return ValueError("bad query")
        return [Document(f"{query} {number}{filter or ''}") for number in range(k)]


class Runs(BaseCallbackHandler):
    """Keeps what happened to each run, by its query."""

    def __init__(self):
        self.started, self.queries, self.ended, self.failed, self.roots = {}, {}, {}, {}, {}

    def on_retriever_start(self, serialized, query, *, run_id, parent_run_id=None, **kwargs):
        assert not self.ended
        assert not self.failed
        self.queries[run_id] = query
        self.started[query] = {"run_id": run_id, "parent": parent_run_id, **kwargs}

    def on_retriever_end(self, documents, *, run_id, **kwargs):
        self.ended[self.queries[run_id]] = [document.page_content for document in documents]

    def on_retriever_error(self, error, *, run_id, **kwargs):
        self.failed[self.queries[run_id]] = error

    def on_chain_start(self, serialized, inputs, *, run_id, parent_run_id=None, **kwargs):
        if parent_run_id is None:
            self.roots[inputs] = run_id


@pytest.fixture
def toy():
    return Toy(k=2)


@pytest.fixture(params=["batch", "abatch"])
def batch(request):
    """Run a batch on the sync or on the async side."""

    async def run(runnable, *args, **kwargs):
        if request.param == "batch":
            return await asyncio.to_thread(runnable.batch, *args, **kwargs)
        return await runnable.abatch(*args, **kwargs)

    return run


def texts(found):
    return [[document.page_content for document in documents] for documents in found]


async def test_a_batch_is_one_search_in_the_order_given(toy, batch):
    assert texts(await batch(toy, ["b", "a", "b"])) == [["b 0", "b 1"], ["a 0", "a 1"], ["b 0", "b 1"]]
    assert toy._searches == [["b", "a", "b"]]


async def test_a_batch_finds_what_single_calls_find(toy, batch):
    found = await batch(toy, ["a", "b"], k=3, filter="!")
    assert found == [toy.invoke("a", k=3, filter="!"), await toy.ainvoke("b", k=3, filter="!")]
    assert texts(found)[0] == ["a 0!", "a 1!", "a 2!"]


async def test_an_empty_batch_searches_nothing(toy, batch):
    assert await batch(toy, []) == []
    assert toy._searches == []


async def test_a_chain_that_starts_with_it_searches_once(toy, batch):
    chain = toy | RunnableLambda(len)
    assert await batch(chain, ["a", "b", "c"]) == [2, 2, 2]
    assert await batch(chain, ["a", "b"], k=5) == [5, 5]
    assert toy._searches == [["a", "b", "c"], ["a", "b"]]


async def test_what_is_bound_or_retried_is_one_search_too(toy, batch):
    assert len((await batch(toy.bind(k=1), ["a", "b"]))[0]) == 1
    retried = toy.with_retry(stop_after_attempt=2, wait_exponential_jitter=False)
    found = await batch(retried, ["a", "fails", "b", "fails"], return_exceptions=True)
    assert [isinstance(result, ValueError) for result in found] == [False, True, False, True]
    assert toy._searches == [["a", "b"], ["a", "fails", "b", "fails"], ["fails", "fails"]]


async def test_what_is_configured_the_same_for_all_is_one_search(toy, batch):
    configurable = toy.configurable_fields(k=ConfigurableField(id="k"))
    assert len(await batch(configurable, ["a", "b"])) == 2
    assert toy._searches == [["a", "b"]]
    found = await batch(configurable, ["a", "b"], [{"configurable": {"k": 1}}, {"configurable": {"k": 3}}])
    assert [len(documents) for documents in found] == [1, 3]


class TestRuns:
    async def test_each_query_has_one(self, toy, batch):
        runs = Runs()
        await batch(toy, ["a", "b"], {"callbacks": [runs]})
        assert runs.ended == {"a": ["a 0", "a 1"], "b": ["b 0", "b 1"]}
        assert len(runs.queries) == 2
        assert runs.failed == {}

    async def test_they_look_like_those_of_single_calls(self, toy, batch):
        single, together = Runs(), Runs()
        toy = Toy(tags=["mine"], metadata={"own": 1})
        config = {"tags": ["t"], "metadata": {"m": 2}}
        toy.invoke("a", {**config, "callbacks": [single]})
        await batch(toy, ["a"], {**config, "callbacks": [together]})
        for one in (single, together):
            assert one.started["a"].pop("run_id")
        assert together.started == single.started
        assert single.started["a"]["metadata"]["ls_retriever_name"] == "toy"
        assert sorted(single.started["a"]["tags"]) == ["mine", "t"]
        assert single.started["a"]["metadata"].items() >= {"own": 1, "m": 2}.items()

    async def test_in_a_chain_they_hang_on_the_run_of_their_input(self, toy, batch):
        runs = Runs()
        await batch(toy | RunnableLambda(len), ["a", "b"], {"callbacks": [runs]})
        assert runs.roots.keys() == {"a", "b"}
        assert {query: started["parent"] for query, started in runs.started.items()} == runs.roots

    async def test_each_has_its_own_config(self, toy, batch):
        left, right, run_id = Runs(), Runs(), uuid.uuid4()
        configs = [
            {"callbacks": [left], "tags": ["left"], "metadata": {"n": 1}, "run_name": "first"},
            {"callbacks": [right], "run_id": run_id, "max_concurrency": 7},
        ]
        await batch(toy, ["a", "b"], configs)
        assert (left.started.keys(), right.started.keys()) == ({"a"}, {"b"})
        first, second = left.started["a"], right.started["b"]
        assert (first["name"], first["tags"], first["metadata"]["n"]) == ("first", ["left"], 1)
        assert (second["name"], second["run_id"]) == ("Toy", run_id)
        assert "n" not in second["metadata"]

    async def test_the_limit_on_what_runs_at_a_time_reaches_the_search(self, toy, batch):
        await batch(toy, ["a", "b"], {"max_concurrency": 3})
        assert toy._concurrency == [3]


class TestFailures:
    async def test_one_query_alone(self, toy, batch):
        runs = Runs()
        inputs = ["a", "fails", "b"]
        first, error, third = await batch(toy, inputs, {"callbacks": [runs]}, return_exceptions=True)
        assert isinstance(error, ValueError)
        assert texts([first, third]) == [["a 0", "a 1"], ["b 0", "b 1"]]
        assert (runs.ended.keys(), runs.failed) == ({"a", "b"}, {"fails": error})

    async def test_it_is_raised_when_the_others_have_ended(self, toy, batch):
        runs = Runs()
        with pytest.raises(ValueError, match="bad query"):
            await batch(toy, ["a", "fails", "b"], {"callbacks": [runs]})
        assert (runs.ended.keys(), runs.failed.keys()) == ({"a", "b"}, {"fails"})

    async def test_the_search_as_a_whole(self, toy, batch):
        runs = Runs()
        inputs = ["a", "everything fails"]
        errors = await batch(toy, inputs, {"callbacks": [runs]}, return_exceptions=True)
        assert [str(error) for error in errors] == ["no index"] * 2
        assert runs.failed == dict(zip(inputs, errors, strict=True))
        with pytest.raises(LookupError, match="no index"):
            await batch(toy, inputs)

    async def test_what_is_no_string(self, toy, batch):
        found = await batch(toy, ["a", None, 3, "b"], return_exceptions=True)
        assert [isinstance(result, TypeError) for result in found] == [False, True, True, False]
        assert toy._searches == [["a", "b"]]
        with pytest.raises(TypeError, match="must be a string, not NoneType"):
            await batch(toy, ["a", None])
        with pytest.raises(TypeError, match="must be a string, not int"):
            toy.invoke(3)
        with pytest.raises(TypeError, match="must be a string, not int"):
            await toy.ainvoke(3)

    async def test_a_chain_goes_on_with_the_rest(self, toy, batch):
        found = await batch(toy | RunnableLambda(len), ["a", "fails", "b"], return_exceptions=True)
        assert (found[0], found[2]) == (2, 2)
        assert isinstance(found[1], ValueError)

    async def test_arguments_that_are_wrong(self, toy, batch):
        with pytest.raises(ValueError, match="k must be at least 0, got -1"):
            await batch(toy, ["a"], k=-1)
        for k in ("3", 1.5):
            with pytest.raises(TypeError, match=f"k must be a whole number, not {type(k).__name__}"):
                await batch(toy, ["a"], k=k)
        with pytest.raises(TypeError, match="limit"):
            await batch(toy, ["a"], limit=1)
        with pytest.raises(TypeError, match="limit"):
            toy.invoke("a", limit=1)
        with pytest.raises(ValueError, match="k"):
            Toy(k=-1)
        with pytest.raises(ValueError, match="k"):
            toy.k = -1

    async def test_cancelling_ends_the_runs(self):
        class Slow(Toy):
            async def _asearch(self, queries, **options):
                started.set()
                await asyncio.Event().wait()

        started, runs = asyncio.Event(), Runs()
        task = asyncio.create_task(Slow().abatch(["a", "b"], {"callbacks": [runs]}, return_exceptions=True))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert runs.failed.keys() == {"a", "b"}

    async def test_a_search_that_loses_count(self, batch):
        class Short(Toy):
            def _search(self, queries, **options):
                return [[]]

        with pytest.raises(RuntimeError, match="1 results for 2 queries"):
            await batch(Short(), ["a", "b"])
