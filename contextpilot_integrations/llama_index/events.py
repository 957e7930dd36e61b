"""An event handler that reads how many prompt tokens of each model call the engine had cached."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any

from llama_index.core.bridge.pydantic import Field, PrivateAttr
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events.llm import LLMChatEndEvent, LLMCompletionEndEvent
from llama_index_instrumentation.base import BaseEvent

from contextpilot_integrations.engines.usage import Usage, read_usage

__all__ = ["ContextPilotEventHandler", "ObservedCall"]

_RECENT = 64
"""How many completions are remembered, since a chat may end with the same answer."""


@dataclass(frozen=True, slots=True)
class ObservedCall:
    """What was seen of one call of a model.

    Attributes:
        span_id: The span in which it was made; None outside of any.
        tags: Those of LlamaIndex's ``instrument_tags`` at that time: whose call it was.
        usage: Its token counts; None where the engine tells none.
    """

    span_id: str | None
    tags: Mapping[str, Any]
    usage: Usage


class ContextPilotEventHandler(BaseEventHandler):
    """Reads the token counts of all model calls, streamed ones too; it changes nothing.

    ``llama_index.core.instrumentation.get_dispatcher().add_event_handler(handler)`` hands it the events of
    the application. Threads and tasks share it. With a custom ``api_base`` the OpenAI client's streams report
    counts only with ``additional_kwargs={"stream_options": {"include_usage": True}}``.

    Args:
        max_calls: How many of the latest calls are kept.
    """

    max_calls: int = Field(default=1000, ge=1)
    _lock: Any = PrivateAttr(default_factory=Lock)
    _observed: deque[ObservedCall] = PrivateAttr(default_factory=deque)
    _completed: deque[object] = PrivateAttr(default_factory=lambda: deque(maxlen=_RECENT))

    @classmethod
    def class_name(cls) -> str:
        """Return the name that stands for the class."""
        return "ContextPilotEventHandler"

    @property
    def observed(self) -> tuple[ObservedCall, ...]:
        """The model calls that ended, the latest last."""
        with self._lock:
            return tuple(self._observed)

    def handle(self, event: BaseEvent, **kwargs: Any) -> None:
        """Take note of a model call that ended."""
        if not isinstance(event, LLMChatEndEvent | LLMCompletionEndEvent):
            return
        raw = None if event.response is None else event.response.raw
        call = ObservedCall(event.span_id, dict(event.tags), read_usage(raw))
        with self._lock:
            # A chat that a completion model answers ends twice, as a completion first, with the same object.
            if isinstance(event, LLMCompletionEndEvent):
                self._completed.append(raw)
            elif raw is not None and self._was_completion(raw):
                return
            self._observed.append(call)
            while len(self._observed) > self.max_calls:
                self._observed.popleft()

    def _was_completion(self, raw: object) -> bool:
        """Tell whether an answer was counted as a completion, for one chat each."""
        for place, other in enumerate(self._completed):
            if other is raw:
                del self._completed[place]
                return True
        return False
