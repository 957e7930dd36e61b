"""The async twin of `ContextPilotMemory`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from inspect import isawaitable
from types import TracebackType
from typing import Any

from contextpilot_integrations.edits import Message, checked_messages, message_views
from contextpilot_integrations.mem0.memory import PlannedMemory
from contextpilot_integrations.mem0.scope import search_filters
from contextpilot_integrations.mem0.turn import TurnContext

__all__ = ["AsyncContextPilotMemory"]


class AsyncContextPilotMemory(PlannedMemory):
    """Wraps Mem0's ``AsyncMemory`` or ``AsyncMemoryClient``, as `ContextPilotMemory` does the sync ones.

    A search is planned in the loop, in well under a millisecond. A turn's text is written in a thread, since
    that takes longer with the conversation.
    """

    __slots__ = ()
    _IS_ASYNC = True
    _INSTEAD = "ContextPilotMemory"

    async def search(self, query: str, *args: Any, **kwargs: Any) -> Any:
        """Search and plan as `ContextPilotMemory.search` does."""
        filters = search_filters(args, kwargs)
        return self._planned(await self._found(query, args, kwargs), filters)

    async def turn_context(
        self, query: str, messages: Iterable[Message] = (), *args: Any, **kwargs: Any
    ) -> TurnContext:
        """Search and write a turn's memories as `ContextPilotMemory.turn_context` does."""
        views = message_views(checked_messages(messages))
        filters = search_filters(args, kwargs)
        found = await self._found(query, args, kwargs)
        return await asyncio.to_thread(self._turn, found, views, filters)

    async def _found(self, query: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        # A decorated method may be a plain function that returns an awaitable.
        found = self._memory.search(query, *args, **kwargs)
        if not isawaitable(found):
            raise self._misplaced(self._memory)
        return await found

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
