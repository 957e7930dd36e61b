"""An agent that reads files again and again: what it has read stays in view, and is not sent twice.

Against your own server:

    python examples/file_reading_agent.py --base-url http://localhost:8000/v1 --model NAME

Without arguments it starts llama.cpp with a small model, as the demo does. So small a model calls no tools:
which files are read is fixed here, and the model says something about each.
"""

import argparse
import json
from collections.abc import Iterator
from contextlib import ExitStack

import openai

from contextpilot_integrations import ContextPilot
from contextpilot_integrations.demo.handbook import passages
from contextpilot_integrations.demo.llama_server import LlamaServer
from contextpilot_integrations.demo.weights import packaged_weights
from contextpilot_integrations.openai import Completions

SYSTEM = {"role": "system", "content": "You look after a handbook. Answer in a few words."}
TASK = {
    "role": "user",
    "content": "The day's price of a cargo bike rises by two crowns. Change the handbook.",
}


def handbook() -> str:
    """Return a file of some pages, one line a sentence."""
    pages = [page for page in passages() if page.theme == "bicycle hire"][:6]
    return "\n\n".join("# " + page.title + "\n" + page.text.replace(". ", ".\n") for page in pages)


def steps() -> Iterator[tuple[str, str]]:
    """Yield what is read, file and text: the file, its changed draft, and the file again to be sure."""
    text = handbook()
    yield "handbook.md", text
    yield "draft.md", text.replace("28 crowns", "30 crowns")
    yield "handbook.md", text


def work(completions: Completions, *, rewrite: bool) -> None:
    """Send the whole history at every step, as an agent does."""
    messages = [SYSTEM, TASK]
    for number, (path, text) in enumerate(steps()):
        function = {"name": "read_file", "arguments": json.dumps({"path": path})}
        call = {"id": f"call_{number}", "type": "function", "function": function}
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"call_{number}", "content": text},
        ]
        completion = completions.complete(messages=messages, rewrite=rewrite, max_tokens=8, temperature=0)
        print(f"\nread {path}, {len(text)} characters")
        for edit in completion.edits:
            if edit.place.message == len(messages) - 1:
                print(f"  {len(edit.original)} of them stand above already ({edit.kind})")
        usage = completion.usage
        print(f"  {usage.cached_tokens} of {usage.prompt_tokens} tokens were cached")


def main() -> None:
    """Do the same work twice."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--base-url")
    parser.add_argument("--model")
    options = parser.parse_args()
    for rewrite in (False, True):
        print("\n== With ContextPilot" if rewrite else "\n== Without ContextPilot")
        with ExitStack() as stack:
            if options.base_url is None:
                server = stack.enter_context(LlamaServer(packaged_weights(), n_ctx=8192))
                base_url, model = server.base_url, server.model
            else:
                base_url, model = options.base_url, options.model
            client = stack.enter_context(openai.OpenAI(base_url=base_url, api_key="none"))
            work(Completions(ContextPilot(), client, model=model), rewrite=rewrite)


if __name__ == "__main__":
    main()
