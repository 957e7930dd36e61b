"""A chat of ten turns with the real model: what stood in the turn before is found cached."""

import pytest

from contextpilot_integrations import ContextPilot, EditKind
from contextpilot_integrations.demo.handbook import passages, questions
from contextpilot_integrations.demo.llama_server import LlamaServer
from contextpilot_integrations.demo.weights import packaged_weights

openai = pytest.importorskip("openai")
Completions = pytest.importorskip("contextpilot_integrations.openai").Completions
BM25Retriever = pytest.importorskip("contextpilot_integrations.demo.bm25").BM25Retriever
to_block = pytest.importorskip("contextpilot_integrations.langchain.documents").to_block
pytest.importorskip("gguf")
pytest.importorskip("xllamacpp")
try:
    packaged_weights()
except ImportError as missing:
    pytest.skip(str(missing), allow_module_level=True)

pytestmark = pytest.mark.model

TURNS = 10


def test_nine_tenths_of_the_turn_before_are_cached():
    retriever = BM25Retriever(passages())
    asked = [question for question in questions() if question.theme == "bicycle hire"]
    asked = [*asked, *asked][:TURNS]
    messages = [{"role": "system", "content": "Answer from the handbook, in a few words."}]
    named = before = 0
    with (
        LlamaServer(n_ctx=8192) as server,
        openai.OpenAI(base_url=server.base_url, api_key="none") as client,
    ):
        completions = Completions(ContextPilot(on_error="raise"), client, model=server.model)
        for question in asked:
            blocks = [to_block(document) for document in retriever.invoke(question.question)]
            context = "\n\n".join(block.render() for block in blocks)
            messages.append({"role": "user", "content": f"{context}\n\n{question.question}"})
            completion = completions.complete(blocks, messages=messages, max_tokens=8, temperature=0)
            assert completion.usage.cached_tokens >= 0.9 * before
            before = completion.usage.prompt_tokens
            messages.append({"role": "assistant", "content": completion.text})
            named = sum(edit.kind is EditKind.BLOCK for edit in completion.edits)
    # Five passages a turn, of which a theme has sixteen.
    assert named >= TURNS * 5 - 16 - 10
