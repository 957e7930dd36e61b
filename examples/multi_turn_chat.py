"""A RAG chat of several turns: passages that stand in the history are not sent again.

Against your own server:

    python examples/multi_turn_chat.py --base-url http://localhost:8000/v1 --model NAME

Without arguments it starts llama.cpp with a small model, as the demo does.
"""

import argparse
from contextlib import ExitStack

import openai

from contextpilot_integrations import ContextPilot, EditKind
from contextpilot_integrations.demo.bm25 import BM25Retriever
from contextpilot_integrations.demo.handbook import passages
from contextpilot_integrations.demo.llama_server import LlamaServer
from contextpilot_integrations.demo.weights import packaged_weights
from contextpilot_integrations.langchain.documents import to_block
from contextpilot_integrations.openai import Completions

SYSTEM = {"role": "system", "content": "Answer from the handbook, in a few words."}
QUESTIONS = [
    "What does a cargo bike cost for a whole day?",
    "How many kilograms of shopping can a cargo bike carry in the box?",
    "What does a family pay to try a cargo bike for a month?",
]


def chat(completions: Completions, retriever: BM25Retriever, *, rewrite: bool) -> None:
    """Ask question after question; the history holds every turn with its passages."""
    messages = [SYSTEM]
    for question in QUESTIONS:
        blocks = [to_block(document) for document in retriever.invoke(question)]
        context = "\n\n".join(block.render() for block in blocks)
        messages.append({"role": "user", "content": f"{context}\n\n{question}"})
        completion = completions.complete(
            blocks if rewrite else (), messages=messages, rewrite=rewrite, max_tokens=16, temperature=0
        )
        # The history keeps what was asked, not what was sent: that is worked out again, and is the same.
        messages.append({"role": "assistant", "content": completion.text})
        known = sum(edit.kind is EditKind.BLOCK for edit in completion.edits)
        usage = completion.usage
        print(f"\n{question}\n  {completion.text.strip()}")
        print(f"  passages named and not repeated, so far: {known}")
        print(f"  {usage.cached_tokens} of {usage.prompt_tokens} tokens were cached")


def main() -> None:
    """Have the same conversation twice."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--base-url")
    parser.add_argument("--model")
    options = parser.parse_args()
    retriever = BM25Retriever(passages(), k=3)
    for rewrite in (False, True):
        print("\n== With ContextPilot" if rewrite else "\n== Without ContextPilot")
        with ExitStack() as stack:
            if options.base_url is None:
                server = stack.enter_context(LlamaServer(packaged_weights(), n_ctx=8192))
                base_url, model = server.base_url, server.model
            else:
                base_url, model = options.base_url, options.model
            client = stack.enter_context(openai.OpenAI(base_url=base_url, api_key="none"))
            chat(Completions(ContextPilot(), client, model=model), retriever, rewrite=rewrite)


if __name__ == "__main__":
    main()
