"""RAG with LangChain: wrap a retriever, and watch what the engine has cached.

Against your own server:

    python examples/langchain_retriever.py --base-url http://localhost:8000/v1 --model NAME

Without arguments it starts llama.cpp with a small model, as the demo does.
"""

import argparse
from contextlib import ExitStack
from operator import itemgetter

from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
from langchain_openai import ChatOpenAI

from contextpilot_integrations.demo.bm25 import BM25Retriever
from contextpilot_integrations.demo.handbook import passages
from contextpilot_integrations.demo.llama_server import LlamaServer
from contextpilot_integrations.demo.weights import packaged_weights
from contextpilot_integrations.langchain import ContextPilotRetriever, format_documents, read_usage

SYSTEM = "Answer from the handbook, in a few words."
QUESTIONS = [
    "What does a cargo bike cost for a whole day?",
    "How many kilograms of shopping can a cargo bike carry in the box?",
    "What does a family pay to try a cargo bike for a month?",
]


def main() -> None:
    """Ask three questions whose passages overlap."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--base-url")
    parser.add_argument("--model")
    options = parser.parse_args()
    with ExitStack() as stack:
        if options.base_url is None:
            server = stack.enter_context(LlamaServer(packaged_weights()))
            options.base_url, options.model = server.base_url, server.model

        # Your own retriever goes here; the model and the prompt stay as they are.
        retriever = ContextPilotRetriever(
            retriever=BM25Retriever(passages()),
            endpoint=options.base_url,
            model=options.model,
            preamble=SYSTEM,
        )
        prompt = ChatPromptTemplate.from_messages([("system", SYSTEM), ("human", "{context}\n\n{question}")])
        model = ChatOpenAI(
            base_url=options.base_url, model=options.model, api_key="none", max_tokens=16, temperature=0
        )
        context = RunnablePassthrough.assign(documents=itemgetter("question") | retriever)
        chain = (
            context | RunnablePassthrough.assign(context=itemgetter("documents") | format_documents)
        ).assign(answer=prompt | model)

        for question in QUESTIONS:
            result = chain.invoke({"question": question})
            usage = read_usage(result["answer"])
            sent = [document.metadata["contextpilot"]["label"] for document in result["documents"]]
            print(f"\n{question}\n  {result['answer'].text.strip()}")
            print(
                f"  sent: {' '.join(sent)}; {usage.cached_tokens} of {usage.prompt_tokens} tokens were cached"
            )


if __name__ == "__main__":
    main()
