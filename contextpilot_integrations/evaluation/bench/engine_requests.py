"""What `contextpilot bench engine` asks: the requests of a trace, or of the demo."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from contextpilot_integrations.annotation import order_annotation
from contextpilot_integrations.block import ContextBlock
from contextpilot_integrations.demo.handbook import passages, questions
from contextpilot_integrations.evaluation.traces import TraceRequest, read_trace

__all__ = ["demo_requests", "engine_requests", "prompt_parts", "without_overlap"]


def engine_requests(
    trace: str | None, blocks: str | None, *, requests: int, max_chars: int, overlap: bool = True
) -> list[TraceRequest]:
    """Return the first requests of a trace, their texts cut to a length.

    Args:
        trace: The file; None: the demo's questions.
        blocks: The file of its texts, where the trace has only ids.
        requests: How many at most.
        max_chars: Characters of each block's text at most.
        overlap: Whether requests keep the blocks that they share; else see `without_overlap`.

    Raises:
        ValueError: If an argument is out of range, or there are no requests or a block has no text.
        OSError: If a file cannot be read.
        ImportError: If the demo's retriever is needed and not installed.
    """
    for name, value in (("--requests", requests), ("--max-chars", max_chars)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")
    if blocks is not None and trace is None:
        raise ValueError("--blocks holds the texts of a --trace; give both")
    found = (demo_requests() if trace is None else read_trace(trace, blocks))[:requests]
    if not any(request.blocks for request in found):
        raise ValueError(f"--trace: {trace} has no requests with blocks")
    if any(not block.text for request in found for block in request.blocks):
        raise ValueError(f"--trace: {trace} names blocks without text; give their texts with --blocks")
    if not overlap:
        found = without_overlap(found)
    return [_with_blocks(r, [ContextBlock(b.id, b.text[:max_chars]) for b in r.blocks]) for r in found]


def demo_requests() -> list[TraceRequest]:
    """Return the demo's questions, each with the passages of its handbook that BM25 finds.

    Raises:
        ImportError: If the ``demo`` extra is not installed.
    """
    try:
        from contextpilot_integrations.demo.bm25 import BM25Retriever
    except ImportError as error:
        raise ImportError(
            "without --trace the demo's questions are asked, for which its retriever has to be installed: "
            'pip install "contextpilot-integrations[demo]"'
        ) from error
    retriever = BM25Retriever(passages())
    return [
        TraceRequest(
            query_id=question.query_id,
            session_id=question.query_id,
            turn=0,
            query=question.question,
            blocks=tuple(
                ContextBlock(str(d.id), d.page_content) for d in retriever.invoke(question.question)
            ),
        )
        for question in questions()
    ]


def without_overlap(requests: Sequence[TraceRequest]) -> list[TraceRequest]:
    """Give every block of every request an id and a text of its own, which differs from its first character.

    Nothing can be reused then, and what planning costs is all that differs.
    """
    return [
        _with_blocks(
            request,
            [
                ContextBlock((number, place, block.id), f"{number}.{place} {block.text}")
                for place, block in enumerate(request.blocks)
            ],
        )
        for number, request in enumerate(requests)
    ]


def prompt_parts(request: TraceRequest) -> dict[Hashable, str]:
    """Return what a prompt may have in common with another one, and how it is written.

    Blocks, the order annotation (which may be equal only where all blocks are), and the question.
    """
    parts: dict[Hashable, str] = {block: f"{block.render()}\n\n" for block in request.blocks}
    if request.blocks:
        parts[frozenset(request.blocks)] = f"{order_annotation(request.blocks)}\n\n"
    if request.query:
        parts[request.query] = request.query
    return parts


def _with_blocks(request: TraceRequest, blocks: Sequence[ContextBlock]) -> TraceRequest:
    return TraceRequest(request.query_id, request.session_id, request.turn, request.query, tuple(blocks))
