"""LangChain's messages as OpenAI-style ones, and rewritten texts back into copies of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from contextpilot_integrations.conversation import rewrite
from contextpilot_integrations.edits import Message
from contextpilot_integrations.langchain.documents import to_block
from contextpilot_integrations.namespace import Namespace
from contextpilot_integrations.pilot import ContextPilot

__all__ = ["message_texts", "rewrite_messages", "to_openai", "with_content"]

_ROLES: tuple[tuple[type[BaseMessage], str], ...] = (
    (HumanMessage, "user"),
    (AIMessage, "assistant"),
    (SystemMessage, "system"),
    (ToolMessage, "tool"),
    (FunctionMessage, "function"),
)


def rewrite_messages(
    messages: Sequence[BaseMessage], *, pilot: ContextPilot, namespace: Namespace
) -> list[BaseMessage]:
    """Rewrite a chat's messages (`contextpilot_integrations.conversation.rewrite`).

    Documents that a tool returned as its artifact are blocks whose texts stand in its message.

    Returns:
        As many as were given: the very objects where nothing changed, else copies with other texts.
    """
    try:
        given = [to_openai(message) for message in messages]
        blocks = [to_block(document) for message in messages for document in _documents(message)]
    except Exception as error:
        pilot.report_failure(error, "rewriting")
        return list(messages)
    rewriting = rewrite(given, pilot=pilot, namespace=namespace, blocks=blocks)
    return [
        message if after is before else with_content(message, after)
        for message, before, after in zip(messages, given, rewriting.messages, strict=True)
    ]


def to_openai(message: BaseMessage) -> dict[str, Any]:
    """Return a message as OpenAI's API has it, its content part by part as it is here.

    Text becomes text parts; what is no text stays as it is, since only texts are read. Ids, artifacts and
    whatever else the model never sees are left out.
    """
    converted: dict[str, Any] = {"role": _role(message), "content": message.content}
    if not isinstance(message.content, str):
        converted["content"] = [
            {"type": "text", "text": part} if isinstance(part, str) else part for part in message.content
        ]
    if message.name:
        converted["name"] = message.name
    if isinstance(message, ToolMessage):
        converted["tool_call_id"] = message.tool_call_id
    if isinstance(message, AIMessage) and (calls := [*_tool_calls(message)]):
        converted["tool_calls"] = calls
    return converted


def with_content(message: BaseMessage, rewritten: Message) -> BaseMessage:
    """Return a copy of a message that has the texts of a rewritten one; nothing else of it is taken.

    Args:
        message: It stays as it is.
        rewritten: What became of `to_openai` of it; the parts are as many.

    Raises:
        ValueError: If it has another number of parts, or is text where the message has parts.
    """
    content = rewritten["content"]
    if isinstance(message.content, str) or isinstance(content, str):
        if not isinstance(message.content, type(content)):
            raise ValueError("a rewritten message must have the parts that the message has")
        return message.model_copy(update={"content": content})
    parts = [_with_text(old, new) for old, new in zip(message.content, content, strict=True)]
    return message.model_copy(update={"content": parts})


def message_texts(messages: Iterable[BaseMessage]) -> Iterator[str]:
    """Yield the texts of messages, each part of a content for itself."""
    for message in messages:
        content = message.content
        for part in [content] if isinstance(content, str) else content:
            text = part if isinstance(part, str) else part.get("text")
            if isinstance(text, str):
                yield text


def _documents(message: BaseMessage) -> list[Document]:
    artifact = message.artifact if isinstance(message, ToolMessage) else None
    found = artifact if isinstance(artifact, list | tuple) else [artifact]
    return [document for one in found if (document := _document(one)) is not None]


def _document(artifact: object) -> Document | None:
    """Return a document, be it one that a checkpoint gave back as a dict; None if it is none."""
    if isinstance(artifact, Document):
        return artifact
    if isinstance(artifact, dict) and isinstance(text := artifact.get("page_content"), str):
        id_ = artifact.get("id")
        return Document(text, id=id_ if isinstance(id_, str) else None)
    return None


def _role(message: BaseMessage) -> str:
    if isinstance(message, ChatMessage):
        return message.role
    return next((role for kind, role in _ROLES if isinstance(message, kind)), message.type)


def _tool_calls(message: AIMessage) -> Iterator[dict[str, Any]]:
    for call in message.tool_calls:
        arguments = json.dumps(call["args"], ensure_ascii=False, default=str)
        yield _tool_call(call["id"], call["name"], arguments)
    for invalid in message.invalid_tool_calls:
        yield _tool_call(invalid["id"], invalid["name"] or "", invalid["args"] or "")


def _tool_call(id_: str | None, name: str, arguments: str) -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def _with_text(part: str | dict[Any, Any], rewritten: dict[str, Any]) -> str | dict[Any, Any]:
    if isinstance(part, str):
        return str(rewritten["text"])
    return part if rewritten.get("text") == part.get("text") else {**part, "text": rewritten["text"]}
