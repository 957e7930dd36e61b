"""The chain that the README shows, with a model that only listens."""

from itertools import pairwise
from operator import itemgetter

import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough

from contextpilot_integrations.langchain import (
    ContextPilotAligner,
    ContextPilotRetriever,
    format_documents,
    run_scheduled,
)


class Listening(GenericFakeChatModel):
    heard: list[str]

    def _generate(self, messages, *args, **kwargs):
        self.heard.append(messages[-1].content)
        return super()._generate(messages, *args, **kwargs)


@pytest.fixture
def model():
    return Listening(messages=(AIMessage(f"answer {n}") for n in range(100)), heard=[])


PROMPT = ChatPromptTemplate.from_messages([("system", "Be terse."), ("human", "{context}\n\n{question}")])


def test_online(wrapped, model):
    retriever = ContextPilotRetriever(retriever=wrapped, preamble="Be terse.")
    chain = (
        {"context": retriever | format_documents, "question": RunnablePassthrough()}
        | PROMPT
        | model
        | StrOutputParser()
    )
    assert [chain.invoke("first"), chain.invoke("second")] == ["answer 0", "answer 1"]
    assert model.heard == [
        "[CB_d1] text 1\n\n[CB_d2] text 2\n\n[CB_d3] text 3\n\nfirst",
        "[CB_d1] text 1\n\n[CB_d2] text 2\n\n[CB_d3] text 3\n\n[CB_d4] text 4\n\n"
        "Please read the context in the following priority order: "
        "[CB_d3] > [CB_d2] > [CB_d1] > [CB_d4] and answer the question.\n\nsecond",
    ]


async def test_async_and_streaming(wrapped, model):
    retriever = ContextPilotRetriever(retriever=wrapped)
    context = {"context": retriever | format_documents, "question": RunnablePassthrough()}
    chain = context | PROMPT | model | StrOutputParser()
    await chain.ainvoke("first")
    assert "".join([chunk async for chunk in chain.astream("second")]) == "answer 1"
    assert "[CB_d3] > [CB_d2] > [CB_d1] > [CB_d4]" in model.heard[1]


def test_offline(busy, model):
    questions = list(busy.found)
    contexts = (busy | ContextPilotAligner()).batch(questions)
    inputs = [{"question": q, "context": c} for q, c in zip(questions, contexts, strict=True)]
    chain = RunnablePassthrough.assign(context=itemgetter("context") | format_documents) | PROMPT | model
    answers = run_scheduled(chain, inputs)
    assert len(model.heard) == len(answers) == 40
    asked = [text.rsplit("\n\n", 1)[1] for text in model.heard]
    assert sorted(asked) == sorted(questions) != asked
    # The n-th call got answer n; each answer stands where its question did.
    assert [answer.content for answer in answers] == [f"answer {asked.index(q)}" for q in questions]
    # Neighbours in the schedule share their first block far more often than neighbours in the input.
    first = {q: c[0].id for q, c in zip(questions, contexts, strict=True)}

    def shared(order):
        return sum(first[a] == first[b] for a, b in pairwise(order))

    assert shared(asked) > 2 * shared(questions)
