"""The README's code, run as it stands."""

import importlib
import json
import re
from pathlib import Path

import pytest
from readme_code import README, code_under

BLOCKS = [*code_under("Ten lines of LangChain"), *code_under("Without LangChain")]


def test_the_code_runs_in_the_order_shown():
    pytest.importorskip("langchain_core")
    from langchain_core.documents import Document
    from langchain_core.language_models import FakeListChatModel
    from langchain_core.retrievers import BaseRetriever

    class Retriever(BaseRetriever):
        def _get_relevant_documents(self, query, *, run_manager):
            return [
                Document(id=number, page_content=f"The text of page {number}. " * 5) for number in query[:3]
            ]

    names = {
        "your_retriever": Retriever(),
        "your_model": FakeListChatModel(responses=["an answer"]),
        "your_tools": [],
        "questions": ["214", "129", "578"],
        "question": "How much?",
    }
    assert len(BLOCKS) == 8
    exec(BLOCKS[0], names)
    exec(BLOCKS[1], names)
    assert [answer.text for answer in names["answers"]] == ["an answer"] * 3
    exec(BLOCKS[2], names)
    assert [message.text.count("Please refer to [CB_") for message in names["messages"][::2]] == [0, 2, 0]
    assert names["handler"].lost_texts == 0
    pytest.importorskip("langchain")
    exec(BLOCKS[3], names)
    assert names["agent"].invoke({"messages": "How much?"})["messages"][-1].text == "an answer"
    exec(BLOCKS[4], names)
    assert names["prompt"].startswith("[CB_2] The box")

    names["your_client"], sent = client()
    exec(BLOCKS[5], names)
    assert names["completion"].text == "an answer"
    assert [answer.text for answer in names["answers"]] == ["an answer"] * 2
    assert [body["messages"][1]["content"].rpartition("\n\n")[2] for body in sent] == [
        "How much?",
        "How far?",
        "How much?",
    ]
    exec(BLOCKS[6], names)
    assert names["messages"][-1]["content"] == "And how far?"
    pytest.importorskip("zmq")
    exec(BLOCKS[7], names)
    assert names["completion"].text == "an answer"


def client():
    """An openai client that reaches no server, and the bodies of what it was asked for."""
    openai = pytest.importorskip("openai")
    transport = importlib.import_module(openai.DefaultHttpxClient.__mro__[1].__module__.partition(".")[0])
    sent = []

    def answer(request):
        if request.method == "GET" or not request.url.path.endswith("/chat/completions"):
            return transport.Response(404)
        sent.append(json.loads(request.content))
        choice = {"index": 0, "delta": {"content": "an answer"}, "finish_reason": "stop"}
        chunk = {
            "id": "c",
            "object": "chat.completion.chunk",
            "created": 0,
            "model": "m",
            "choices": [choice],
        }
        headers = {"content-type": "text/event-stream"}
        return transport.Response(200, text=f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n", headers=headers)

    http = transport.Client(transport=transport.MockTransport(answer))
    return openai.OpenAI(base_url="http://localhost/v1", api_key="none", http_client=http), sent


@pytest.mark.parametrize(
    "section", ["Ten lines of LangChain", "LlamaIndex", "Mem0", "FAISS and Elasticsearch"]
)
def test_the_first_example_of_an_ecosystem_has_no_more_than_ten_lines(section):
    assert len(code_under(section)[0].splitlines()) <= 10


def test_what_the_readme_links_to_is_there():
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert (Path(__file__).parents[2] / target).exists(), target
