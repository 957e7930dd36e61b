import asyncio

import pytest
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda

from contextpilot_integrations.langchain import (
    ContextPilotAligner,
    arun_scheduled,
    format_documents,
    plan_metadata,
    run_scheduled,
)


@pytest.fixture(params=["sync", "async"])
def run(request):
    async def run(*args, **kwargs):
        if request.param == "async":
            return await arun_scheduled(*args, **kwargs)
        return run_scheduled(*args, **kwargs)

    return run


@pytest.fixture
def inputs(busy):
    questions = list(busy.found)
    contexts = (busy | ContextPilotAligner()).batch(questions)
    return [{"question": q, "context": c} for q, c in zip(questions, contexts, strict=True)]


def turn(given):
    return plan_metadata(given["context"][0])["schedule_position"]


@pytest.fixture
def seen():
    return []


@pytest.fixture
def chain(seen):
    def answer(given):
        seen.append(given)
        if given.get("question") == "q7":
            raise ConnectionError("engine gone")
        return given["question"].upper()

    return RunnableLambda(lambda given: {**given, "text": format_documents.invoke(given["context"])}) | answer


async def test_runs_in_plan_order_and_returns_in_input_order(run, chain, seen, inputs):
    inputs = [given for given in inputs if given["question"] != "q7"]
    assert await run(chain, inputs) == [given["question"].upper() for given in inputs]
    assert [turn(given) for given in seen] == sorted(turn(given) for given in inputs)
    assert [given["question"] for given in seen] != [given["question"] for given in inputs]


async def test_lists_of_documents_are_inputs_too(run, inputs):
    order = []
    contexts = [given["context"] for given in inputs]
    results = await run(RunnableLambda(lambda context: order.append(context) or len(context)), contexts)
    assert results == [5] * 40
    assert [plan_metadata(context[0])["schedule_position"] for context in order] == list(range(40))


async def test_a_failure_in_its_place(run, chain, inputs):
    results = await run(chain, inputs, return_exceptions=True)
    assert isinstance(results[7], ConnectionError)
    assert results[:7] + results[8:] == [g["question"].upper() for g in inputs if g["question"] != "q7"]


async def test_a_failure_is_raised(run, chain, inputs):
    with pytest.raises(ConnectionError, match="engine gone"):
        await run(chain, inputs)
    while len(asyncio.all_tasks()) > 1:  # abatch leaves the others running.
        await asyncio.sleep(0)


async def test_inputs_without_a_turn_run_last_in_the_order_given(run, chain, seen, inputs):
    empty = [{"question": name, "context": []} for name in ("e1", "e2")]
    results = await run(chain, [empty[0], *inputs[:5], empty[1]])
    assert results == ["E1", "Q0", "Q1", "Q2", "Q3", "Q4", "E2"]
    assert [given["question"] for given in seen[-2:]] == ["e1", "e2"]


async def test_nothing_and_only_empty_contexts(run, chain):
    assert await run(chain, []) == []
    assert await run(chain, [{"question": "e1", "context": []}]) == ["E1"]


async def test_texts_instead_of_documents_are_refused(run, chain, inputs):
    texts = [{**given, "context": format_documents.invoke(given["context"])} for given in inputs]
    with pytest.raises(ValueError, match="format them inside the chain"):
        await run(chain, texts)
    single = [{"question": "q", "context": ContextPilotAligner().invoke([Document("text")])}]
    with pytest.raises(ValueError, match="batch planned"):
        await run(chain, single)


async def test_documents_of_two_requests_are_refused(run, chain, inputs):
    mixed = {"question": "q", "context": inputs[0]["context"], "more": inputs[1]["context"]}
    with pytest.raises(ValueError, match=r"inputs\[1\] holds documents of 2 requests"):
        await run(chain, [inputs[2], mixed])


async def test_configs_belong_to_their_inputs(run, inputs):
    chain = RunnableLambda(lambda given, config: (given["question"], config["configurable"]["name"]))
    configs = [{"configurable": {"name": given["question"]}} for given in inputs]
    assert all(question == name for question, name in await run(chain, inputs, configs))
    with pytest.raises(ValueError, match="length"):
        await run(chain, inputs, configs[:3])


async def test_one_at_a_time_unless_told_otherwise(run, inputs):
    chain = RunnableLambda(lambda given, config: config.get("max_concurrency"))
    assert set(await run(chain, inputs)) == {1}
    assert set(await run(chain, inputs, {"max_concurrency": 4})) == {4}
