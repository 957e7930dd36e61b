"""Recorded conversations as chat messages: agents that read files, chats with retrieval, agents with tools.

A trace of retrieval requests says what was found for each turn; the messages around it are made here, and
always the same: answers that were not recorded are filler of a given length.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from contextpilot_integrations.block import BlockId, ContextBlock
from contextpilot_integrations.edits import Message
from contextpilot_integrations.evaluation.jsonl import PathOrDash, Record, read_records
from contextpilot_integrations.evaluation.traces import TraceRequest, read_blocks, read_trace

__all__ = [
    "Conversation",
    "filler",
    "read_file_agents",
    "read_retrieval_chats",
    "read_tool_agents",
]

# Each is one token of o200k_base, at the beginning of a text and after a space.
_WORDS = (
    "able about above after again air all almost along also always among and animal another answer any area "
    "around ask away back base be because before begin behind best better between big black blue boat body "
    "book both box bring build but call can car care carry center change city clear close cold color come"
)
_TOOL_CALLS = '[{"arguments": '


@dataclass(frozen=True, slots=True)
class Conversation:
    """One conversation, from its first message to its last.

    Attributes:
        session_id: Its name in the trace.
        messages: All of them.
    """

    session_id: str | int
    messages: tuple[Message, ...]

    @property
    def requests(self) -> list[list[Message]]:
        """What the model was given for each of its messages: all that stand before."""
        return [
            list(self.messages[:place])
            for place, message in enumerate(self.messages)
            if message["role"] == "assistant"
        ]


def read_file_agents(
    trace: PathOrDash, blocks: PathOrDash, *, system_tokens: int, answer_tokens: int
) -> list[Conversation]:
    """Read a trace as agents that read files: a query, each of the turn's blocks by a tool call, an answer.

    A file's path is what the query calls it, else the block's id. Sessions that read what the blocks file
    lacks are left out.

    Args:
        trace: Retrieval requests, those of a session in the order of its turns.
        blocks: Their texts.
        system_tokens: The length of the system prompt; 0 is none.
        answer_tokens: The length of each answer.

    Raises:
        TraceError: If a file is not what it should be.
    """
    texts = read_blocks(blocks)
    conversations = []
    for session_id, turns in _sessions(read_trace(trace)).items():
        if not all(block.id in texts for turn in turns for block in turn.blocks):
            continue
        messages: list[Message] = []
        if system_tokens:
            messages.append({"role": "system", "content": filler(system_tokens, "system")})
        calls = 0
        for turn in turns:
            messages.append({"role": "user", "content": turn.query or ""})
            for block in turn.blocks:
                arguments = json.dumps({"path": _path(str(block.id), turn.query or "")})
                messages.append(_calling(calls, [("read_file", arguments)]))
                messages.append(_answering(calls, texts[block.id].text))
                calls += 1
            messages.append(_filler_answer(turn, answer_tokens))
        conversations.append(Conversation(session_id, tuple(messages)))
    return conversations


def read_retrieval_chats(trace: PathOrDash, blocks: PathOrDash, *, answer_tokens: int) -> list[Conversation]:
    """Read a trace as chats whose history is kept: blocks as they are rendered, the question, an answer.

    Where a query repeats the questions before it, each behind "|user|: ", the last one is asked.

    Args:
        trace: Retrieval requests, those of a session in the order of its turns.
        blocks: Their texts.
        answer_tokens: The length of each answer.

    Raises:
        TraceError: If a file is not what it should be.
    """
    conversations = []
    for session_id, turns in _sessions(read_trace(trace, blocks)).items():
        messages: list[Message] = []
        for turn in turns:
            question = (turn.query or "").rpartition("|user|: ")[2]
            content = "\n\n".join([*(block.render() for block in turn.blocks), question])
            messages += {"role": "user", "content": content}, _filler_answer(turn, answer_tokens)
        conversations.append(Conversation(session_id, tuple(messages)))
    return conversations


def read_tool_agents(trace: PathOrDash, blocks: PathOrDash) -> list[Conversation]:
    """Read a trace of messages as they are; tool calls that were recorded as JSON text become tool calls.

    Args:
        trace: Lines with a "session_id" and "messages", each with a "role" and a "block_id".
        blocks: The messages' texts.

    Raises:
        TraceError: If a file is not what it should be.
    """
    texts = read_blocks(blocks)
    conversations = []
    for record in read_records(trace):
        messages: list[Message] = []
        calls = answered = 0
        for message in record.get("messages", list):
            role, text = _recorded(message, record, texts)
            if role == "tool":
                messages.append(_answering(answered, text))
                answered += 1
            elif role == "assistant" and (found := _tool_calls(text)) is not None:
                content, functions = found
                messages.append(_calling(calls, functions, content))
                calls += len(functions)
            else:
                messages.append({"role": role, "content": text})
        conversations.append(Conversation(record.get("session_id", str, int), tuple(messages)))
    return conversations


def filler(tokens: int, seed: str) -> str:
    """Return a text of so many o200k_base tokens that says nothing; another seed gives another text."""
    words, random = _WORDS.split(), Random(seed).random
    return " ".join([words[int(random() * len(words))] for _ in range(tokens)])


def _sessions(requests: Iterable[TraceRequest]) -> dict[str | int, list[TraceRequest]]:
    sessions: dict[str | int, list[TraceRequest]] = {}
    for request in requests:
        sessions.setdefault(request.session_id, []).append(request)
    return sessions


def _path(name: str, query: str) -> str:
    found = re.search(rf"[\w./-]*{re.escape(name)}", query)
    return found[0] if found else name


def _filler_answer(turn: TraceRequest, tokens: int) -> Message:
    return {"role": "assistant", "content": filler(tokens, f"answer {turn.query_id}")}


def _calling(first: int, functions: Sequence[tuple[str, str]], content: str | None = None) -> Message:
    calls = [
        {"id": f"call_{first + n}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for n, (name, arguments) in enumerate(functions)
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def _answering(call: int, text: str) -> Message:
    return {"role": "tool", "tool_call_id": f"call_{call}", "content": text}


def _recorded(message: Any, record: Record, texts: Mapping[BlockId, ContextBlock]) -> tuple[str, str]:
    fields = message if isinstance(message, dict) else {}
    role, block_id = fields.get("role"), fields.get("block_id")
    if not (isinstance(role, str) and isinstance(block_id, str | int)):
        raise record.error(
            f'"messages" must hold objects with "role" and "block_id", not {reprlib.repr(message)}'
        )
    if block_id not in texts:
        raise record.error(f"block {block_id!r} is not in the blocks file; add its text there")
    return role, texts[block_id].text


def _tool_calls(text: str) -> tuple[str | None, list[tuple[str, str]]] | None:
    """Split a recorded answer into what it says and the functions that it calls; None where it calls none."""
    said, start, rest = text.partition(_TOOL_CALLS)
    if not start:
        return None
    try:
        return said or None, [(call["name"], call["arguments"]) for call in json.loads(start + rest)]
    except (ValueError, TypeError, KeyError):
        return None
