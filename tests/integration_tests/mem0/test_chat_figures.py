"""A chat of ten turns with Mem0's memories on the real model: what is sent of them, and what is cached.

The memories lie in FAISS, each turn searches for ten, and the model is the demo's on llama.cpp.
"""

import json
import urllib.request

import pytest

from contextpilot_integrations import ContextPilot
from contextpilot_integrations.demo.llama_server import LlamaServer
from contextpilot_integrations.demo.weights import packaged_weights
from contextpilot_integrations.engines import read_usage
from contextpilot_integrations.mem0 import ContextPilotMemory

openai = pytest.importorskip("openai")
mem0 = pytest.importorskip("mem0")
pytest.importorskip("gguf")
pytest.importorskip("xllamacpp")
try:
    packaged_weights()
except ImportError as missing:
    pytest.skip(str(missing), allow_module_level=True)

pytestmark = pytest.mark.model

ADA = {"user_id": "ada"}
SYSTEM = {"role": "system", "content": "Answer from what you remember of the user, in a few words."}
MEMORIES = """\
Ada is allergic to nuts and carries a pen against allergic shocks wherever she goes, so in every
shop and at every table she asks for the list of ingredients.

On weekdays Ada cooks a vegetable curry with rice in the evening, a large pot of it, because it
keeps and she takes the rest to the office for lunch.

Ada and her brother Ben eat together on Sundays at her place; Ben brings the bread and the cheese,
and he does not like mushrooms in any form.

In winter Ada bakes a plum cake with almonds left out, after the recipe of her grandmother from
Bergen, and takes half of it to the choir.

Ada drinks two cups of black tea with milk in the morning and no coffee at all, because coffee keeps
her awake for half of the night.

Ada buys her vegetables at the market on Saturdays before nine in the morning, when the farmer from
Oakham still has carrots and fennel.

When Ada has guests who eat no meat, she makes a lasagne with spinach and ricotta the day before,
and only warms it up when they come.

Ada's choir has its rehearsal on Wednesdays at seven and eats together afterwards, and everybody
brings a dish that can be eaten cold.

Ada's mother cannot eat onions or garlic, so when she visits at Easter Ada cooks fish with lemon and
dill and potatoes from the oven.

For birthdays in the office Ada brings a tray of cinnamon buns, since her colleagues asked her never
to come with bought cake again.

Ada has a kitchen with a small oven that gets too hot at the back, so she turns every cake and every
tray after half of the time.

Ada grows tomatoes, basil and chard on the balcony, and in August she has so many tomatoes that she
cooks sauce for the whole winter.

Ada and her neighbour Mr Patel swap food over the fence: he brings dal and chutney, she brings soup
and the first strawberries of the year.

Ada tries to eat fish only once a week, from the shop at the harbour, because the shop says where
and how each fish was caught.

When Ada travels for work she takes bread, apples and hard cheese along, because on the train she
found nothing without traces of nuts.

Ada keeps a notebook with all recipes that worked, with the number of guests and the time they took,
and writes down what to change.
"""
MEMORIES = [" ".join(memory.split()) for memory in MEMORIES.split("\n\n")]
QUESTIONS = [
    "What can I cook for my brother on Sunday?",
    "Which cake could I bake for him?",
    "What should I bring to eat after the choir?",
    "What do I have to buy at the market for that?",
    "Is there anything in it that I must not eat?",
    "My mother comes at Easter. What do I cook for her?",
    "Could she eat the cake too?",
    "And what do I cook for guests who eat no meat?",
    "What could I bring to the office on my birthday?",
    "What food should I pack for the train?",
]


@pytest.fixture(scope="module")
def memory(settings, tmp_path_factory):
    with mem0.Memory.from_config(settings("faiss", tmp_path_factory.mktemp("chat"))) as plain:
        for text in MEMORIES:
            plain.add(text, infer=False, **ADA)
        yield ContextPilotMemory(plain, pilot=ContextPilot(on_error="raise"))


def count_tokens(server, text):
    """Let the engine count a text's tokens."""
    request = urllib.request.Request(
        f"{server.base_url.removesuffix('/v1')}/tokenize",
        json.dumps({"content": text}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
        return len(json.load(answer)["tokens"])


def test_at_most_half_of_the_memory_tokens_are_sent_and_four_fifths_of_the_prompts_are_cached(memory):
    messages, sent, plain, usages = [SYSTEM], 0, 0, []
    with (
        LlamaServer(n_ctx=8192) as server,
        openai.OpenAI(base_url=server.base_url, api_key="none") as client,
    ):
        for question in QUESTIONS:
            turn = memory.turn_context(question, messages, filters=ADA, top_k=10)
            sent += count_tokens(server, turn.text)
            found = [f"- {found['memory']}" for found in turn.found["results"]]
            plain += count_tokens(server, "\n".join(found))
            messages.append({"role": "user", "content": f"{turn.text}\n\n{question}"})
            answer = client.chat.completions.create(
                model=server.model, messages=messages, max_tokens=8, temperature=0
            )
            messages.append({"role": "assistant", "content": answer.choices[0].message.content})
            usages.append(read_usage(answer))
    later = usages[1:]
    share = sum(usage.cached_tokens for usage in later) / sum(usage.prompt_tokens for usage in later)
    assert sent <= plain / 2, f"{sent} of {plain} tokens"
    assert share >= 0.8, f"{share:.1%}"
    # Every text stands in the prompt once.
    everything = "\n".join(message["content"] for message in messages)
    assert {everything.count(text) for text in MEMORIES} <= {0, 1}
