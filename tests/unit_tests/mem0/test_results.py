"""What a planned search gives back: Mem0's own shape, copied, with the plan beside."""

import copy
import json
import logging
from threading import Lock

import pytest

from contextpilot_integrations import ContextPilot, Outcome
from contextpilot_integrations.mem0 import ContextPilotMemory, MemoryEntry, PlanEntry, format_memories

ADA = {"filters": {"user_id": "ada"}}


@pytest.fixture
def tea(memory):
    return memory(
        "tea", "Ada drinks green tea.", score=0.9, created_at="2026-01-02", metadata={"tags": ["x"]}
    )


@pytest.fixture
def cake(memory):
    return memory("cake", "Ada bakes cakes.", score=None)


@pytest.fixture
def cats(memory):
    return memory("cats", "Ada has two cats.")


def without_plan(found):
    memories = [{k: v for k, v in memory.items() if k != "contextpilot"} for memory in found["results"]]
    return {**{k: v for k, v in found.items() if k != "contextpilot"}, "results": memories}


def test_memories_stay_in_mem0s_order_with_all_that_they_had(store, tea, cake):
    plain = store(tea, cake, relations=[{"source": "ada"}], count=2)
    remembers = ContextPilotMemory(plain)
    for plain.found["results"] in ([tea, cake], [cake, tea]):
        found = remembers.search("what", **ADA)
        assert without_plan(found) == plain.found
        assert [*found] == ["results", "relations", "count", "contextpilot"]
        assert [memory["contextpilot"]["rank"] for memory in found["results"]] == [0, 1]
    assert [memory["contextpilot"]["position"] for memory in found["results"]] == [1, 0]
    assert found["contextpilot"]["order"] == [1, 0]


def test_the_plan_is_plain_json(store, tea, cake):
    plain = store(tea, cake)
    remembers = ContextPilotMemory(plain)
    remembers.search("what", **ADA)
    plain.found = {"results": [cake, tea]}
    found = remembers.search("what", **ADA)
    assert json.loads(json.dumps(found)) == found
    assert found["contextpilot"].keys() == PlanEntry.__required_keys__
    assert found["results"][0]["contextpilot"].keys() == MemoryEntry.__required_keys__
    labels = [f"[CB_{memory['contextpilot']['label']}]" for memory in found["results"]]
    assert found["contextpilot"] == {
        "order": [1, 0],
        "order_annotation": "Please read the context in the following priority order: "
        f"{labels[0]} > {labels[1]} and answer the question.",
        "order_template": ContextPilot().order_template,
        "outcome": "aligned",
        "tenant": '{"user_id": "ada"}',
        "search_path": [0],
        "expected_cached_blocks": 2,
        "expected_cached_tokens": 10,
    }


def test_nothing_is_shared_with_what_mem0_holds(store, tea, cake):
    plain = store(tea, cake, relations=[{"source": "ada"}])
    before = copy.deepcopy(plain.found)
    found = ContextPilotMemory(plain).search("what", **ADA)
    found["results"][0]["metadata"]["tags"].append("changed")
    found["relations"][0]["source"] = "changed"
    assert plain.found == before


def test_what_cannot_be_copied_is_shared(store, tea):
    tea["lock"] = Lock()
    found = ContextPilotMemory(store(tea)).search("what", **ADA)
    assert found["results"][0]["lock"] is tea["lock"]


def test_an_update_under_the_same_id_is_another_block(store, tea):
    remembers = ContextPilotMemory(store(tea))
    before = remembers.search("what", **ADA)
    remembers.wrapped.found = {"results": [{**tea, "memory": "Ada drinks black tea."}]}
    after = remembers.search("what", **ADA)
    assert before["results"][0]["id"] == after["results"][0]["id"]
    assert before["results"][0]["contextpilot"]["label"] != after["results"][0]["contextpilot"]["label"]
    assert after["contextpilot"]["expected_cached_blocks"] == 0


def test_only_the_text_is_written(store, tea):
    found = ContextPilotMemory(store(tea)).search("what", **ADA)
    assert format_memories(found) == f"[CB_{found['results'][0]['contextpilot']['label']}] {tea['memory']}"


def test_dropped_memories_leave_the_annotation_too(store, tea, cake, cats):
    plain = store(tea, cake, cats)
    remembers = ContextPilotMemory(plain)
    remembers.search("what", **ADA)
    plain.found = {"results": [cats, cake, tea]}
    found = remembers.search("what", **ADA)
    label = [memory["contextpilot"]["label"] for memory in found["results"]]
    del found["results"][1]
    assert format_memories(json.loads(json.dumps(found))) == (
        f"[CB_{label[2]}] Ada drinks green tea.\n\n[CB_{label[0]}] Ada has two cats.\n\n"
        f"Please read the context in the following priority order: [CB_{label[0]}] > [CB_{label[2]}] "
        "and answer the question."
    )
    del found["results"][0]
    assert format_memories(found) == f"[CB_{label[2]}] Ada drinks green tea."


def test_what_no_pilot_planned_is_refused():
    with pytest.raises(ValueError, match=r"ContextPilotMemory\.search"):
        format_memories({"results": []})


def test_a_memory_without_a_text_is_left_out_and_the_rest_is_shown(store, tea, cake):
    empty = {"id": "empty", "memory": None}
    plain = store(tea, empty, cake)
    remembers = ContextPilotMemory(plain, pilot=ContextPilot(on_error="raise"))
    remembers.search("what", **ADA)
    plain.found = {"results": [empty, cake, empty, tea]}
    found, turn = remembers.search("what", **ADA), remembers.turn_context("what", **ADA)
    assert turn.found == found
    assert without_plan(found) == plain.found
    entries = [memory["contextpilot"] for memory in found["results"]]
    assert [entry["rank"] for entry in entries] == [0, 1, 2, 3]
    assert [entry["position"] for entry in entries] == [None, 1, None, 0]
    assert found["contextpilot"]["order"] == [3, 1]
    labels = [entry["label"] for entry in entries]
    assert labels[0] == labels[2] == ""
    assert turn.text == format_memories(found)
    assert turn.text == (
        f"[CB_{labels[3]}] {tea['memory']}\n\n[CB_{labels[1]}] {cake['memory']}\n\n"
        f"Please read the context in the following priority order: [CB_{labels[1]}] > [CB_{labels[3]}] "
        "and answer the question."
    )
    plain.found = {"results": [empty]}
    assert format_memories(remembers.search("what", **ADA)) == ""


def test_what_a_turn_shows_beside_a_memory_without_a_text(store, memory):
    long = " She has done so since she was a child and tells everybody about it."
    tea, cake = memory("tea", "Ada drinks tea." + long), memory("cake", "Ada bakes cakes." + long)
    plain = store(tea, cake)
    remembers = ContextPilotMemory(plain, pilot=ContextPilot(on_error="raise"))
    sent = [
        {"role": "user", "content": remembers.turn_context("what", **ADA).text},
        {"role": "assistant", "content": "This."},
    ]
    update = {**cake, "memory": "Ada bakes bread." + long}
    plain.found = {"results": [{"id": "empty", "memory": None}, tea, update]}
    entries = [
        memory["contextpilot"] for memory in remembers.turn_context("what", sent, **ADA).found["results"]
    ]
    assert [entry["shown_as"] is None for entry in entries] == [True, False, True]
    assert [entry["replaces"] is None for entry in entries] == [True, True, False]


@pytest.mark.parametrize(
    "found",
    [None, [], {"memories": []}, {"results": None}, {"results": ["text"]}, {"results": [{"id": "1"}]}],
)
def test_what_is_no_result_of_mem0s_goes_out_as_it_is(store, found, caplog):
    plain = store()
    plain.found = found
    remembers = ContextPilotMemory(plain)
    with caplog.at_level(logging.WARNING):
        assert remembers.search("what", **ADA) is found
    assert "TypeError" in caplog.text
    assert remembers.pilot.outcomes[Outcome.FAILED] == 1
    with pytest.raises(TypeError, match="must"):
        remembers.turn_context("what", **ADA)
    with pytest.raises(TypeError, match="must"):
        ContextPilotMemory(plain, pilot=ContextPilot(on_error="raise")).search("what", **ADA)
