"""A chat request's body: its messages, and what its caller says about the blocks in them."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from contextpilot_integrations.block import ContextBlock
from contextpilot_integrations.edits import Message
from contextpilot_integrations.namespace import Namespace
from contextpilot_integrations.rewriting_report import RewritingReport

__all__ = ["CALLERS_FIELD", "ChatRequest"]

CALLERS_FIELD = "contextpilot"
"""The body's field that is meant for this package and not sent on."""

_CALLERS_FIELDS = {"blocks", "tenant", *(field.name for field in fields(RewritingReport))}


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What `rewrite` needs of a request.

    Attributes:
        messages: The body's, as they stand there.
        blocks: Those that the caller says stand in the new messages.
        namespace: Whose cache they meet.
    """

    messages: list[Message]
    blocks: tuple[ContextBlock, ...] = ()
    namespace: Namespace = Namespace()

    @classmethod
    def from_body(cls, body: Mapping[str, Any], *, endpoint: str = "") -> ChatRequest:
        """Read a body as OpenAI's API has it.

        Its field "contextpilot" may hold "blocks", a list of ``{"id", "text"}`` whose texts stand verbatim in
        the messages after the last answer, and a "tenant"; the report on an earlier rewriting is passed over.

        Args:
            body: The JSON object.
            endpoint: Where it goes.

        Raises:
            ValueError: If it is none; the message is one line that says what is wrong and where.
        """
        caller = body.get(CALLERS_FIELD)
        if not isinstance(caller, Mapping | None):
            raise ValueError(f'"{CALLERS_FIELD}" must be an object, not {reprlib.repr(caller)}')
        caller, model, tools = caller or {}, body.get("model"), body.get("tools")
        if unknown := caller.keys() - _CALLERS_FIELDS:
            raise ValueError(
                f'"{CALLERS_FIELD}" may hold "blocks" and "tenant", not {reprlib.repr(sorted(unknown))}'
            )
        tenant = caller.get("tenant")
        for name, value in (("model", model), ("tenant", tenant)):
            if not isinstance(value, str | None):
                raise ValueError(f'"{name}" must be a string, not {reprlib.repr(value)}')
        namespace = Namespace(
            endpoint=endpoint,
            model=model or "",
            tenant=tenant or "",
            preamble=json.dumps(tools) if tools else "",
        )
        return cls(_messages(body.get("messages")), _blocks(caller.get("blocks")), namespace)


def _messages(value: object) -> list[Message]:
    if value is None:
        raise ValueError('there is no "messages"; add the list of chat messages')
    if not isinstance(value, list):
        raise ValueError(f'"messages" must be a list of chat messages, not {reprlib.repr(value)}')
    for number, message in enumerate(value):
        if not isinstance(message, Mapping):
            raise ValueError(f"message {number} must be an object, not {reprlib.repr(message)}")
        role = message.get("role")
        if not (isinstance(role, str) and role):
            raise ValueError(f'message {number} has no "role"; add "user", "assistant" or another')
        content = message.get("content")
        if not isinstance(content, str | list | None):
            raise ValueError(
                f"the content of message {number} must be a string, a list of parts or null, "
                f"not {reprlib.repr(content)}"
            )
        for place, part in enumerate(content if isinstance(content, list) else ()):
            if not (isinstance(part, Mapping) and isinstance(part.get("text"), str | None)):
                raise ValueError(
                    f"part {place} of message {number} must be an object whose text is a string, "
                    f"not {reprlib.repr(part)}"
                )
        calls = message.get("tool_calls")
        if not (isinstance(calls, list | None) and all(isinstance(call, Mapping) for call in calls or ())):
            raise ValueError(
                f"the tool calls of message {number} must be a list of objects, not {reprlib.repr(calls)}"
            )
    return value


def _blocks(value: object) -> tuple[ContextBlock, ...]:
    blocks = []
    if not isinstance(value, list | None):
        raise ValueError(f'"blocks" must be a list of {{"id", "text"}}, not {reprlib.repr(value)}')
    for block in value or ():
        if not (
            isinstance(block, Mapping)
            and type(block.get("id")) in (str, int)  # A JSON true is no integer.
            and isinstance(block.get("text"), str)
        ):
            raise ValueError(
                '"blocks" must hold objects with "id" (a string or an integer) and "text" (a string), '
                f"not {reprlib.repr(block)}"
            )
        blocks.append(ContextBlock(block["id"], block["text"]))
    return tuple(blocks)
