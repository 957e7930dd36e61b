"""The demo from end to end: a server, three passes over the same questions, and the report."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from langchain_openai import ChatOpenAI
from openai import OpenAIError
from pydantic import SecretStr
from rich.console import Console
from tqdm import tqdm

from contextpilot_integrations.demo.bm25 import BM25Retriever
from contextpilot_integrations.demo.handbook import Question, passages, questions
from contextpilot_integrations.demo.llama_server import LlamaServer
from contextpilot_integrations.demo.passes import Pass, build_chain, run_pass, system_prompt
from contextpilot_integrations.demo.report import draw, print_report
from contextpilot_integrations.evaluation import longest_prefix_match, reuse_bound
from contextpilot_integrations.langchain import ContextPilotAligner

__all__ = ["run_demo"]

K = 6
ANSWER_TOKENS = 12


def run_demo(
    *,
    base_url: str | None = None,
    model: str | None = None,
    output: Path = Path("."),
    asked: Sequence[Question] | None = None,
) -> tuple[Pass, ...]:
    """Answer the questions three times, print the comparison and draw it.

    Every prompt of a pass starts with a line that no other pass and no other run has. So each pass finds
    a cold cache on any server, and what it finds cached it has put there itself.

    Args:
        base_url: An OpenAI-compatible server; None starts llama.cpp with a small model. The API key, if
            it wants one, is read from OPENAI_API_KEY.
        model: The model's name on that server.
        output: The folder for the picture, made if need be.
        asked: The questions; None: all 40.

    Returns:
        The passes: original order, longest prefix first, and ours.

    Raises:
        OSError: If the server cannot be reached or refuses a request, or the picture cannot be written.
    """
    asked = questions() if asked is None else asked
    output.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        if base_url is None:
            server = stack.enter_context(LlamaServer())
            base_url, model = server.base_url, server.model
        bar = stack.enter_context(tqdm(total=3 * len(asked), desc="answers", leave=False, disable=None))
        chat = ChatOpenAI(
            base_url=base_url,
            model=model or "",
            api_key=SecretStr(os.environ.get("OPENAI_API_KEY", "none")),
            temperature=0,
            max_completion_tokens=ANSWER_TOKENS,
            streaming=True,
            stream_usage=True,
        )
        try:
            passes, bound = _answered(asked, chat, bar.update)
        except (OpenAIError, ValueError) as error:
            raise OSError(f"{base_url}: {error}") from error
    picture = output / "demo.png"
    print_report(asked, passes, bound, f"{model} at {base_url}")
    if draw(passes, picture):
        Console().print(f"Cumulative cached tokens: {picture}", highlight=False)
    return passes


def _answered(
    asked: Sequence[Question], chat: ChatOpenAI, on_answer: Callable[[], object]
) -> tuple[tuple[Pass, ...], float]:
    """Return the passes, and the largest hit ratio that any order of passages and questions could reach."""
    run = secrets.token_hex(4)
    chain = build_chain(chat)
    retriever = BM25Retriever(passages(), k=K)
    texts = [question.question for question in asked]
    retrieved = retriever.batch(texts)
    ids = [[document.id for document in documents] for documents in retrieved]

    def answer(name: str, number: int, *, planned: bool = False, order: Sequence[int] | None = None) -> Pass:
        system = system_prompt(f"{run}-{number}")
        contexts = retrieved
        if planned:
            aligner = ContextPilotAligner(
                endpoint=chat.openai_api_base or "", model=chat.model_name, preamble=system
            )
            contexts = (retriever | aligner).batch(texts)
        inputs = [
            {"question": question, "context": documents, "system": system}
            for question, documents in zip(texts, contexts, strict=True)
        ]
        return run_pass(name, chain, inputs, order=order, on_answer=on_answer)

    passes = (
        answer("original order", 1, order=range(len(asked))),
        answer("longest prefix first", 2, order=longest_prefix_match(ids)),
        answer("context reuse", 3, planned=True),
    )
    # Passages are of like length, so of their part of the prompts the bound in blocks is one in tokens.
    passage_length = sum(len(document.page_content) for documents in retrieved for document in documents)
    question_length = sum(map(len, texts))
    share = passage_length / (passage_length + question_length)
    return passes, reuse_bound(ids, order="farthest").hit_ratio * share
