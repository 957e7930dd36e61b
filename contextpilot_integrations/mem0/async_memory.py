"""The async twin of `ContextPilotMemory`."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any

from contextpilot_integrations.edits import Message, message_views
from contextpilot_integrations.mem0.memory import PlannedMemory
from contextpilot_integrations.mem0.scope import search_filters
from contextpilot_integrations.mem0.turn import TurnContext

__all__ = ["AsyncContextPilotMemory"]


class AsyncContextPilotMemory(PlannedMemory):
    """Wraps Mem0's ``AsyncMemory`` or ``AsyncMemoryClient``, as `ContextPilotMemory` does the sync ones.

    Planning takes well under a millisecond, so it runs in the loop.
    """

    __slots__ = ()
    _IS_ASYNC = True
    _INSTEAD = "ContextPilotMemory"

    async def search(self, query: str, *args: Any, **kwargs: Any) -> Any:
        """Search and plan as `ContextPilotMemory.search` does."""
        filters = search_filters(args, kwargs)
        return self._planned(await self._memory.search(query, *args, **kwargs), filters)

    async def turn_context(
        self, query: str, messages: Iterable[Message] = (), *args: Any, **kwargs: Any
    ) -> TurnContext:
        """Search and write a turn's memories as `ContextPilotMemory.turn_context` does."""
        views = message_views(messages)
        filters = search_filters(args, kwargs)
        return self._turn(await self._memory.search(query, *args, **kwargs), views, filters)

    async def __aenter__(self) -> AsyncContextPilotMemory:
        await self._memory.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> Any:
        return await self._memory.__aexit__(exc_type, exc, traceback)
