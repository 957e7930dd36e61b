import copy
import pickle

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.load import dumps, loads
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import ConfigurableField, RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore

from contextpilot_integrations import ContextPilot, Outcome
from contextpilot_integrations.langchain import ContextPilotAligner, ContextPilotRetriever, plan_metadata


def ids(documents):
    return [document.id for document in documents]


@pytest.fixture
def retriever(wrapped):
    return ContextPilotRetriever(retriever=wrapped)


def test_what_is_cached_comes_first(retriever):
    assert ids(retriever.invoke("first")) == ["d1", "d2", "d3"]
    second = retriever.invoke("second")
    assert ids(second) == ["d1", "d2", "d3", "d4"]
    assert [plan_metadata(document)["rank"] for document in second] == [2, 1, 0, 3]


class Configurable(BaseRetriever):
    found: int = 1

    def _get_relevant_documents(self, query, *, run_manager, prefix=""):
        return [Document(f"{prefix}{number}") for number in range(self.found)]

    async def _aget_relevant_documents(self, query, *, run_manager, prefix=""):
        return self._get_relevant_documents(query, run_manager=run_manager, prefix=prefix)


async def test_what_is_configured_for_a_call_reaches_the_wrapped_retriever():
    wrapped = Configurable().configurable_fields(found=ConfigurableField(id="found"))
    retriever = ContextPilotRetriever(retriever=wrapped)
    config = {"configurable": {"found": 3}}
    assert len(retriever.invoke("q", config)) == len(await retriever.ainvoke("q", config)) == 3
    assert len(retriever.invoke("q")) == len(await retriever.ainvoke("q")) == 1


async def test_arguments_of_a_call_reach_the_wrapped_retriever():
    retriever = ContextPilotRetriever(retriever=Configurable())
    for documents in (retriever.invoke("q", prefix="x", k=1), await retriever.ainvoke("q", prefix="x", k=1)):
        assert [document.page_content for document in documents] == ["x0"]


class TestK:
    def test_the_best_are_kept(self, wrapped):
        retriever = ContextPilotRetriever(retriever=wrapped, k=2)
        assert ids(retriever.invoke("second")) == ["d3", "d2"]

    async def test_the_calls_k_comes_first(self, wrapped):
        retriever = ContextPilotRetriever(retriever=wrapped, k=2)
        assert len(retriever.invoke("second", k=3)) == len(await retriever.ainvoke("second", k=3)) == 3

    def test_more_than_there_are(self, retriever):
        assert len(retriever.invoke("first", k=100)) == 3

    def test_none_at_all(self, wrapped):
        assert ContextPilotRetriever(retriever=wrapped, k=0).invoke("first") == []
        assert ContextPilotRetriever(retriever=wrapped, k=2).invoke("first", k=0) == []

    async def test_a_negative_one(self, wrapped, retriever):
        with pytest.raises(ValueError, match=r"(?s)\bk\b.*greater than or equal to 0"):
            ContextPilotRetriever(retriever=wrapped, k=-1)
        with pytest.raises(ValueError, match="k must be at least 0, got -1"):
            retriever.invoke("first", k=-1)
        with pytest.raises(ValueError, match="k must be at least 0, got -1"):
            await retriever.ainvoke("first", k=-1)


class TestTheWrappedRetriever:
    async def test_its_errors_go_through(self, retriever):
        with pytest.raises(LookupError, match="nothing known about other"):
            retriever.invoke("other")
        with pytest.raises(LookupError, match="nothing known about other"):
            await retriever.ainvoke("other")

    def test_it_finds_nothing(self, retriever):
        assert retriever.invoke("none") == []

    def test_it_returns_no_documents(self):
        retriever = ContextPilotRetriever(retriever=RunnableLambda(lambda question: ["text"]))
        with pytest.raises(TypeError, match="Document objects, not str"):
            retriever.invoke("first")

    async def test_it_may_be_any_runnable(self, wrapped):
        retriever = ContextPilotRetriever(retriever=wrapped.with_retry())
        assert ids(retriever.invoke("first")) == ids(await retriever.ainvoke("first")) == ["d1", "d2", "d3"]

    async def test_its_async_side_is_used(self):
        def sync(question):
            raise AssertionError("called from an async chain")

        async def native(question):
            return [Document("text")]

        retriever = ContextPilotRetriever(retriever=RunnableLambda(sync, native))
        assert len(await retriever.ainvoke("first")) == 1


class Runs(BaseCallbackHandler):
    def __init__(self):
        self.started, self.ended = [], []

    def on_retriever_start(self, serialized, query, *, run_id, parent_run_id=None, metadata=None, **kwargs):
        self.started.append((kwargs["name"], run_id, parent_run_id, metadata))

    def on_retriever_end(self, documents, **kwargs):
        self.ended.append([plan_metadata(document) for document in documents])


class TestTracing:
    @pytest.mark.parametrize("asynchronous", [False, True])
    async def test_the_wrapped_run_is_a_child(self, retriever, asynchronous):
        runs = Runs()
        config = {"callbacks": [runs]}
        if asynchronous:
            await retriever.ainvoke("first", config)
        else:
            retriever.invoke("first", config)
        (outer, outer_id, _, _), (inner, _, parent, _) = runs.started
        assert (outer, inner) == ("ContextPilotRetriever", "ListRetriever")
        assert parent == outer_id
        assert runs.ended[0] == [None] * 3
        assert [entry["rank"] for entry in runs.ended[1]] == [0, 1, 2]

    def test_it_is_named_beside_the_store_behind_it(self):
        store = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
        store.add_texts(["one", "two", "three"])
        runs = Runs()
        ContextPilotRetriever(retriever=store.as_retriever(), k=1).invoke("one", {"callbacks": [runs]})
        metadata = runs.started[0][3]
        assert metadata["ls_retriever_name"] == "contextpilot"
        assert metadata["ls_vector_store_provider"] == "InMemoryVectorStore"
        assert metadata["ls_embedding_provider"] == "DeterministicFakeEmbedding"


@pytest.mark.filterwarnings("ignore:The function `loads` is in beta")
class TestSettingsTravel:
    @pytest.fixture
    def retriever(self, wrapped):
        return ContextPilotRetriever(
            retriever=wrapped,
            k=2,
            pilot=ContextPilot(capacity=123),
            endpoint="http://localhost:8000/v1",
            model="m",
            tenant="t",
            preamble="You are terse.",
            tags=["mine"],
        )

    SETTINGS = ("retriever", "k", "endpoint", "model", "tenant", "preamble", "tags")

    def same_settings(self, left, right):
        return all(getattr(left, name) == getattr(right, name) for name in self.SETTINGS)

    def test_langchain_serialization(self, retriever, wrapped):
        loaded = loads(
            dumps(retriever),
            allowed_objects=[ContextPilotRetriever, type(wrapped)],
            valid_namespaces=["contextpilot_integrations", type(wrapped).__module__.split(".")[0]],
        )
        assert self.same_settings(loaded, retriever)
        assert loaded.pilot is not retriever.pilot
        loaded.pilot = retriever.pilot
        assert ids(loaded.invoke("first")) == ["d1", "d2"]

    def test_the_aligner_too(self):
        aligner = ContextPilotAligner(tenant="t", preamble="p")
        loaded = loads(
            dumps(aligner),
            allowed_objects=[ContextPilotAligner],
            valid_namespaces=["contextpilot_integrations"],
        )
        assert (loaded.tenant, loaded.preamble) == ("t", "p")
        pickled = pickle.loads(pickle.dumps(aligner))
        assert (pickled.tenant, pickled.preamble) == ("t", "p")

    @pytest.mark.parametrize("travel", [lambda r: pickle.loads(pickle.dumps(r)), copy.deepcopy])
    def test_pickles_and_deep_copies_start_with_an_empty_index(self, retriever, travel):
        retriever.invoke("first")
        loaded = travel(retriever)
        assert self.same_settings(loaded, retriever)
        assert loaded.pilot is not retriever.pilot
        assert loaded.pilot._capacity == 123
        assert sum(loaded.pilot.outcomes.values()) == 0
        assert ids(loaded.invoke("second")) == ["d3", "d2"]

    def test_a_shallow_copy_shares_the_pilot(self, retriever):
        assert copy.copy(retriever).pilot is retriever.pilot

    def test_each_retriever_has_a_pilot_of_its_own(self, wrapped):
        left, right = ContextPilotRetriever(retriever=wrapped), ContextPilotRetriever(retriever=wrapped)
        assert left.pilot is not right.pilot


def test_a_tenant_per_call(retriever):
    configurable = retriever.configurable_fields(tenant=ConfigurableField(id="tenant"))
    configurable.invoke("first", {"configurable": {"tenant": "a"}})
    assert ids(configurable.invoke("second", {"configurable": {"tenant": "b"}})) == ["d3", "d2", "d1", "d4"]
    assert ids(configurable.invoke("second", {"configurable": {"tenant": "a"}})) == ["d1", "d2", "d3", "d4"]
    assert retriever.pilot.outcomes[Outcome.ALIGNED] == 1


def test_a_model_and_a_preamble_are_namespaces_too(wrapped):
    pilot = ContextPilot()
    ContextPilotRetriever(retriever=wrapped, pilot=pilot).invoke("first")
    for setting in ({"model": "m"}, {"endpoint": "e"}, {"preamble": "p"}, {"tenant": "t"}):
        other = ContextPilotRetriever(retriever=wrapped, pilot=pilot, **setting)
        assert ids(other.invoke("second")) == ["d3", "d2", "d1", "d4"]
