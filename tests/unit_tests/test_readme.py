"""The README's code, run as it stands."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_code_runs_in_the_order_shown():
    pytest.importorskip("langchain_core")
    from langchain_core.documents import Document
    from langchain_core.language_models import FakeListChatModel
    from langchain_core.retrievers import BaseRetriever

    class Retriever(BaseRetriever):
        def _get_relevant_documents(self, query, *, run_manager):
            return [Document(id=number, page_content=f"text {number}") for number in query[:3]]

    names = {
        "your_retriever": Retriever(),
        "your_model": FakeListChatModel(responses=["an answer"]),
        "questions": ["214", "129", "578"],
        "question": "How much?",
    }
    assert len(BLOCKS) == 3
    for block in BLOCKS:
        exec(block, names)
    assert [answer.text for answer in names["answers"]] == ["an answer"] * 3
    assert names["prompt"].startswith("[CB_2] The box")


def test_the_first_example_has_no_more_than_ten_lines():
    assert len(BLOCKS[0].splitlines()) <= 10


def test_what_the_readme_links_to_is_there():
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert (Path(__file__).parents[2] / target).exists(), target
