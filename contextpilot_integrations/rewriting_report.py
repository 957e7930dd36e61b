"""What a rewriting saved, and where each change stands in what goes out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from contextpilot_integrations.edits import Edit, EditKind, Message, Place, Rewriting

__all__ = ["Change", "RewritingReport", "message_texts", "report_rewriting"]


@dataclass(frozen=True, slots=True)
class Change:
    """One edit, as it is found in the messages that go out.

    Attributes:
        kind: What was changed.
        place: Where the new text stands.
        source: Where the original stands; None unless something was left out.
    """

    kind: EditKind
    place: Place
    source: Place | None


@dataclass(frozen=True, slots=True)
class RewritingReport:
    """The figures of one request.

    Attributes:
        tokens_before: Tokens of the messages as they were given: their texts and tool calls. What a chat
            template puts around them, and pictures, are not counted.
        tokens_after: The same of the messages that go out.
        blocks_replaced: How many whole blocks gave way to a location annotation.
        passages_replaced: How many runs of lines did.
        aligned: Whether blocks after the last answer stand in another order now.
        changes: All edits, in the order in which they were made.
    """

    tokens_before: int
    tokens_after: int
    blocks_replaced: int
    passages_replaced: int
    aligned: bool
    changes: tuple[Change, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the figures under their names, as JSON has them."""
        return asdict(self)


def report_rewriting(
    given: Sequence[Message], rewriting: Rewriting, count: Callable[[str], int]
) -> RewritingReport:
    """Report on a rewriting.

    Args:
        given: The messages as they were given.
        rewriting: What came of them.
        count: Counts the tokens of a text.
    """
    kinds = [edit.kind for edit in rewriting.edits]
    answered = max((n for n, message in enumerate(given) if message.get("role") == "assistant"), default=-1)
    return RewritingReport(
        tokens_before=_tokens(given, count),
        tokens_after=_tokens(rewriting.messages, count),
        blocks_replaced=kinds.count(EditKind.BLOCK),
        passages_replaced=kinds.count(EditKind.PASSAGE),
        aligned=any(
            edit.kind is EditKind.ALIGNMENT and edit.place.message > answered for edit in rewriting.edits
        ),
        changes=tuple(_changes(rewriting.edits)),
    )


def message_texts(message: Message) -> Iterator[str]:
    """Yield what a model reads of a message: its text or text parts, and its tool calls."""
    content = message.get("content")
    if isinstance(content, str):
        yield content
    else:
        for part in content or ():
            if isinstance(text := part.get("text"), str):
                yield text
    for call in message.get("tool_calls") or ():
        if isinstance(function := call.get("function"), Mapping):
            for name in ("name", "arguments"):
                if isinstance(text := function.get(name), str):
                    yield text


def _tokens(messages: Iterable[Message], count: Callable[[str], int]) -> int:
    return sum(count(text) for message in messages for text in message_texts(message))


def _changes(edits: Sequence[Edit]) -> list[Change]:
    changes = []
    later: dict[tuple[int, int | None], list[Edit]] = {}  # Those to the same text, the last one first.
    for edit in reversed(edits):
        place, others = edit.place, later.setdefault((edit.place.message, edit.place.part), [])
        for other in reversed(others):
            place = _moved(place, other)
        others.append(edit)
        changes.append(Change(edit.kind, place, edit.source))
    return changes[::-1]


def _moved(place: Place, edit: Edit) -> Place:
    """Return where a stretch of text stands once an edit is made; inside what it replaces, all of it."""
    start, end = edit.place.start, edit.place.end
    replaced = start + len(edit.original)  # Where what was replaced ended.
    return replace(
        place,
        start=place.start + end - replaced if place.start >= replaced else min(place.start, start),
        end=place.end if place.end <= start else max(place.end + end - replaced, end),
    )
