"""RAG on an Elasticsearch server: wrap its retriever, and watch what the engine has cached.

    python examples/elasticsearch_retriever.py http://localhost:9200

Against your own engine, add `--base-url http://localhost:8000/v1 --model NAME`.

It makes an index of its own, and deletes it in the end. A key for the server is read from the environment's
ELASTICSEARCH_API_KEY. Without a base URL it starts llama.cpp with a small model, as the demo does.
"""

import argparse
import os
from contextlib import ExitStack
from operator import itemgetter

from langchain_core.documents import Document
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
from langchain_openai import ChatOpenAI

from contextpilot_integrations.demo.handbook import passages
from contextpilot_integrations.demo.llama_server import LlamaServer
from contextpilot_integrations.demo.weights import packaged_weights
from contextpilot_integrations.langchain import ContextPilotRetriever, format_documents, read_usage
from contextpilot_integrations.retrievers.elasticsearch import ElasticsearchRetriever, connect

INDEX = "contextpilot-example"
SYSTEM = "Answer from the handbook, in a few words."
QUESTIONS = [
    "What does a cargo bike cost for a whole day?",
    "How many kilograms of shopping can a cargo bike carry in the box?",
    "What does a family pay to try a cargo bike for a month?",
]


def main() -> None:
    """Ask three questions whose passages overlap."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url", help="where the search server is")
    parser.add_argument("--base-url")
    parser.add_argument("--model")
    options = parser.parse_args()
    with ExitStack() as stack:
        client = stack.enter_context(connect(options.url, api_key=os.environ.get("ELASTICSEARCH_API_KEY")))
        found_by_words = ElasticsearchRetriever(client=client, index=INDEX, k=6)
        stack.callback(client.indices.delete, index=INDEX, ignore_unavailable=True)
        found_by_words.add_documents(
            Document(passage.text, id=passage.id, metadata={"theme": passage.theme}) for passage in passages()
        )
        if options.base_url is None:
            server = stack.enter_context(LlamaServer(packaged_weights()))
            options.base_url, options.model = server.base_url, server.model

        retriever = ContextPilotRetriever(
            retriever=found_by_words, endpoint=options.base_url, model=options.model, preamble=SYSTEM
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
            sent = " ".join(
                f"{document.id} ({document.metadata['_score']:.1f})" for document in result["documents"]
            )
            print(f"\n{question}\n  {result['answer'].text.strip()}")
            print(f"  sent: {sent}; {usage.cached_tokens} of {usage.prompt_tokens} tokens were cached")


if __name__ == "__main__":
    main()
