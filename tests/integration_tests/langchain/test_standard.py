"""LangChain's own tests for retrievers. They need no network."""

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_tests.integration_tests import RetrieversIntegrationTests

from contextpilot_integrations.langchain import ContextPilotRetriever


class Corpus(BaseRetriever):
    def _get_relevant_documents(self, query, *, run_manager):
        return [Document(f"{query}, answer {n}", id=str(n)) for n in range(5)]


class TestContextPilotRetriever(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self):
        return ContextPilotRetriever

    @property
    def retriever_constructor_params(self):
        return {"retriever": Corpus()}

    @property
    def retriever_query_example(self):
        return "question"


class TestContextPilotRetrieverInSessions(TestContextPilotRetriever):
    @property
    def retriever_constructor_params(self):
        return {"retriever": Corpus(), "deduplicate": "session"}
