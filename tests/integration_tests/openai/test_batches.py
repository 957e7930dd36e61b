"""Batches: in which order requests reach the engine, how many at a time, and what a failure stops."""

import asyncio
import math
import random
import threading
from itertools import takewhile

import httpx
import openai
import pytest

from contextpilot_integrations import ContextPilot, Namespace
from contextpilot_integrations.openai import AsyncCompletions, Completions

WAIT = 0.02  # Seconds before a first token, in which a client that does not wait would send the next one.
FAMILY = ["oak elm ash", "oak elm fir", "oak elm yew", "oak elm bay"]


def plan(pilot, contexts):
    """What the same batch's plan is, made by a pilot of its own."""
    batch = ContextPilot().prepare_batch(contexts)
    return batch.plans, batch.schedule


def shared(left, right):
    return sum(takewhile(bool, (a == b for a, b in zip(left.blocks, right.blocks, strict=False))))


@pytest.fixture
def batch(blocks):
    """Twenty requests of four families, shuffled."""
    generator = random.Random(3)
    words = [f"{family}{generator.randrange(3)} {family}3 x{n}" for n in range(5) for family in "abcd"]
    generator.shuffle(words)
    contexts = [blocks(w) for w in words]
    return contexts, [f"Q{n}?" for n in range(len(contexts))]


async def test_in_the_order_of_the_schedule_and_back_in_the_callers(connect, engine, pilot, batch):
    contexts, questions = batch
    completions = await connect(engine).complete_batch(contexts, questions, max_in_flight=1)
    plans, schedule = plan(pilot, contexts)
    assert engine.arrivals == [questions[place] for place in schedule]
    assert engine.arrivals != questions
    by_id = {body["request_id"]: body for body in engine.bodies}
    for completion, question, expected in zip(completions, questions, plans, strict=True):
        assert completion.plan.blocks == expected.blocks
        assert by_id[completion.plan.request_id]["messages"][0]["content"].endswith(question)
        assert completion.text == "An answer."


@pytest.mark.parametrize("max_in_flight", [2, 3, 16])
async def test_no_more_in_flight_than_allowed(connect, engine, weather, batch, max_in_flight):
    engine.fine = weather(wait=10 * WAIT)
    await connect(engine).complete_batch(*batch, max_in_flight=max_in_flight)
    assert 1 < engine.in_flight <= max_in_flight


async def test_none_starts_before_its_leaders_first_token(connect, engine, pilot, weather, batch):
    engine.fine = weather(wait=WAIT)
    contexts, questions = batch
    await connect(engine).complete_batch(contexts, questions, max_in_flight=16)
    plans, schedule = plan(pilot, contexts)
    followers = 0
    for turn, place in enumerate(schedule):
        before = [(shared(plans[place], plans[other]), -n, other) for n, other in enumerate(schedule[:turn])]
        length, _, leader = max(before, default=(0, 0, None))
        if length:
            followers += 1
            cached = engine.log.index(("first token", questions[leader]))
            assert cached < engine.log.index(("arrived", questions[place]))
    assert followers >= 12
    assert engine.in_flight > 1


async def test_those_with_the_same_leader_run_together(connect, engine, weather, blocks):
    engine.weather["B"] = [weather(after="D")]
    await connect(engine).complete_batch([blocks(words) for words in FAMILY], "ABCD", max_in_flight=4)
    first = engine.log.index(("first token", "A"))
    assert engine.log[:first] == [("arrived", "A")]
    assert engine.log.index(("arrived", "D")) < engine.log.index(("first token", "B"))


async def test_a_refused_leader_blocks_nobody_and_has_an_heir(connect, engine, weather, blocks):
    engine.fine = weather(wait=WAIT)
    engine.weather["A"] = [weather(400)]
    found = await connect(engine).complete_batch([blocks(words) for words in FAMILY], "ABCD", max_in_flight=4)
    assert [completion.text for completion in found] == ["", *["An answer."] * 3]
    assert isinstance(found[0].error, openai.BadRequestError)
    assert [completion.error for completion in found[1:]] == [None] * 3
    # B leads now: C and D find in the cache what they would have found of A's.
    heir = engine.log.index(("first token", "B"))
    assert heir < engine.log.index(("arrived", "C"))
    assert heir < engine.log.index(("arrived", "D"))


@pytest.mark.parametrize("trouble", [{"after": "never"}, {"cut": 0}, {"cut": 1}, {"status": 503}])
async def test_nobody_waits_for_anyone_while_the_server_is_in_trouble(
    connect, engine, weather, blocks, trouble
):
    contexts = [blocks(words) for words in ("oak", "oak elm", "oak elm ash", "fig", "fig yew")]
    engine.weather["A"] = [weather(**trouble)]
    for question in "BCD":
        engine.weather[question] = [weather(after="E")]  # In line, C would wait for B, and E for D.
    completions = connect(engine, max_retries=0)
    found = await completions.complete_batch(contexts, "ABCDE", max_in_flight=4, timeout=6)
    assert isinstance(found[0].error, openai.APIError | httpx.HTTPError)
    assert [completion.error for completion in found[1:]] == [None] * 4


async def test_those_who_come_after_the_trouble_wait_again(connect, engine, weather, blocks):
    contexts = [blocks(words) for words in ("oak", "oak elm", "fig", "fig yew")]
    engine.weather["A"] = [weather(503)]
    engine.weather["C"] = [weather(wait=20 * WAIT)]
    completions = connect(engine, max_retries=0)
    found = await completions.complete_batch(contexts, "ABCD", max_in_flight=2)
    assert [completion.error is None for completion in found] == [False, True, True, True]
    assert engine.log.index(("first token", "C")) < engine.log.index(("arrived", "D"))


async def test_an_answer_that_breaks_off_leads_all_the_same(connect, engine, weather, blocks):
    engine.weather["A"] = [weather(cut=2)]
    found = await connect(engine).complete_batch([blocks(words) for words in FAMILY], "ABCD")
    assert found[0].error is not None
    assert (found[0].text, found[0].finish_reason) == ("An ", None)
    assert [completion.error for completion in found[1:]] == [None] * 3
    assert len(engine.bodies) == 4


async def test_failures_stay_in_their_places(connect, engine, weather, batch):
    contexts, questions = batch
    failing = {questions[n] for n in (2, 3, 11)}
    for question in failing:
        engine.weather[question] = [weather(422)]
    found = await connect(engine).complete_batch(contexts, questions, max_in_flight=4)
    for completion, question in zip(found, questions, strict=True):
        assert (completion.error is not None) == (question in failing)
        assert completion.text == ("" if question in failing else "An answer.")


async def test_a_server_that_is_down_fails_them_all(connect, start, batch):
    engine = start()
    engine.shutdown()
    engine.server_close()
    found = await connect(engine, max_retries=0).complete_batch(*batch)
    assert {type(completion.error) for completion in found} == {openai.APIConnectionError}


async def test_a_prompt_too_long_fails_alone(connect, engine, blocks):
    pilot = ContextPilot(token_counter=len)
    contexts = [blocks("oak"), blocks(" ".join(f"tree{n}" for n in range(9)))]
    found = await connect(engine, pilot, context_window=60).complete_batch(contexts, ["A?", "B?"])
    assert found[0].text == "An answer."
    assert isinstance(found[1].error, ValueError)
    assert engine.arrivals == ["A?"]


async def test_salt_ids_and_parameters_go_to_all(connect, engine, pilot, batch):
    contexts, questions = batch
    ids = [f"r{n}" for n in range(len(contexts))]
    found = await connect(engine).complete_batch(
        contexts, questions, tenant="acme", request_ids=ids, max_tokens=3
    )
    assert [completion.plan.request_id for completion in found] == ids
    assert {(body["cache_salt"], body["max_tokens"]) for body in engine.bodies} == {("acme", 3)}
    assert all(pilot.evict(id_, namespace=found[0].plan.namespace) for id_ in ids)


async def test_nothing_is_shown_where_there_is_no_terminal(connect, engine, batch, capfd):
    await connect(engine).complete_batch(*batch, show_progress=True)
    assert capfd.readouterr() == ("", "")


async def test_bad_arguments_are_refused(connect, engine, blocks):
    completions = connect(engine)
    assert await completions.complete_batch([], []) == []
    with pytest.raises(ValueError, match="1 contexts for 2 questions"):
        await completions.complete_batch([blocks("oak")], ["A?", "B?"])
    for wrong in (0, 2.5, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"max_in_flight must be an integer of at least 1, got {wrong}"):
            await completions.complete_batch([blocks("oak")], ["A?"], max_in_flight=wrong)
    assert engine.bodies == []


async def test_batches_and_requests_at_once(engine, client, blocks):
    completions = AsyncCompletions(ContextPilot(on_error="raise"), client(engine), model="m")
    contexts = [blocks(words) for words in FAMILY]
    batches = [completions.complete_batch(contexts, [f"{c}{n}" for c in "ABCD"]) for n in range(10)]
    single = [completions.complete(blocks("elm oak"), f"S{n}") for n in range(60)]
    *found, _ = await asyncio.gather(*batches, *single, asyncio.sleep(0))
    assert len(engine.bodies) == 100
    assert {completion.text for batch in found[:10] for completion in batch} == {"An answer."}


async def test_a_cancelled_batch_is_not_believed_to_be_cached(engine, pilot, client, weather, blocks):
    engine.fine = weather(wait=WAIT)
    completions = AsyncCompletions(pilot, client(engine), model="m")
    contexts = [blocks(f"oak x{n}") for n in range(50)]
    task = asyncio.create_task(
        completions.complete_batch(contexts, [f"Q{n}" for n in range(50)], max_in_flight=2)
    )
    while not engine.arrivals:
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    sent = len(engine.bodies)
    assert sent < 50
    await asyncio.sleep(4 * WAIT)
    assert len(engine.bodies) == sent
    with pilot.index(Namespace(endpoint=f"{engine.base_url}/", model="m")) as index:
        assert len([*index]) <= 2 + sent


def test_an_interrupted_batch_is_not_believed_to_be_cached(engine, pilot, blocks, monkeypatch):
    completions = Completions(pilot, openai.OpenAI(base_url=engine.base_url, api_key="none"), model="m")

    class Interrupted(threading.Event):
        def wait(self):
            raise KeyboardInterrupt  # While it waits for the first of the family.

    monkeypatch.setattr("contextpilot_integrations.openai.completions.Event", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        completions.complete_batch([blocks(words) for words in FAMILY], "ABCD")
    assert engine.arrivals in ([], ["A"])
    with pilot.index(Namespace(endpoint=f"{engine.base_url}/", model="m")) as index:
        assert len([*index]) <= 2
