"""Conversations: never send twice what the model can see, and never drop what it cannot.

The message list itself is the truth. What is left out of a message stands verbatim in those that go out
before it, or earlier in itself; neither a session id nor anything remembered counts as proof, for a history
may have been trimmed, edited or summarised. So a message's text depends on the messages up to it alone, and
stays the same in every later request. Only the order of a first message's blocks depends on what the engine
has cached: it is remembered under all that stands up to that message.

Alignment is for messages before which the model has said nothing. Behind an answer the prompt's prefix is the
conversation, which no other request shares: there the order of relevance costs nothing, and is kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from contextpilot_integrations.block import MARKER_START, ContextBlock, checked_blocks
from contextpilot_integrations.conversation_memory import Conversation, Decision, conversation_keys
from contextpilot_integrations.edits import Message, Rewriting, checked_messages, message_views, with_text
from contextpilot_integrations.message_blocks import (
    MessageBlocks,
    MessageTexts,
    find_message_blocks,
    reorder,
    texts_of,
)
from contextpilot_integrations.namespace import Namespace
from contextpilot_integrations.pilot import ContextPilot, estimate_tokens
from contextpilot_integrations.plan import Outcome, Plan
from contextpilot_integrations.recognition import Found, Texts
from contextpilot_integrations.segments import Segment, segments
from contextpilot_integrations.wording import Wording, quoted

__all__ = ["rewrite"]

_MAX_NAME = 60  # Characters of a tool call that an annotation repeats.
_PLAIN = re.compile(r"[\w./:@~+-]+")


def rewrite(
    messages: Iterable[Message],
    *,
    pilot: ContextPilot | None = None,
    namespace: Namespace = Namespace(),
    blocks: Iterable[ContextBlock] = (),
    request_id: Hashable | None = None,
) -> Rewriting:
    """Rewrite a chat's messages so that they cost as little prefill as they can.

    In tool messages, and in blocks that are recognised in the user's, text that stands verbatim before them
    gives way to an annotation that says where. System and assistant messages and the user's own words are
    never cut. Of a first message, be it the system's, the blocks are aligned, and the order of relevance is
    added behind them.

    The first messages of a conversation are rewritten alike whether more follow or not. Rewriting what was
    rewritten changes nothing where blocks are recognised by their form. One that only ``blocks`` told is no
    longer known once lines of it were left out: then more may be left out around it. To leave out such
    blocks as a whole or not at all would mend that, and cost what their lines save.

    Args:
        messages: The whole list as OpenAI's API takes it; it and they stay as they are.
        pilot: Who aligns, and remembers what was sent. None: a new one, which has nothing to align with.
        namespace: Whose cache they meet. Its preamble is what stands before the first message: the tools.
        blocks: Context blocks whose texts stand verbatim in the messages after the last answer, or in any
            tool's result, where the caller knows them; others are recognised by their form. Give those of
            results each time, for then what is left out does not depend on what is remembered.
        request_id: The id under which the engine may report the request's eviction.

    Raises:
        TypeError: If ``messages`` holds anything but messages, ``blocks`` anything but context blocks, or
            if ``pilot`` is something else.
    """
    if not isinstance(pilot, ContextPilot | None):
        raise TypeError(f"pilot must be a ContextPilot, not {type(pilot).__name__}")
    given = checked_messages(messages)
    views = message_views(given)
    known = Texts(block.text for block in checked_blocks(blocks))
    pilot = pilot or ContextPilot()
    try:
        return _Rewriter(pilot, namespace, known, request_id).rewritten(given, views)
    except Exception as error:
        pilot.report_failure(error, "rewriting")
        return Rewriting(given)


class _Turn(NamedTuple):
    """A message that is taken up."""

    place: int
    message: Mapping[str, Any]
    key: bytes
    is_new: bool  # Whether no answer follows it: it was not sent before.

    @property
    def role(self) -> object:
        return self.message.get("role")

    @property
    def is_data(self) -> bool:
        """Whether it holds no one's own words."""
        return self.role in ("tool", "function")

    @property
    def is_system(self) -> bool:
        return self.role in ("system", "developer")


class _Rewriter:
    """Rewrites the messages of one request."""

    def __init__(
        self, pilot: ContextPilot, namespace: Namespace, known: Texts, request_id: Hashable | None
    ) -> None:
        self._pilot = pilot
        self._namespace = namespace
        self._known = known
        self._plan: Plan | None = None
        self._request_id = request_id
        count = pilot.token_counter or estimate_tokens
        self._wording = Wording(pilot.location_template, pilot.passage_template, count)

    def rewritten(self, given: list[Message], views: Sequence[Message]) -> Rewriting:
        memory = self._pilot.conversations
        keys = conversation_keys(self._namespace, views)
        talk = memory.take(keys) or Conversation()
        last_answer = max((n for n, view in enumerate(views) if view.get("role") == "assistant"), default=-1)
        outgoing = list(given)
        for place, texts in talk.changed.items():
            outgoing[place] = _with_texts(views[place], texts)
        for place in range(talk.length, len(given)):
            turn = _Turn(place, views[place], keys[place], place > last_answer)
            if texts := self._take_up(talk, turn, outgoing):
                talk.changed[place] = texts
                outgoing[place] = _with_texts(turn.message, texts)
                if turn.is_new and not talk.answered:
                    # What goes out now has its order, should it be rewritten once more.
                    *_, sent = conversation_keys(self._namespace, outgoing[: place + 1])
                    memory.decide(sent, Decision())
            talk.length += 1
        edits = tuple(talk.edits)
        if keys:
            memory.put(keys[-1], talk)
        return Rewriting(outgoing, edits, self._plan)

    def _take_up(self, talk: Conversation, turn: _Turn, outgoing: Sequence[Message]) -> MessageTexts:
        """Take up a conversation's next message, and return the texts that change."""
        texts = given = texts_of(turn.message)
        blocks, order = self._decide(talk, turn, given, outgoing)
        if order:
            annotation = self._order_annotation(blocks, texts)
            blocks, texts, edits = reorder(blocks, texts, order, annotation, turn.place)
            talk.edits += edits
        _note(talk, turn, blocks, texts)
        name = _result_name(talk, turn.message) if turn.is_data else ""
        cuttable = turn.is_data or turn.role == "user"
        sent: MessageTexts = {}
        for part, text in texts.items():
            pieces = segments(blocks, part, text, name=name, cuttable=cuttable, is_data=turn.is_data)
            whole = Segment(0, len(text), cuttable=True, name=name) if turn.is_data else None
            sent[part], edits = talk.transcript.add(
                text, pieces, turn.place, part, self._wording, whole=whole
            )
            talk.edits += edits
        return {part: text for part, text in sent.items() if text != given[part]}

    def _decide(
        self, talk: Conversation, turn: _Turn, texts: MessageTexts, outgoing: Sequence[Message]
    ) -> tuple[MessageBlocks, tuple[int, ...]]:
        """Find a message's blocks, and the order in which to send them."""
        if turn.role == "assistant":
            return MessageBlocks(), ()
        memory = self._pilot.conversations
        decided = memory.decided(turn.key)
        if decided is not None and decided.blocks is not None:
            return decided.blocks, decided.order
        # Also in tools' earlier results, so that who remembers nothing of them leaves out the same.
        known = self._known if turn.is_new or turn.is_data else Texts()
        blocks = find_message_blocks(
            turn.message,
            texts,
            is_data=turn.is_data,
            known=known,
            shown=talk.shown,
            returned=talk.returned,
            order_template=self._pilot.order_template,
        )
        order: tuple[int, ...] = ()
        if decided is None and not talk.answered and not talk.has_blocks and (turn.is_new or turn.is_system):
            order = self._order(blocks, texts, outgoing[: turn.place])
        if known or blocks.movable:
            memory.decide(turn.key, Decision(blocks, order))
        return blocks, order

    def _order(
        self, blocks: MessageBlocks, texts: MessageTexts, before: Sequence[Message]
    ) -> tuple[int, ...]:
        """Return the order in which to send a message's blocks; empty where it is the order given."""
        movable = blocks.movable
        if not movable or not _are_told_apart(blocks, texts) or self._is_annotated(blocks, texts):
            return ()
        part, first = movable[0]
        preamble = json.dumps(
            [self._namespace.preamble, *before, texts[part][: first.start]], ensure_ascii=False, default=repr
        )
        namespace = Namespace(
            endpoint=self._namespace.endpoint,
            model=self._namespace.model,
            tenant=self._namespace.tenant,
            preamble=preamble,
        )
        self._plan = plan = self._pilot.prepare(
            [_block(texts[part], found) for part, found in movable],
            namespace=namespace,
            request_id=self._request_id,
        )
        return (*plan.ranks, *plan.duplicates) if plan.outcome is Outcome.ALIGNED else ()

    def _is_annotated(self, blocks: MessageBlocks, texts: MessageTexts) -> bool:
        """Tell whether someone says already what the order of a message's blocks was."""
        start = self._pilot.order_template.partition("{order}")[0].strip()
        return bool(start) and any(start in text for text in texts.values())

    def _order_annotation(self, blocks: MessageBlocks, texts: MessageTexts) -> str:
        order = " > ".join(_name(texts[part], found) for part, found in blocks.movable)
        return self._pilot.order_template.replace("{order}", order)


def _with_texts(message: Message, texts: MessageTexts) -> Message:
    for part, text in texts.items():
        message = with_text(message, part, text)
    return message


def _name(text: str, found: Found) -> str:
    return found.name or f'"{quoted(text[found.text_start : found.text_end], in_json=found.in_json)}"'


def _are_told_apart(blocks: MessageBlocks, texts: MessageTexts) -> bool:
    """Tell whether blocks that differ are called differently."""
    called: dict[str, str] = {}
    return all(
        called.setdefault(_name(texts[part], found), text) == text
        for part, found in blocks.movable
        for text in (texts[part][found.start : found.end],)
    )


def _block(text: str, found: Found) -> ContextBlock:
    """Return the context block that stands for a found one in the index: its bytes as they are sent."""
    label = found.name.removeprefix(MARKER_START).removesuffix("]")
    if found.name != label:
        return ContextBlock(label, text[found.text_start : found.text_end])
    return ContextBlock("", text[found.start : found.end])


def _note(talk: Conversation, turn: _Turn, blocks: MessageBlocks, texts: MessageTexts) -> None:
    """Take note of what later messages have to know of this one."""
    if turn.role == "assistant":
        talk.answered = True
        for call in turn.message.get("tool_calls") or ():
            if isinstance(call, Mapping) and isinstance(call.get("id"), str):
                talk.results[call["id"]] = _call_name(call.get("function"))
    talk.has_blocks = talk.has_blocks or bool(blocks.groups)
    for part, group in blocks.groups:
        talk.shown.add_shown(texts[part], [group])
        if turn.is_data:
            talk.returned.update(found.text_in(texts[part]) for found in group.found)


def _result_name(talk: Conversation, message: Mapping[str, Any]) -> str:
    """Return what the conversation shows for a tool's result."""
    call_id = message.get("tool_call_id")
    name = talk.results.get(call_id, "") if isinstance(call_id, str) else ""
    if name:
        talk.named[name] += 1
        if talk.named[name] > 1:
            return f"{name} (result {talk.named[name]})"
    return name


def _call_name(function: object) -> str:
    """Return what a tool's call shows: its one argument, such as a path, else the call, else its name.

    What could be read as more than a name stands in quotes.
    """
    if not isinstance(function, Mapping):
        return ""
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str) or not isinstance(arguments, str):
        return ""
    try:
        values = [*json.loads(arguments).values()]
    except (ValueError, AttributeError, RecursionError):
        values = []
    if len(values) == 1 and isinstance(values[0], str) and _is_short(values[0]):
        if _PLAIN.fullmatch(values[0]):
            return values[0]
        if '"' not in values[0]:
            return f'"{values[0]}"'
    return next((shown for shown in (f"{name}({arguments})", name) if _is_short(shown)), "")


def _is_short(name: str) -> bool:
    return 0 < len(name) <= _MAX_NAME and name.isprintable()
