"""A batch of questions over FAISS: one search and one plan for all, then answers in the order of the plan.

    python examples/offline_batch_faiss.py
    python examples/offline_batch_faiss.py --base-url http://localhost:8000/v1 --model NAME

Without arguments it starts llama.cpp with a small model, as the demo does. Passages are found with
all-MiniLM-L6-v2 (`pip install langchain-huggingface sentence-transformers`); any embeddings will do.
"""

import argparse
from contextlib import ExitStack
from operator import itemgetter

from langchain_core.documents import Document
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
from langchain_huggingface import HuggingFaceEmbeddings
from langchain_openai import ChatOpenAI

from contextpilot_integrations.demo.handbook import passages, questions
from contextpilot_integrations.demo.llama_server import LlamaServer
from contextpilot_integrations.demo.weights import packaged_weights
from contextpilot_integrations.langchain import (
    ContextPilotAligner,
    format_documents,
    read_usage,
    run_scheduled,
)
from contextpilot_integrations.retrievers.faiss import FaissRetriever

SYSTEM = "Answer from the handbook, in a few words."
THEMES = ("bicycle hire", "ferry line")
PROMPT = ChatPromptTemplate.from_messages([("system", SYSTEM), ("human", "{context}\n\n{question}")])


def ask(retriever: FaissRetriever, asked: list[str], base_url: str, model: str, *, plan: bool) -> None:
    """Answer questions, whose passages are found in one search."""
    aligned = retriever | ContextPilotAligner(endpoint=base_url, model=model, preamble=SYSTEM)
    contexts = (aligned if plan else retriever).batch(asked)
    inputs = [{"question": q, "context": c} for q, c in zip(asked, contexts, strict=True)]
    client = ChatOpenAI(base_url=base_url, model=model, api_key="none", max_tokens=8, temperature=0)
    chain = RunnablePassthrough.assign(context=itemgetter("context") | format_documents) | PROMPT | client
    answers = run_scheduled(chain, inputs) if plan else chain.batch(inputs, {"max_concurrency": 1})
    usages = [read_usage(answer) for answer in answers]
    cached = sum(usage.cached_tokens or 0 for usage in usages)
    print(f"  {cached} of {sum(usage.prompt_tokens or 0 for usage in usages)} tokens were cached")


def main() -> None:
    """Ask the same questions in their order, and planned as a batch, each from a cold cache."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--base-url")
    parser.add_argument("--model")
    parser.add_argument("--embeddings", default="sentence-transformers/all-MiniLM-L6-v2")
    options = parser.parse_args()
    retriever = FaissRetriever(embeddings=HuggingFaceEmbeddings(model_name=options.embeddings), k=3)
    retriever.add_documents(
        Document(passage.text, id=passage.id, metadata={"theme": passage.theme})
        for passage in passages()
        if passage.theme in THEMES
    )
    asked = [question.question for question in questions() if question.theme in THEMES][:4]
    for plan in (False, True):
        print("Planned as a batch:" if plan else "In the order asked:")
        with ExitStack() as stack:
            base_url, model = options.base_url, options.model
            if base_url is None:
                server = stack.enter_context(LlamaServer(packaged_weights()))
                base_url, model = server.base_url, server.model
            ask(retriever, asked, base_url, model, plan=plan)


if __name__ == "__main__":
    main()
