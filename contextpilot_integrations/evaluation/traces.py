"""Traces of retrieval requests, and the plans made of them, as JSON lines.

A trace line has "query_id", "session_id" (the query's id where absent), "turn" (0), "query", "answer" (a
string, or a list of them where several are right), and either "block_ids" or "blocks" (``[{"id", "text"}]``),
best first. A plan line, in execution order, has
"query_id", "position" (in the trace), "block_ids" in the order sent, "search_path",
"expected_cached_blocks" and "order_annotation".
"""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from typing import Any

from contextpilot_integrations.block import BlockId, ContextBlock
from contextpilot_integrations.evaluation.jsonl import PathOrDash, Record, display_name, read_records

__all__ = ["PlanLine", "TraceRequest", "read_blocks", "read_plan", "read_trace"]


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One retrieval request.

    Attributes:
        query_id: The request's name in the file, a string or an integer.
        session_id: The conversation that it belongs to.
        turn: Its place in the conversation, from 0.
        query: The question, where the trace has it.
        blocks: What was retrieved, best first. Without a text where the trace names only ids.
        answers: The right answers, any of which will do; empty where the trace has none.
    """

    query_id: str | int
    session_id: str | int
    turn: int
    query: str | None
    blocks: tuple[ContextBlock, ...]
    answers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanLine:
    """One request of a plan, as it is sent.

    Attributes:
        query_id: The request's name in the trace.
        position: Its place in the trace, from 0.
        blocks: Its blocks in the order sent.
        search_path: The child positions from the root of the index to the node that was found.
        expected_cached_blocks: How many leading blocks should be cached; None where nobody said.
        order_annotation: What tells the model the order of relevance; may be empty.
        query: The question, where it is known.
    """

    query_id: str | int
    position: int
    blocks: tuple[ContextBlock, ...]
    search_path: tuple[int, ...] = ()
    expected_cached_blocks: int | None = None
    order_annotation: str = ""
    query: str | None = None

    @property
    def block_ids(self) -> tuple[BlockId, ...]:
        """The ids of the blocks in the order sent."""
        return tuple(block.id for block in self.blocks)

    def to_dict(self) -> dict[str, Any]:
        """Return the line as it stands in a file; texts stay in the blocks file."""
        line: dict[str, Any] = {
            "query_id": self.query_id,
            "position": self.position,
            "block_ids": self.block_ids,
            "search_path": self.search_path,
            "expected_cached_blocks": self.expected_cached_blocks,
            "order_annotation": self.order_annotation,
        }
        return line if self.query is None else {**line, "query": self.query}


def read_trace(path: PathOrDash, blocks_path: PathOrDash | None = None) -> list[TraceRequest]:
    """Read the requests of a trace in arrival order; an empty file is an empty list.

    Args:
        path: A file, or "-" for standard input.
        blocks_path: A file of ``{"id", "text"}`` lines with the texts of the lines' "block_ids".

    Raises:
        TraceError: If a line is not a retrieval request, or names a block that the blocks file lacks.
    """
    blocks = _BlockReader(blocks_path)
    requests = []
    for record in read_records(path):
        query_id = record.get("query_id", str, int)
        requests.append(
            TraceRequest(
                query_id=query_id,
                session_id=record.get("session_id", str, int, default=query_id),
                turn=record.get("turn", int, default=0),
                query=record.get("query", str, default=None),
                blocks=blocks.of(record),
                answers=_answers(record),
            )
        )
    return requests


def read_plan(path: PathOrDash, blocks_path: PathOrDash | None = None) -> list[PlanLine]:
    """Read a plan in execution order.

    A trace is read as the plan that changes nothing: a line without "position" stands where it is, and
    fields that only a planner writes are empty.

    Args:
        path: A file, or "-" for standard input.
        blocks_path: A file of ``{"id", "text"}`` lines with the texts of the lines' "block_ids".

    Raises:
        TraceError: If a line is neither a plan line nor a retrieval request, or names a block that the
            blocks file lacks.
    """
    blocks = _BlockReader(blocks_path)
    lines = []
    for index, record in enumerate(read_records(path)):
        search_path = record.get("search_path", list, default=[])
        if any(type(child) is not int for child in search_path):
            raise record.error(f'"search_path" must hold integers, not {reprlib.repr(search_path)}')
        lines.append(
            PlanLine(
                query_id=record.get("query_id", str, int),
                position=record.get("position", int, default=index),
                blocks=blocks.of(record),
                search_path=tuple(search_path),
                expected_cached_blocks=record.get("expected_cached_blocks", int, default=None),
                order_annotation=record.get("order_annotation", str, default=""),
                query=record.get("query", str, default=None),
            )
        )
    return lines


def read_blocks(path: PathOrDash) -> dict[BlockId, ContextBlock]:
    """Read a file of ``{"id", "text"}`` lines.

    Raises:
        TraceError: If a line is not such an object, or an id comes again with another text.
    """
    found: dict[BlockId, ContextBlock] = {}
    for record in read_records(path):
        block = ContextBlock(_block_id(record.fields.get("id"), record), record.get("text", str))
        if found.setdefault(block.id, block) != block:
            raise record.error(
                f"block {reprlib.repr(block.id)} has another text on an earlier line; give it another id"
            )
    return found


class _BlockReader:
    """Reads the blocks of lines; equal blocks become one object, so that comparing them is cheap."""

    def __init__(self, blocks_path: PathOrDash | None) -> None:
        self._file = None if blocks_path is None else display_name(blocks_path)
        self._texts = {} if blocks_path is None else read_blocks(blocks_path)
        self._seen: dict[tuple[BlockId, str], ContextBlock] = {}

    def of(self, record: Record) -> tuple[ContextBlock, ...]:
        ids = record.get("block_ids", list, default=None)
        blocks = record.get("blocks", list, default=None)
        if ids is not None and blocks is not None:
            raise record.error('both "block_ids" and "blocks" are there; keep one of them')
        if ids is not None:
            return tuple(self._named(_block_id(value, record), record) for value in ids)
        if blocks is not None:
            return tuple(self._inline(value, record) for value in blocks)
        if "messages" in record.fields:
            raise record.error(
                'an agent trace ("messages") holds conversations, not retrieval requests; '
                'give a trace whose lines have "block_ids" or "blocks"'
            )
        raise record.error('neither "block_ids" nor "blocks" is there; add what was retrieved, best first')

    def _named(self, block_id: BlockId, record: Record) -> ContextBlock:
        if self._file is None:
            return self._block(block_id, "")
        if block_id not in self._texts:
            raise record.error(f"block {reprlib.repr(block_id)} is not in {self._file}; add its text there")
        return self._texts[block_id]

    def _inline(self, value: object, record: Record) -> ContextBlock:
        if not isinstance(value, dict) or not isinstance(value.get("text"), str):
            raise record.error(
                f'"blocks" must hold objects with "id" and "text" (a string), not {reprlib.repr(value)}'
            )
        return self._block(_block_id(value.get("id"), record), value["text"])

    def _block(self, block_id: BlockId, text: str) -> ContextBlock:
        block = self._seen.get((block_id, text))
        if block is None:
            block = self._seen[block_id, text] = ContextBlock(block_id, text)
        return block


def _answers(record: Record) -> tuple[str, ...]:
    value = record.get("answer", str, list, default=[])
    answers = [value] if isinstance(value, str) else value
    if any(type(answer) is not str for answer in answers):
        raise record.error(f'"answer" must hold strings, not {reprlib.repr(value)}')
    return tuple(answers)


def _block_id(value: object, record: Record) -> BlockId:
    # Exact types: a JSON true is no integer, though Python's bool is one.
    if type(value) is str or type(value) is int:
        return value
    if type(value) is list:
        try:
            return tuple(_block_id(part, record) for part in value)
        except RecursionError:
            raise record.error("a block id is nested too deeply; use a string") from None
    raise record.error(
        f"{reprlib.repr(value)} is not a block id; use a string, an integer or a list of these"
    )
