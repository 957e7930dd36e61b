"""A callback handler that watches what reaches the model: the proof that a block need not be sent again."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from itertools import chain
from threading import Lock
from typing import Any, TypeVar, cast
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import LLMResult
from langchain_core.prompt_values import ChatPromptValue

from contextpilot_integrations.engines.usage import Usage
from contextpilot_integrations.langchain.documents import plan_metadata
from contextpilot_integrations.langchain.messages import message_texts
from contextpilot_integrations.langchain.runs import ObservedRun, RunTree
from contextpilot_integrations.langchain.sessions import Fingerprint, SessionKey, Sessions, standing
from contextpilot_integrations.langchain.usage import read_usage

__all__ = ["ContextPilotCallbackHandler"]

logger = logging.getLogger(__name__)

Event = TypeVar("Event", bound=Callable[..., None])

_LABELS = 500
"""How many blocks are remembered of a session."""

_DEPTH = 3
"""How deep messages are looked for in a run's inputs: those of a graph's state, handed to a tool."""


def _observing(event: Event) -> Event:
    """Keep what goes wrong while observing from the chain that is observed."""

    @wraps(event)
    def observe(*args: Any, **kwargs: Any) -> None:
        try:
            event(*args, **kwargs)
        except Exception as error:
            # Only its type: its message may hold a document's text.
            logger.warning("%s failed with %s; the chain goes on", event.__name__, type(error).__name__)

    return cast(Event, observe)


class ContextPilotCallbackHandler(BaseCallbackHandler):
    """Watches runs, for ``ContextPilotRetriever(deduplicate="session")`` and for reports.

    Keep one for the whole application and give it to each call of the chain or agent, beside the thread's
    id: ``chain.invoke(x, {"callbacks": [handler], "configurable": {"thread_id": "7"}})``. Threads and tasks
    share it. It changes nothing, and a failure inside it never reaches the chain.

    Of a conversation it keeps digests of the blocks that the model was shown, no texts, and of a run that
    goes on the messages that it was given; a run that ends or fails is forgotten but for its `ObservedRun`.

    Args:
        max_sessions: How many conversations are remembered, the least recently used forgotten first.
        session_seconds: How long one is remembered after its last turn. What is forgotten is sent in full.
        max_runs: How many root runs are watched at a time, and how many of those that ended are kept.

    Raises:
        ValueError: If an argument is out of range.
    """

    run_inline = True
    """Events come in their order under async too."""

    def __init__(
        self, *, max_sessions: int = 1000, session_seconds: float = 3600.0, max_runs: int = 1000
    ) -> None:
        for name, value in (("max_sessions", max_sessions), ("max_runs", max_runs)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if not session_seconds > 0:
            raise ValueError(f"session_seconds must be above 0, got {session_seconds}")
        self._lock = Lock()
        self._runs = RunTree(max_runs)
        self._sessions = Sessions(max_sessions, session_seconds, _LABELS, time.monotonic)
        self._observed: deque[ObservedRun] = deque(maxlen=max_runs)
        self._lost_texts = 0

    @property
    def observed(self) -> tuple[ObservedRun, ...]:
        """The root runs that ended or failed and retrieved documents or called a model, the latest last."""
        with self._lock:
            return tuple(self._observed)

    @property
    def lost_texts(self) -> int:
        """How often a model call showed an annotation without the text that it stands for."""
        with self._lock:
            return self._lost_texts

    def blocks_in_view(self, run_id: UUID, session: SessionKey) -> set[Fingerprint]:
        """Return the blocks of earlier turns that stand in the messages that a retriever's run was given.

        Args:
            run_id: The retriever's run. What the nearest run around it was given counts.
            session: The conversation's tenant and id.

        Returns:
            Those whose text the model was shown in this session and stands verbatim in these messages.
        """
        with self._lock:
            known = self._sessions.get(session)
            sent = known.sent if known.trusted else []
            given = self._runs.given(run_id)
        return standing(message_texts(given), sent)

    def add_blocks(
        self,
        run_id: UUID,
        session: SessionKey,
        whole: Iterable[Fingerprint],
        annotations: Mapping[str, Fingerprint],
    ) -> None:
        """Take note of what a retriever gave out; whether it reaches the model is seen later.

        Args:
            run_id: The retriever's run.
            session: The conversation's tenant and id.
            whole: The blocks whose text is to be sent.
            annotations: What is to be sent instead of others, and which they are.
        """
        with self._lock:
            self._sessions.get(session).add_annotations(annotations)
            if (root := self._runs.root(run_id)) is not None:
                root.session = session
                root.whole.update(whole)

    @_observing
    def on_chain_start(
        self, serialized: Any, inputs: Any, *, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        """Take note of the messages that a run was given."""
        given = tuple(_messages(inputs, _DEPTH))
        with self._lock:
            self._runs.start(run_id, parent_run_id, given)

    @_observing
    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Forget the run, but for what a streamed one was given, which is known only now."""
        self._end(run_id, tuple(_messages(kwargs.get("inputs"), _DEPTH)))

    @_observing
    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Forget the run."""
        self._end(run_id)

    @_observing
    def on_chat_model_start(
        self,
        serialized: Any,
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **kwargs: Any,
    ) -> None:
        """Take note of the blocks that reach the model."""
        self._reached(run_id, parent_run_id, message_texts(chain.from_iterable(messages)))

    @_observing
    def on_llm_start(
        self,
        serialized: Any,
        prompts: list[str],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **kwargs: Any,
    ) -> None:
        """Take note of the blocks that reach the model."""
        self._reached(run_id, parent_run_id, prompts)

    @_observing
    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        """Take note of the token counts."""
        generation = next(chain.from_iterable(response.generations), None)
        message = getattr(generation, "message", None)
        usage = read_usage(message) if isinstance(message, AIMessage) else Usage()
        with self._lock:
            if (root := self._runs.root(run_id)) is not None:
                root.usage.append(usage)
        self._end(run_id)

    @_observing
    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Forget the run."""
        self._end(run_id)

    @_observing
    def on_retriever_start(
        self, serialized: Any, query: str, *, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        """Take note of the run."""
        with self._lock:
            self._runs.start(run_id, parent_run_id)

    @_observing
    def on_retriever_end(self, documents: Iterable[Document], *, run_id: UUID, **kwargs: Any) -> None:
        """Take note of the labels of what a pilot planned."""
        entries = [entry for document in documents if (entry := plan_metadata(document))]
        with self._lock:
            if (root := self._runs.root(run_id)) is not None:
                root.sent += [entry["label"] for entry in entries]
                root.annotated += [entry["label"] for entry in entries if entry["shown_as"] is not None]
        self._end(run_id)

    @_observing
    def on_retriever_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Forget the run."""
        self._end(run_id)

    @_observing
    def on_tool_start(
        self,
        serialized: Any,
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **kwargs: Any,
    ) -> None:
        """Take note of the run."""
        with self._lock:
            self._runs.start(run_id, parent_run_id)

    @_observing
    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Forget the run."""
        self._end(run_id)

    @_observing
    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Forget the run."""
        self._end(run_id)

    def _end(self, run_id: UUID, given: tuple[BaseMessage, ...] = ()) -> None:
        with self._lock:
            root = self._runs.end(run_id, given)
            if root is not None and (root.sent or root.usage):
                self._observed.append(root.observed())

    def _reached(self, run_id: UUID, parent_id: UUID | None, given: Iterable[str]) -> None:
        with self._lock:
            root = self._runs.start(run_id, parent_id)
            if (key := root.session) is None:
                return
            whole = frozenset(root.whole)
            annotations = dict(self._sessions.get(key).annotations)
        texts = [*given]  # From here on without the lock: they may be long.
        shown = {block for note, block in annotations.items() if any(note in text for text in texts)}
        found = standing(texts, whole | shown)
        lost = len(shown - found)
        with self._lock:
            session = self._sessions.get(key)
            session.add_sent(whole & found)
            self._lost_texts += lost
            news = bool(lost) and session.trusted
            session.trusted = session.trusted and not lost
        if news:
            logger.warning(
                "a model call refers to %d block(s) of an earlier turn whose text is not among its messages: "
                "a step behind the retriever, or the caller, has cut the history. From now on every text of "
                "this session is sent; for such a chain, put ContextPilotRewriter in front of the model "
                'instead of deduplicate="session"',
                lost,
            )


def _messages(inputs: Any, depth: int) -> Iterator[BaseMessage]:
    if isinstance(inputs, BaseMessage):
        yield inputs
    elif isinstance(inputs, ChatPromptValue):
        yield from inputs.messages
    elif depth > 0 and isinstance(inputs, Mapping | list | tuple):
        for value in inputs.values() if isinstance(inputs, Mapping) else inputs:
            if isinstance(value, BaseMessage | ChatPromptValue | Mapping | list | tuple):
                yield from _messages(value, depth - 1)
