"""LangChain's own tests for retrievers: alone, and wrapped by the pilot's."""

import pytest

pytest.importorskip("faiss")

from langchain_core.documents import Document
from langchain_tests.integration_tests import RetrieversIntegrationTests
from word_embeddings import WordEmbeddings

from contextpilot_integrations.langchain import ContextPilotRetriever
from contextpilot_integrations.retrievers.elasticsearch import ElasticsearchRetriever
from contextpilot_integrations.retrievers.faiss import DocumentIndex, FaissRetriever

DOCUMENTS = [Document(f"A question and its answer {n}", id=str(n), metadata={"n": n}) for n in range(5)]


@pytest.fixture(scope="module")
def in_memory():
    index = DocumentIndex()
    FaissRetriever(embeddings=WordEmbeddings(), index=index).add_documents(DOCUMENTS)
    return {"embeddings": WordEmbeddings(), "index": index}


@pytest.fixture(scope="module")
def on_a_server(client, index):
    ElasticsearchRetriever(client=client, index=index).add_documents(DOCUMENTS)
    return {"client": client, "index": index}


class Suite(RetrieversIntegrationTests):
    # The suite's own fixture, which that of the folder would hide.
    @pytest.fixture
    def retriever(self):
        return self.retriever_constructor(**self.retriever_constructor_params)

    @property
    def retriever_constructor_params(self):
        return self.params

    @property
    def retriever_query_example(self):
        return "question"


class TestFaissRetriever(Suite):
    retriever_constructor = FaissRetriever

    @pytest.fixture(autouse=True)
    def _params(self, in_memory):
        self.params = in_memory


class TestFaissRetrieverWrapped(Suite):
    retriever_constructor = ContextPilotRetriever

    @pytest.fixture(autouse=True)
    def _params(self, in_memory):
        self.params = {"retriever": FaissRetriever(**in_memory)}


class TestElasticsearchRetriever(Suite):
    retriever_constructor = ElasticsearchRetriever

    @pytest.fixture(autouse=True)
    def _params(self, on_a_server):
        self.params = on_a_server


class TestElasticsearchRetrieverWrapped(Suite):
    retriever_constructor = ContextPilotRetriever

    @pytest.fixture(autouse=True)
    def _params(self, on_a_server):
        self.params = {"retriever": ElasticsearchRetriever(**on_a_server)}
