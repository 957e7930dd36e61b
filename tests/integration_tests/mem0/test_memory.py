"""The wrapper on real Mem0: FAISS and local Qdrant, sync and async, real embeddings, no network."""

import json

import pytest

from contextpilot_integrations import ContextBlock, ContextPilot
from contextpilot_integrations.mem0 import AsyncContextPilotMemory, ContextPilotMemory, format_memories

mem0 = pytest.importorskip("mem0")

SYSTEM = {"role": "system", "content": "Answer in a few words."}
FACTS = [
    "For breakfast Ada eats porridge with blueberries, and she never drinks coffee before nine.",
    "For dinner Ada cooks a curry on most days, always without nuts, since she is allergic to them.",
    "Ada rides a cargo bike to work, and takes the train only when it snows.",
    "Ada's cat Pixel is eleven years old and gets special food from the vet.",
    "Ada learns to play the cello, and her lesson is on Thursday at six.",
    "Ada works as a bridge engineer and travels to Norway twice a year.",
]


@pytest.fixture(scope="module", params=["faiss", "qdrant"])
def store(request):
    return request.param


@pytest.fixture(scope="module", params=["sync", "async"])
def plain(request, store, settings, tmp_path_factory):
    kind = mem0.Memory if request.param == "sync" else mem0.AsyncMemory
    memory = kind.from_config(settings(store, tmp_path_factory.mktemp(f"{request.param}-{store}")))
    yield memory
    memory.close()


@pytest.fixture
def memory(plain):
    kind = ContextPilotMemory if isinstance(plain, mem0.Memory) else AsyncContextPilotMemory
    return kind(plain, pilot=ContextPilot(on_error="raise"))


@pytest.fixture
def user(request):
    """Everybody whom a test knows is a stranger to the others."""
    return lambda name: f"{name}/{request.node.name}".replace(" ", "_")


@pytest.fixture
def remember(memory, done):
    async def added(user, *facts):
        for fact in facts:
            await done(memory.add(fact, user_id=user, infer=False))
        return {"filters": {"user_id": user}}

    return added


def without_plan(found):
    memories = [{k: v for k, v in memory.items() if k != "contextpilot"} for memory in found["results"]]
    return {**{k: v for k, v in found.items() if k != "contextpilot"}, "results": memories}


def marks(found):
    return [f"[CB_{memory['contextpilot']['label']}]" for memory in found["results"]]


async def test_a_search_finds_what_mem0_finds(memory, plain, done, user, remember):
    ada = await remember(user("ada"), *FACTS)
    for query, best in (("What does she cook?", FACTS[1]), ("How old is her pet?", FACTS[3])):
        found = await done(memory.search(query, **ada, top_k=4))
        assert without_plan(found) == await done(plain.search(query, **ada, top_k=4))
        assert found["results"][0]["memory"] == best
        assert [entry["contextpilot"]["rank"] for entry in found["results"]] == [0, 1, 2, 3]
        scores = [entry["score"] for entry in found["results"]]
        assert scores == sorted(scores, reverse=True)
        assert json.loads(json.dumps(found)) == found
        assert all(entry["memory"] in format_memories(found) for entry in found["results"])
    # The second prompt begins as the first did.
    assert found["contextpilot"]["expected_cached_blocks"] > 0
    assert "priority order" in format_memories(found)


async def test_the_rest_of_the_api_is_mem0s(memory, plain, done, user, remember):
    ada = await remember(user("ada"), *FACTS[:2])
    everything = await done(memory.get_all(**ada))
    assert everything == await done(plain.get_all(**ada))
    first = next(one for one in everything["results"] if one["memory"] == FACTS[0])
    assert await done(memory.get(first["id"])) == await done(plain.get(first["id"]))
    await done(memory.update(first["id"], text="Ada skips breakfast."))
    history = await done(memory.history(first["id"]))
    assert [(event["event"], event["new_memory"]) for event in history] == [
        ("ADD", FACTS[0]),
        ("UPDATE", "Ada skips breakfast."),
    ]
    await done(memory.delete(first["id"]))
    assert len((await done(memory.get_all(**ada)))["results"]) == 1
    await done(memory.delete_all(user_id=ada["filters"]["user_id"]))
    assert await done(memory.get_all(**ada)) == {"results": []}
    assert memory.config is plain.config
    assert memory.project is not None


async def test_mem0_refuses_what_it_always_refuses(memory, done):
    with pytest.raises(ValueError, match="must contain at least one of"):
        await done(memory.search("What does she cook?"))
    with pytest.raises(ValueError, match="Top-level entity parameters"):
        await done(memory.turn_context("What does she cook?", user_id="ada"))
    with pytest.raises(ValueError, match="empty"):
        await done(memory.search(" ", filters={"user_id": "ada"}))


async def test_a_chat_sends_each_memory_once_and_an_update_with_what_it_replaces(
    memory, done, user, remember
):
    ada = await remember(user("ada"), *FACTS)
    messages = [SYSTEM]

    async def turn(question):
        turn = await done(memory.turn_context(question, messages, **ada, top_k=3))
        messages.append({"role": "user", "content": f"{turn.text}\n\n{question}"})
        messages.append({"role": "assistant", "content": "Noted."})
        return turn

    first = await turn("What does she cook for dinner?")
    assert first.found["results"][0]["memory"] == FACTS[1]
    curry = first.found["results"][0]
    assert [first.text.count(entry["memory"]) for entry in first.found["results"]] == [1, 1, 1]

    second = await turn("What does she cook for dinner?")
    assert second.text == f"Please refer to {', '.join(marks(first.found))} in the previous conversation."

    text = "For dinner Ada cooks a soup on most days, and nuts are fine again: the allergy is gone."
    await done(memory.update(curry["id"], text=text))
    third = await turn("What does she cook for dinner?")
    place = next(n for n, entry in enumerate(third.found["results"]) if entry["id"] == curry["id"])
    new, old = marks(third.found)[place], marks(first.found)[0]
    assert third.found["results"][place]["memory"] == text
    assert (
        f"{new} {text}\n\nPlease note that {new} replaces {old} in the previous conversation." in third.text
    )
    assert third.found["results"][place]["contextpilot"]["replaces"] == old[4:-1]
    assert curry["memory"] not in third.text

    # The history is cut: what went with it is sent again.
    del messages[1:5]
    fourth = await turn("What does she cook for dinner?")
    for entry in fourth.found["results"]:
        stood = f"[CB_{entry['contextpilot']['label']}] {entry['memory']}"
        assert (stood in fourth.text) == (entry["contextpilot"]["shown_as"] is None)
        assert stood in fourth.text or any(stood in message["content"] for message in messages[:-2])


async def test_what_is_written_is_the_memorys_marker_and_text(memory, done, user, remember):
    ada = await remember(user("ada"), FACTS[0])
    turn = await done(memory.turn_context("breakfast", [SYSTEM], **ada))
    [entry] = turn.found["results"]
    assert turn.text == ContextBlock(entry["id"], FACTS[0]).render()


async def test_users_are_apart(memory, done, user, remember):
    ada, bob = await remember(user("ada"), *FACTS), await remember(user("bob"), *FACTS)
    await done(memory.search("What does she cook?", **ada))
    found = await done(memory.search("How old is her pet?", **bob))
    assert found["contextpilot"]["expected_cached_blocks"] == 0
    assert found["contextpilot"]["order"] == [*range(len(found["results"]))]
    assert {entry["user_id"] for entry in found["results"]} == {user("bob")}
    assert json.loads(found["contextpilot"]["tenant"]) == {"user_id": user("bob")}


async def test_inference_by_a_model_goes_on_as_before(memory, done, user, monkeypatch):
    class Extracts:
        """Stands in for the model, which has to follow a long prompt: it always finds the same facts."""

        asked = 0

        def generate_response(self, messages, **kwargs):
            self.asked += 1
            return json.dumps({"memory": [{"id": "0", "text": FACTS[3]}, {"id": "1", "text": FACTS[4]}]})

    model = Extracts()
    monkeypatch.setattr(memory.wrapped, "llm", model)
    added = await done(memory.add("I feed Pixel, then I practise.", user_id=user("ada")))
    assert [(event["memory"], event["event"]) for event in added["results"]] == [
        (FACTS[3], "ADD"),
        (FACTS[4], "ADD"),
    ]
    assert model.asked == 1
    turn = await done(
        memory.turn_context("What does the cat eat?", filters={"user_id": user("ada")}, top_k=1)
    )
    assert turn.text.endswith(FACTS[3])


async def test_it_is_a_context_manager_as_mem0s_is(store, plain, settings, tmp_path, done):
    memory = type(plain).from_config(settings(store, tmp_path))
    if isinstance(memory, mem0.Memory):
        with ContextPilotMemory(memory) as entered:
            assert entered.wrapped is memory
    else:
        async with AsyncContextPilotMemory(memory) as entered:
            assert entered.wrapped is memory
    assert memory.db is None
