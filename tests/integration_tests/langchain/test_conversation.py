"""A conversation on a real engine: what the model can see is not sent again, and the rest is cached."""

from itertools import pairwise
from operator import itemgetter

import pytest
from langchain_core.documents import Document
from langchain_core.messages import HumanMessage
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnablePassthrough

for package in ("gguf", "langchain_openai", "xllamacpp"):
    pytest.importorskip(package)

from langchain_openai import ChatOpenAI

from contextpilot_integrations.demo.handbook import passages
from contextpilot_integrations.demo.llama_server import LlamaServer
from contextpilot_integrations.demo.weights import packaged_weights
from contextpilot_integrations.langchain import (
    ContextPilotCallbackHandler,
    ContextPilotRetriever,
    ContextPilotRewriter,
    format_documents,
)

try:
    packaged_weights()
except ImportError as missing:
    pytest.skip(str(missing), allow_module_level=True)

pytestmark = pytest.mark.model

PAGES = {str(number): page.text for number, page in enumerate(passages()[:10])}
REFERENCE = "Please refer to [CB_{}] in the previous conversation."
PROMPT = ChatPromptTemplate.from_messages(
    [
        ("system", "Answer from the handbook, in a few words."),
        MessagesPlaceholder("history"),
        ("human", "{context}\n\n{question}"),
    ]
)


class Pages(BaseRetriever):
    """Finds the pages whose numbers the question begins with."""

    def _get_relevant_documents(self, query, *, run_manager):
        numbers = query.split(":")[0]
        return [Document(PAGES[number], id=number) for number in numbers]


@pytest.fixture(scope="module")
def server():
    with LlamaServer(packaged_weights(), n_ctx=8192) as server:
        yield server


@pytest.fixture
def model(server):
    return ChatOpenAI(
        base_url=server.base_url,
        model=server.model,
        api_key="none",
        max_tokens=8,
        temperature=0,
        stream_usage=True,
    )


@pytest.fixture
def handler():
    return ContextPilotCallbackHandler()


def chat(model, retriever, before_model=None):
    found = RunnablePassthrough.assign(context=itemgetter("question") | retriever | format_documents)
    asked = itemgetter("sent") | model if before_model is None else itemgetter("sent") | before_model | model
    return found.assign(sent=PROMPT).assign(answer=asked)


def shown(*numbers):
    return [f"[CB_{number}] {PAGES[number]}" for number in numbers]


def paragraphs(turn):
    return turn["sent"].to_messages()[-1].content.split("\n\n")


def as_sent(history, turn):
    return [*turn["sent"].to_messages()[1:], turn["answer"]]


def bare(history, turn):
    return [*history, HumanMessage(turn["question"]), turn["answer"]]


async def converse(chain, handler, questions, keep, *, streamed=False):
    config = {"callbacks": [handler], "configurable": {"thread_id": keep.__name__}}
    history, turns = [], []
    for question in questions:
        given = {"question": question, "history": history}
        if streamed:
            turn = {}
            async for chunk in chain.astream(given, config):
                for key, value in chunk.items():
                    turn[key] = turn[key] + value if key == "answer" and key in turn else value
        else:
            turn = chain.invoke(given, config)
        turns.append(turn)
        history = keep(history, turn)
    return turns


@pytest.mark.parametrize("streamed", [False, True])
async def test_the_second_turn_refers_to_the_first(model, handler, streamed):
    retriever = ContextPilotRetriever(retriever=Pages(), deduplicate="session")
    questions = ["124: Which of these is about money?", "152: And which is about bikes?"]
    first, second = await converse(chat(model, retriever), handler, questions, as_sent, streamed=streamed)
    assert paragraphs(first) == [*shown("1", "2", "4"), questions[0]]
    assert paragraphs(second) == [REFERENCE.format(1), *shown("5"), REFERENCE.format(2), questions[1]]
    one, two = handler.observed
    assert (two.sent, two.annotated) == (("1", "5", "2"), ("1", "2"))
    assert two.cached_tokens >= 0.9 * one.prompt_tokens


async def test_a_history_of_bare_questions_and_answers_sends_all_texts(model, handler):
    retriever = ContextPilotRetriever(retriever=Pages(), deduplicate="session")
    questions = ["124: Which of these is about money?", "152: And which is about bikes?"]
    _, second = await converse(chat(model, retriever), handler, questions, bare)
    assert sorted(paragraphs(second)[:3]) == sorted(shown("1", "5", "2"))
    assert handler.observed[1].annotated == ()


TEN = ["124", "152", "245", "361", "512", "743", "126", "875", "984", "317"]


@pytest.mark.parametrize("how", ["retriever", "rewriter"])
async def test_ten_turns_are_cached_but_for_what_is_new(model, handler, how):
    if how == "retriever":
        chain = chat(model, ContextPilotRetriever(retriever=Pages(), deduplicate="session"))
    else:
        chain = chat(model, Pages(), ContextPilotRewriter())
    questions = [f"{numbers}: What is it about?" for numbers in TEN]
    await converse(chain, handler, questions, as_sent)
    runs = [run for run in handler.observed if run.usage]
    for before, run in pairwise(runs):
        assert run.cached_tokens >= 0.9 * before.prompt_tokens
    # Each page once, and little besides.
    pages = sum(len(text) for text in PAGES.values()) / 4
    assert runs[-1].prompt_tokens < 2 * pages
