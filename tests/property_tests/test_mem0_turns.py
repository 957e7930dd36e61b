"""Nothing that Mem0 found is lost to the model, whatever was said, updated and cut before."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextpilot_integrations import ContextBlock, ContextPilot

ContextPilotMemory = pytest.importorskip("contextpilot_integrations.mem0").ContextPilotMemory

ADA = {"filters": {"user_id": "ada"}}
LONG = " and so on, which takes more words than a marker does"
# Texts that begin as others do, have several paragraphs, look like what we write, or are empty.
TEXTS = [
    "tea" + LONG,
    "tea" + LONG + "\n\nand cake",
    "tea" + LONG + "\nand cake",
    "Please note that it rains" + LONG,
    "tea",
    "",
    "👩‍🚀 " * 30,
]
IDS = ["a", "b", "3f7ad2d0-7d3c-4f0b-9a1e-000000000001", "3f7ad2d0-7d3c-4f0b-9a1e-000000000002"]

versions = st.builds(
    lambda id, text: {"id": id, "memory": text}, st.sampled_from(IDS), st.sampled_from(TEXTS)
)
turns = st.lists(
    st.tuples(st.lists(versions, max_size=6), st.sampled_from(["ask", "cut", "only the question"])),
    max_size=8,
)


class Store:
    found: dict

    def search(self, query, **kwargs):
        return self.found


def shown_in(messages):
    return [message["content"] for message in messages if message["role"] != "assistant"]


@given(turns, st.sampled_from(["What?", "One.\n\nTwo?", ""]))
def test_every_memory_stands_in_the_messages_that_go_out(turns, question):
    store = Store()
    memory = ContextPilotMemory(store, pilot=ContextPilot(on_error="raise"))
    fresh = ContextPilotMemory(store, pilot=ContextPilot(on_error="raise"))
    messages = []
    for memories, history in turns:
        store.found = {"results": memories}
        turn = memory.turn_context("what", messages, **ADA)
        if any(message["role"] == "assistant" for message in messages):
            # What was sent is told from the messages alone.
            assert fresh.turn_context("what", messages, **ADA).text == turn.text
        for found in turn.found["results"]:
            entry = found["contextpilot"]
            if entry["position"] is None:
                continue
            rendered = ContextBlock(found["id"], found["memory"]).render()
            if entry["shown_as"] is None:
                assert f"\n\n{rendered}\n\n" in f"\n\n{turn.text}\n\n"
            else:
                assert entry["shown_as"] in turn.text
                assert f"[CB_{entry['label']}]" in entry["shown_as"]
                assert any(rendered in text for text in shown_in(messages))
            if entry["replaces"] is not None:
                assert any(f"[CB_{entry['replaces']}]" in text for text in shown_in(messages))
        sent = f"{turn.text}\n\n{question}" if history != "only the question" else question
        messages += [{"role": "user", "content": sent}, {"role": "assistant", "content": "This."}]
        if history == "cut":
            del messages[:2]
