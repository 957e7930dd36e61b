"""A Mem0 memory whose searches come with a plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from inspect import isawaitable, iscoroutine, iscoroutinefunction
from types import TracebackType
from typing import Any

from contextpilot_integrations.annotation import check_template
from contextpilot_integrations.edits import Message, checked_messages, message_views
from contextpilot_integrations.mem0.found_ids import FoundIds
from contextpilot_integrations.mem0.results import blocks_of, planned_result
from contextpilot_integrations.mem0.scope import search_filters, tenant_of
from contextpilot_integrations.mem0.turn import UPDATE_TEMPLATE, TurnContext, turn_text
from contextpilot_integrations.namespace import Namespace
from contextpilot_integrations.pilot import ContextPilot

__all__ = ["ContextPilotMemory", "PlannedMemory"]


class PlannedMemory:
    """What the sync and the async memory have in common: all of Mem0's API, and how a search is planned.

    Args:
        memory: Mem0's object. All that is not named here is its own, methods of later versions too.
        pilot: Who plans. Share one among all whose prompts meet the same engine. None: a new one.
        endpoint: Where the engine is, for instance its base URL.
        model: The model's name there.
        tenant: Whose store this is, where one pilot serves several. Within a store the tenant is what the
            filters of a search say of user_id, agent_id, run_id and app_id: searches for the same ones, and
            no others, share an index. ``plan.namespace.tenant`` has it, for the engine's cache salt.
        preamble: All that stands before the memories, where it is known and no part of the messages that
            `turn_context` is given: system prompt, tools, template.
        update_template: How a turn says that a memory was updated: "{new}" and "{old}" are the markers.

    Raises:
        TypeError: If ``memory`` is not of the kind that the class is for; where only a search tells, by then.
        ValueError: If ``update_template`` does not name both, or has several lines.
    """

    __slots__ = ("_ids", "_memory", "_namespace", "_pilot", "_update_template")
    _IS_ASYNC: bool
    _INSTEAD: str

    def __init__(
        self,
        memory: Any,
        *,
        pilot: ContextPilot | None = None,
        endpoint: str = "",
        model: str = "",
        tenant: str = "",
        preamble: str = "",
        update_template: str = UPDATE_TEMPLATE,
    ) -> None:
        search = getattr(memory, "search", None)
        if not callable(search):
            raise TypeError(f"memory must be a memory or client of Mem0's, not {type(memory).__name__}")
        if iscoroutinefunction(search) and not self._IS_ASYNC:
            raise self._misplaced(memory)
        for place in ("{new}", "{old}"):
            check_template("update_template", update_template, place)
        if len(update_template.splitlines()) > 1:
            raise ValueError("update_template must be one line")
        self._memory = memory
        self._ids = FoundIds()
        self._pilot = pilot or ContextPilot()
        self._namespace = Namespace(endpoint, model, tenant, preamble)
        self._update_template = update_template

    @property
    def wrapped(self) -> Any:
        """Mem0's object."""
        return self._memory

    @property
    def pilot(self) -> ContextPilot:
        """Who plans."""
        return self._pilot

    def __getattr__(self, name: str) -> Any:
        # A copy that is being made has no memory yet, and its special methods are looked up all the same.
        if name in PlannedMemory.__slots__ or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._memory, name)

    def __setattr__(self, name: str, value: object) -> None:
        if hasattr(type(self), name):  # Its own: to set `pilot` or `search` on Mem0's object changes nothing.
            object.__setattr__(self, name, value)
        else:
            setattr(self._memory, name, value)

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *dir(self._memory)})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self._memory).__name__})"

    def _misplaced(self, memory: object) -> TypeError:
        returned = "no awaitable" if self._IS_ASYNC else "an awaitable"
        return TypeError(f"{type(memory).__name__} goes into {self._INSTEAD}: its search returns {returned}")

    def _planned(self, found: Any, filters: object) -> Any:
        """Return what a search found, with a plan beside; what is no result of Mem0's, as it is."""
        try:
            blocks = blocks_of(found)
            plan = self._pilot.prepare(blocks, namespace=self._namespace_of(filters))
            return planned_result(found, blocks, plan, self._pilot.order_template)
        except Exception as error:
            self._pilot.report_failure(error)
            return found

    def _turn(self, found: Any, views: list[Mapping[str, Any]], filters: object) -> TurnContext:
        blocks = blocks_of(found)
        turn = turn_text(
            blocks,
            views,
            pilot=self._pilot,
            namespace=self._namespace_of(filters),
            update_template=self._update_template,
            ids=self._ids,
        )
        result = planned_result(
            found,
            blocks,
            turn.plan,
            self._pilot.order_template,
            shown_as=turn.shown_as,
            replaces=turn.replaces,
        )
        return TurnContext(turn.text, result, turn.plan)

    def _namespace_of(self, filters: object) -> Namespace:
        store = self._namespace
        return Namespace(store.endpoint, store.model, tenant_of(filters, store.tenant), store.preamble)


class ContextPilotMemory(PlannedMemory):
    r"""Wraps Mem0's ``Memory`` or ``MemoryClient``.

    `search` also plans, and `turn_context` writes a turn's memories for a chat.

    Example:
        >>> memory = ContextPilotMemory(Memory.from_config(config))  # doctest: +SKIP
        >>> turn = memory.turn_context(question, messages, filters={"user_id": "ada"})  # doctest: +SKIP
        >>> messages.append({"role": "user", "content": f"{turn.text}\n\n{question}"})  # doctest: +SKIP
    """

    __slots__ = ()
    _IS_ASYNC = False
    _INSTEAD = "AsyncContextPilotMemory"

    def search(self, query: str, *args: Any, **kwargs: Any) -> Any:
        """Search as Mem0 does, and plan a prompt of what was found, which is then taken as sent.

        For a prompt that stands alone; `format_memories` writes it. In a chat use `turn_context`.

        Args:
            query: As Mem0 takes it.
            *args: As Mem0 takes them.
            **kwargs: As Mem0 takes them.

        Returns:
            What Mem0 returned, copied, its memories in their order with their scores. Each has its rank and
            its place in the order to send under "contextpilot" (`MemoryEntry`), and the whole the plan
            (`PlanEntry`).
        """
        filters = search_filters(args, kwargs)
        return self._planned(self._found(query, args, kwargs), filters)

    def turn_context(
        self, query: str, messages: Iterable[Message] = (), *args: Any, **kwargs: Any
    ) -> TurnContext:
        """Search, and write what was found as text for the turn's own message, never for the system's.

        What stands in the messages verbatim is named and not repeated, and an update says what it replaces.
        So keep the turns as they were sent; what was cut from the history is written in full again. Behind an
        answer the text depends on the messages and the memories alone, before the first one its order on what
        is cached. No score and no date gets into it.

        A memory that was deleted is not found any more, which a search does not tell from one that does not
        fit: it stays in the messages, and no turn says that it no longer holds. Where that matters, cut it
        from them, or say so in the turn's message; ``["contextpilot"]["label"]`` was its marker's.

        Args:
            query: As Mem0 takes it.
            messages: All that go out before the turn's own message, as OpenAI's API has them: mappings, or
                the openai package's objects. They stay as they are.
            *args: What Mem0's search takes behind the query.
            **kwargs: The same by name.

        Raises:
            TypeError: If ``messages`` holds anything but messages, or Mem0 returned no memories.
        """
        views = message_views(checked_messages(messages))
        filters = search_filters(args, kwargs)
        return self._turn(self._found(query, args, kwargs), views, filters)

    def _found(self, query: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        found = self._memory.search(query, *args, **kwargs)
        if isawaitable(found):
            if iscoroutine(found):
                found.close()
            raise self._misplaced(self._memory)
        return found

    def __enter__(self) -> ContextPilotMemory:
        self._memory.__enter__()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> Any:
        return self._memory.__exit__(exc_type, exc, traceback)
