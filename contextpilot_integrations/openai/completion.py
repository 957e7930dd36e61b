"""What came back of a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from openai.types.chat import ChatCompletionMessageFunctionToolCall

from contextpilot_integrations.edits import Edit
from contextpilot_integrations.engines.usage import Usage
from contextpilot_integrations.plan import Plan

__all__ = ["Completion"]


@dataclass(frozen=True, slots=True)
class Completion:
    """An answer and what it took.

    Attributes:
        text: What the model said, as far as it got; empty where it only called tools.
        usage: The engine's own token counts; all None where it sent none.
        plan: How the blocks were sent. The engine knows the request as ``plan.request_id`` if it takes
            request ids; `ContextPilot.evict` takes it in any case.
        finish_reason: Why the model stopped, in the engine's words ("stop", "tool_calls", "length"); None if
            it did not.
        error: Why there is no whole answer; None if there is one.
        ttft: Seconds from sending to the first token, retries included; None if none came.
        duration: Seconds from sending to the end.
        edits: How the messages differ from those given, if messages were (`restore` undoes it).
        tool_calls: The tools that the model called, as far as it got: of an answer that is not whole the last
            one's arguments may break off.
    """

    text: str
    usage: Usage
    plan: Plan
    finish_reason: str | None = None
    error: Exception | None = None
    ttft: float | None = None
    duration: float = 0.0
    edits: tuple[Edit, ...] = ()
    tool_calls: tuple[ChatCompletionMessageFunctionToolCall, ...] = ()

    @property
    def message(self) -> dict[str, Any]:
        """The model's message as the API takes it, behind which a conversation goes on."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.tool_calls:
            message["tool_calls"] = [call.model_dump() for call in self.tool_calls]
        return message
