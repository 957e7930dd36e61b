"""LangChain's runs while they go on: which belongs to which root run, and what each was given."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

from langchain_core.messages import BaseMessage

from contextpilot_integrations.engines.usage import Usage
from contextpilot_integrations.langchain.sessions import Fingerprint, SessionKey

__all__ = ["ObservedRun", "RootRun", "RunTree"]


@dataclass(frozen=True, slots=True)
class ObservedRun:
    """What was seen of a root run, the whole of what one call of a chain or an agent started.

    Attributes:
        run_id: The root run's id.
        session_id: The conversation's; None where nothing was retrieved for one.
        sent: The labels of the documents that ContextPilot's retrievers gave out, in the order to send.
        annotated: Those of them that are shown by a location annotation.
        usage: The token counts of each model call that ended, in that order.
    """

    run_id: UUID
    session_id: str | None
    sent: tuple[str, ...]
    annotated: tuple[str, ...]
    usage: tuple[Usage, ...]

    @property
    def prompt_tokens(self) -> int | None:
        """Those of all its model calls; None where not every one is known."""
        return _total(usage.prompt_tokens for usage in self.usage)

    @property
    def cached_tokens(self) -> int | None:
        """How many of them the engine had cached; None where that is not known of every call."""
        return _total(usage.cached_tokens for usage in self.usage)


@dataclass(slots=True)
class RootRun:
    """What is known of a root run that goes on.

    Attributes:
        run_id: Its id.
        session: Whose turn it is; None until something is retrieved for a session.
        whole: The blocks whose text is to reach the model.
        sent: As in `ObservedRun`.
        annotated: As in `ObservedRun`.
        usage: As in `ObservedRun`.
    """

    run_id: UUID
    session: SessionKey | None = None
    whole: set[Fingerprint] = field(default_factory=set)
    sent: list[str] = field(default_factory=list)
    annotated: list[str] = field(default_factory=list)
    usage: list[Usage] = field(default_factory=list)
    _members: set[UUID] = field(default_factory=set)

    def observed(self) -> ObservedRun:
        """Return what is kept of it once it has ended."""
        session_id = None if self.session is None else self.session[1]
        return ObservedRun(
            self.run_id, session_id, tuple(self.sent), tuple(self.annotated), tuple(self.usage)
        )


@dataclass(slots=True)
class _Run:
    root: RootRun
    parent: UUID | None
    given: tuple[BaseMessage, ...]
    streamed: tuple[BaseMessage, ...] = ()  # What the latest of its steps that ended was given.


class RunTree:
    """The runs that go on. Takes no lock.

    Args:
        limit: How many root runs it knows, the oldest forgotten first.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._runs: dict[UUID, _Run] = {}
        self._roots: OrderedDict[UUID, RootRun] = OrderedDict()

    def __len__(self) -> int:
        return len(self._runs)

    def start(self, run_id: UUID, parent_id: UUID | None, given: tuple[BaseMessage, ...] = ()) -> RootRun:
        """Add a run, with the messages that it was given, and return its root run.

        One whose parent is not known is the outermost that is seen, and so a root itself.
        """
        parent = self._runs.get(parent_id) if parent_id is not None else None
        if parent is None:
            root = self._roots[run_id] = RootRun(run_id)
            if len(self._roots) > self._limit:
                self._forget(next(iter(self._roots.values())))
        else:
            root = parent.root
        self._runs[run_id] = _Run(root, parent_id if parent is not None else None, given)
        root._members.add(run_id)
        return root

    def end(self, run_id: UUID, given: tuple[BaseMessage, ...] = ()) -> RootRun | None:
        """Remove a run, and if it is a root all that belongs to it.

        Args:
            run_id: The run's.
            given: The messages that a streamed run was given, which is told at its end alone.

        Returns:
            The root run, if it is one that ends.
        """
        run = self._runs.pop(run_id, None)
        if run is None:
            return None
        if run.root.run_id == run_id:
            self._forget(run.root)
            return run.root
        run.root._members.discard(run_id)
        if given and run.parent is not None and (parent := self._runs.get(run.parent)) is not None:
            parent.streamed = given
        return None

    def root(self, run_id: UUID) -> RootRun | None:
        """Return a run's root run; None where the run is not known."""
        run = self._runs.get(run_id)
        return None if run is None else run.root

    def given(self, run_id: UUID) -> tuple[BaseMessage, ...]:
        """Return the messages that the nearest run was given, from this one outwards, that was given any.

        What a run further out was given may have been trimmed since.
        """
        next_id: UUID | None = run_id
        while next_id is not None and (run := self._runs.get(next_id)) is not None:
            if given := run.given or run.streamed:
                return given
            next_id = run.parent
        return ()

    def _forget(self, root: RootRun) -> None:
        self._roots.pop(root.run_id, None)
        for run_id in root._members:
            self._runs.pop(run_id, None)


def _total(counts: Iterable[int | None]) -> int | None:
    known = [*counts]
    return sum(filter(None, known)) if known and None not in known else None
