"""A RAG chat with LlamaIndex: its own chat engine beside one that keeps each turn's passages with the turn.

Against your own server:

    python examples/llama_index_chat.py --base-url http://localhost:8000/v1 --model NAME

Without arguments it starts llama.cpp with a small model, as the demo does.
"""

import argparse
from contextlib import ExitStack

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.chat_engine import ContextChatEngine
from llama_index.core.chat_engine.types import BaseChatEngine
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.llms.openai_like import OpenAILike

from contextpilot_integrations.demo.bm25 import BM25Retriever
from contextpilot_integrations.demo.handbook import passages
from contextpilot_integrations.demo.llama_server import LlamaServer
from contextpilot_integrations.demo.weights import packaged_weights
from contextpilot_integrations.llama_index import ContextPilotChatEngine, ContextPilotEventHandler

SYSTEM = "Answer from the handbook, in a few words."
QUESTIONS = [
    "What does a cargo bike cost for a whole day?",
    "How many kilograms of shopping can a cargo bike carry in the box?",
    "What does a family pay to try a cargo bike for a month?",
]


class Handbook(BaseRetriever):
    """Your own retriever goes here."""

    def __init__(self) -> None:
        super().__init__()
        self._bm25 = BM25Retriever(passages(), k=4)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        found = self._bm25.invoke(query_bundle.query_str)
        return [NodeWithScore(node=TextNode(id_=page.id, text=page.page_content)) for page in found]


def chat(engine: BaseChatEngine, handler: ContextPilotEventHandler) -> None:
    """Ask question after question."""
    start = len(handler.observed)
    for question in QUESTIONS:
        response = engine.chat(question)
        usage = handler.observed[-1].usage
        pages = ", ".join(item.node_id for item in response.source_nodes)
        print(f"\n{question}\n  {str(response).strip()}\n  pages: {pages}")
        print(f"  tokens of the prompt: {usage.prompt_tokens}, cached: {usage.cached_tokens}")
    usages = [call.usage for call in handler.observed[start:]]
    cached = sum(usage.cached_tokens or 0 for usage in usages)
    print(f"\nIn all, {cached} of {sum(usage.prompt_tokens or 0 for usage in usages)} tokens were cached")


def main() -> None:
    """Have the same conversation twice."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--base-url")
    parser.add_argument("--model")
    options = parser.parse_args()
    handler = ContextPilotEventHandler()
    get_dispatcher().add_event_handler(handler)
    for kind in (ContextChatEngine, ContextPilotChatEngine):
        print(f"\n== {kind.__name__}")
        with ExitStack() as stack:
            if options.base_url is None:
                server = stack.enter_context(LlamaServer(packaged_weights(), n_ctx=8192))
                base_url, model = server.base_url, server.model
            else:
                base_url, model = options.base_url, options.model
            llm = OpenAILike(
                model=model,
                api_base=base_url,
                api_key="none",
                is_chat_model=True,
                context_window=8192,
                max_tokens=16,
                temperature=0,
            )
            chat(kind.from_defaults(Handbook(), llm=llm, system_prompt=SYSTEM), handler)


if __name__ == "__main__":
    main()
