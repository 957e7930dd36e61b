"""LlamaIndex's chat messages as OpenAI-style ones, and rewritten texts back into copies of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, MessageRole, TextBlock

from contextpilot_integrations.block import ContextBlock
from contextpilot_integrations.conversation import rewrite
from contextpilot_integrations.edits import Message
from contextpilot_integrations.namespace import Namespace
from contextpilot_integrations.pilot import ContextPilot

__all__ = ["rewrite_messages", "to_openai", "with_content"]

_ASSISTANTS = {MessageRole.CHATBOT, MessageRole.MODEL}


def rewrite_messages(
    messages: Sequence[ChatMessage],
    *,
    pilot: ContextPilot,
    namespace: Namespace,
    blocks: Iterable[ContextBlock] = (),
) -> list[ChatMessage]:
    """Rewrite a chat's messages (`contextpilot_integrations.conversation.rewrite`).

    Args:
        messages: The whole list; it and they stay as they are.
        pilot: Who rewrites.
        namespace: Whose cache they meet.
        blocks: Those whose texts stand in the messages after the last answer.

    Returns:
        As many as were given: the very objects where nothing changed, else copies with other texts.
    """
    try:
        given = [to_openai(message) for message in messages]
    except Exception as error:
        pilot.report_failure(error)
        return list(messages)
    rewriting = rewrite(given, pilot=pilot, namespace=namespace, blocks=blocks)
    return [
        message if after is before else with_content(message, after)
        for message, before, after in zip(messages, given, rewriting.messages, strict=True)
    ]


def to_openai(message: ChatMessage) -> dict[str, Any]:
    """Return a message as OpenAI's API has it: one text as such, several blocks as parts.

    What is no text stays as it is, since only texts are read.
    """
    role = "assistant" if message.role in _ASSISTANTS else message.role.value
    parts = [
        {"type": "text", "text": block.text}
        if isinstance(block, TextBlock)
        else {"type": block.block_type, "block": block.model_dump()}
        for block in message.blocks
    ]
    if len(parts) == 1 and "text" in parts[0]:
        return {"role": role, "content": parts[0]["text"]}
    return {"role": role, "content": parts}


def with_content(message: ChatMessage, rewritten: Message) -> ChatMessage:
    """Return a copy of a message that has the texts of a rewritten one; nothing else of it is taken.

    Args:
        message: It stays as it is.
        rewritten: What became of `to_openai` of it; the parts are as many.
    """
    content = rewritten["content"]
    texts = [content] if isinstance(content, str) else [part.get("text") for part in content]
    blocks = [
        block if text is None or not isinstance(block, TextBlock) else block.model_copy(update={"text": text})
        for block, text in zip(message.blocks, texts, strict=True)
    ]
    return message.model_copy(update={"blocks": blocks})
