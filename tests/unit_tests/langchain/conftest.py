import json
import random

import pytest
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever


class ListRetriever(BaseRetriever):
    """Finds what it was told to find: for each query the texts of some numbered documents."""

    found: dict[str, list[int]]

    @classmethod
    def is_lc_serializable(cls):
        return True

    def _get_relevant_documents(self, query, *, run_manager):
        if query not in self.found:
            raise LookupError(f"nothing known about {query}")
        return [Document(f"text {n}", id=f"d{n}", metadata={"score": 1 / n}) for n in self.found[query]]

    async def _aget_relevant_documents(self, query, *, run_manager):
        return self._get_relevant_documents(query, run_manager=run_manager)


@pytest.fixture
def wrapped():
    return ListRetriever(found={"first": [1, 2, 3], "second": [3, 2, 1, 4], "third": [5, 1, 2], "none": []})


@pytest.fixture
def busy():
    """Forty questions over three topics, their documents mixed."""
    random_ = random.Random(5)
    found = {}
    for number in range(40):
        topic = number % 3
        found[f"q{number}"] = random_.sample(range(topic * 8 + 1, topic * 8 + 9), 5)
    return ListRetriever(found=found)


@pytest.fixture
def as_json():
    return lambda documents: json.loads(json.dumps([document.model_dump() for document in documents]))
