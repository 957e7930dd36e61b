"""What came back of a request."""

from __future__ import annotations

from dataclasses import dataclass

from contextpilot_integrations.edits import Edit
from contextpilot_integrations.engines.usage import Usage
from contextpilot_integrations.plan import Plan

__all__ = ["Completion"]


@dataclass(frozen=True, slots=True)
class Completion:
    """An answer and what it took.

    Attributes:
        text: What the model said, as far as it got.
        usage: The engine's own token counts; all None where it sent none.
        plan: How the blocks were sent. The engine knows the request as ``plan.request_id`` if it takes
            request ids; `ContextPilot.evict` takes it in any case.
        finish_reason: Why the model stopped, in the engine's words ("stop", "length"); None if it did not.
        error: Why there is no whole answer; None if there is one.
        ttft: Seconds from sending to the first token, retries included; None if none came.
        duration: Seconds from sending to the end.
        edits: How the messages differ from those given, if messages were (`restore` undoes it).
    """

    text: str
    usage: Usage
    plan: Plan
    finish_reason: str | None = None
    error: Exception | None = None
    ttft: float | None = None
    duration: float = 0.0
    edits: tuple[Edit, ...] = ()
