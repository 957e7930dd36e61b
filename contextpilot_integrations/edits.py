"""What a rewriting changed in a list of messages, and how it is undone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from contextpilot_integrations.plan import Plan

__all__ = [
    "Edit",
    "EditKind",
    "Message",
    "Place",
    "Rewriting",
    "checked_messages",
    "message_views",
    "restore",
    "text_at",
    "with_text",
]

Message: TypeAlias = Mapping[str, Any]
"""A chat message as OpenAI's API has it: a role, a content of text or parts, perhaps tool calls."""


class EditKind(StrEnum):
    """What was changed."""

    ALIGNMENT = "alignment"
    """The blocks of a message stand in another order."""
    ORDER_ANNOTATION = "order_annotation"
    """The order of relevance was added."""
    BLOCK = "block"
    """A block whose whole text stands elsewhere gave way to a location annotation."""
    PASSAGE = "passage"
    """Lines that stand elsewhere gave way to a location annotation."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a stretch of text stands.

    Attributes:
        message: The message, counted from 0.
        part: The content part, counted from 0; None where the content is one string.
        start: The first character.
        end: The character after the last.
    """

    message: int
    part: int | None
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Edit:
    """One change to the text of a message.

    Attributes:
        kind: What was changed.
        place: Where the new text stands once this edit and those before it are made.
        original: What stood there before.
        source: Where the text that was left out stands in the messages that go out, without the marker of a
            block, and once where it was repeated. None where nothing was.
    """

    kind: EditKind
    place: Place
    original: str = field(repr=False)
    source: Place | None = None


@dataclass(frozen=True, slots=True)
class Rewriting:
    """A list of messages as it goes out.

    Attributes:
        messages: As many as were given. Unchanged ones are those given, changed ones are copies.
        edits: What was changed, in the order in which it was.
        plan: How the blocks were planned that may have been aligned; None where none were.
    """

    messages: list[Message]
    edits: tuple[Edit, ...] = ()
    plan: Plan | None = None

    def restore(self) -> list[Message]:
        """Return the messages as they were given."""
        return restore(self.messages, self.edits)


def checked_messages(messages: Iterable[Message]) -> list[Message]:
    """Return a request's messages as a list.

    Raises:
        TypeError: If it is one message, a text, or no iterable at all.
    """
    if isinstance(messages, str | Mapping) or not isinstance(messages, Iterable):
        raise TypeError(f"messages must be a list of messages, not {type(messages).__name__}")
    return list(messages)


def message_views(messages: Iterable[object]) -> list[Mapping[str, Any]]:
    """Return messages as mappings: an answer of the openai package may stand in a history as it came.

    Raises:
        TypeError: If there is anything else among them, such as another library's message objects.
    """
    return [_view(place, message) for place, message in enumerate(messages)]


def _view(place: int, message: object) -> Mapping[str, Any]:
    if isinstance(message, Mapping):
        return message
    dump = getattr(message, "model_dump", None)
    view = dump(exclude_none=True) if callable(dump) else None
    # Other libraries' messages are pydantic objects too, but have the role or the text under other names.
    # An answer may have no text beside its tool calls.
    if (
        not isinstance(view, Mapping)
        or not isinstance(role := view.get("role"), str)
        or ("content" not in view and role != "assistant")
    ):
        raise TypeError(
            f"messages[{place}] must be a mapping with role and content, not {type(message).__name__}: "
            "convert messages of other libraries, those of LangChain for instance with "
            "langchain_core.messages.convert_to_openai_messages"
        )
    return view


def restore(messages: Iterable[Message], edits: Iterable[Edit]) -> list[Message]:
    """Undo edits, the last one first.

    Args:
        messages: Those that went out; they stay as they are.
        edits: All that were made to them, in their order.

    Raises:
        ValueError: If an edit's place is not there.
    """
    restored = list(messages)
    for edit in reversed(tuple(edits)):
        place = edit.place
        text = text_at(restored, place)
        if not 0 <= place.start <= place.end <= len(text):
            raise ValueError(f"message {place.message} has no characters {place.start} to {place.end}")
        text = text[: place.start] + edit.original + text[place.end :]
        restored[place.message] = with_text(restored[place.message], place.part, text)
    return restored


def text_at(messages: list[Message], place: Place) -> str:
    """Return the whole text in which a place lies.

    Raises:
        ValueError: If there is none.
    """
    try:
        content = messages[place.message]["content"]
        text = content if place.part is None else content[place.part]["text"]
    except (IndexError, KeyError, TypeError) as error:
        raise ValueError(f"message {place.message} has no text at part {place.part}") from error
    if not isinstance(text, str):
        raise ValueError(f"message {place.message} has no text at part {place.part}")
    return text


def with_text(message: Message, part: int | None, text: str) -> Message:
    """Return a copy of a message with another text as its content, or as one part of it."""
    if part is None:
        return {**message, "content": text}
    parts = list(message["content"])
    parts[part] = {**parts[part], "text": text}
    return {**message, "content": tuple(parts) if isinstance(message["content"], tuple) else parts}
