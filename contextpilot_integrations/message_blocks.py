"""The blocks of a chat message: where they stand, and how they are put in another order."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeAlias

from contextpilot_integrations.edits import Edit, EditKind, Message, Place
from contextpilot_integrations.recognition import Blocks, Form, Found, Texts, find_blocks, is_json

__all__ = ["MessageBlocks", "MessageTexts", "find_message_blocks", "reorder", "texts_of"]

MessageTexts: TypeAlias = dict[int | None, str]
"""A message's texts by content part; under None where the content is one string."""

_MIN_PART = 80  # Characters from which a content part counts as a block of its own.
_CLOSING = {Form.XML: re.compile(r"\s*</documents>"), Form.JSON: re.compile(r"\s*\]")}


@dataclass(frozen=True, slots=True)
class MessageBlocks:
    """The blocks of a message.

    Attributes:
        groups: Those that stand together, each with the part in which they do, in order.
        one_per_part: Whether each stands alone in a part, and the question in the last.
    """

    groups: tuple[tuple[int | None, Blocks], ...] = ()
    one_per_part: bool = False

    @property
    def movable(self) -> tuple[tuple[int | None, Found], ...]:
        """The blocks that may change places with one another, each with its part; the first such group's.

        Empty where there are fewer than two.
        """
        if self.one_per_part:
            return tuple((part, group.found[0]) for part, group in self.groups)
        for part, group in self.groups:
            if group.movable and len(group.found) > 1:
                return tuple((part, found) for found in group.found)
        return ()


def texts_of(message: Message) -> MessageTexts:
    """Return a message's texts."""
    content = message.get("content")
    if isinstance(content, str):
        return {None: content}
    if not isinstance(content, list | tuple):
        return {}
    return {
        place: part["text"]
        for place, part in enumerate(content)
        if isinstance(part, Mapping) and isinstance(part.get("text"), str)
    }


def find_message_blocks(
    message: Message,
    texts: MessageTexts,
    *,
    is_data: bool,
    known: Texts,
    shown: Texts,
    returned: Mapping[str, int],
    order_template: str,
) -> MessageBlocks:
    """Find the blocks of a message.

    Args:
        message: The message.
        texts: Its texts.
        is_data: Whether it holds no one's own words, as a tool's result.
        known: Texts that stand in it verbatim and are blocks.
        shown: The texts of blocks that earlier messages showed.
        returned: How often the texts of blocks stand in tools' results before it. Known as often only, they
            are someone's own words here: a document pasted, to ask whether it is the same.
        order_template: The wording of the order annotation.
    """
    if not is_data and _is_one_block_per_part(message, texts):
        *parts, _question = texts
        return MessageBlocks(tuple((part, _whole_part(texts[part])) for part in parts), one_per_part=True)
    groups = tuple(
        (part, group)
        for part, text in texts.items()
        for group in find_blocks(
            text, known=known, shown=shown, whole_text_is_data=is_data, order_template=order_template
        )
    )
    return MessageBlocks(groups if is_data else tuple(_as_often_as_known(groups, texts, known, returned)))


def _as_often_as_known(
    groups: Sequence[tuple[int | None, Blocks]],
    texts: MessageTexts,
    known: Texts,
    returned: Mapping[str, int],
) -> Iterator[tuple[int | None, Blocks]]:
    """Pass over known texts where they stand more often than they are known: someone quotes them there."""
    shown: Counter[str] = Counter()
    for part, group in groups:
        if group.form is not Form.KNOWN:
            shown.update(found.text_in(texts[part]) for found in group.found)
    for part, group in groups:
        if group.form is not Form.KNOWN:
            yield part, group
            continue
        found = []
        for one in group.found:
            text = one.text_in(texts[part])
            if shown[text] + returned.get(text, 0) < known.count(text):
                found.append(one)
            shown[text] += 1
        if found:
            yield part, replace(group, found=tuple(found))


def reorder(
    blocks: MessageBlocks, texts: MessageTexts, order: Sequence[int], annotation: str, message: int
) -> tuple[MessageBlocks, MessageTexts, list[Edit]]:
    """Put a message's movable blocks in another order, and say behind them what it was.

    Args:
        blocks: The message's.
        texts: Its texts.
        order: The places of the movable blocks, in the order to send.
        annotation: What to say.
        message: The message's place in the conversation.

    Returns:
        The blocks as they stand then, the texts, and the edits.
    """
    if blocks.one_per_part:
        return _reorder_parts(blocks, texts, order, annotation, message)
    return _reorder_text(blocks, texts, order, annotation, message)


def _reorder_text(
    blocks: MessageBlocks, texts: MessageTexts, order: Sequence[int], annotation: str, message: int
) -> tuple[MessageBlocks, MessageTexts, list[Edit]]:
    part, first = blocks.movable[0]
    place, group = next(
        (place, group)
        for place, (at, group) in enumerate(blocks.groups)
        if at == part and first in group.found
    )
    text, start, end = texts[part], group.found[0].start, _end(texts[part], group)
    gaps = [text[a.end : b.start] for a, b in pairwise(group.found)]
    moved, position = [], start
    for old, gap in zip(order, [*gaps, ""], strict=True):
        found = group.found[old]
        moved.append(_shifted(found, position - found.start))
        position += found.end - found.start + len(gap)
    behind = f"\n\n{annotation}"
    edits = [
        Edit(EditKind.ALIGNMENT, Place(message, part, start, position), text[start:position]),
        Edit(EditKind.ORDER_ANNOTATION, Place(message, part, end, end + len(behind)), ""),
    ]
    text = text[:start] + group.reordered(text, order) + text[position:end] + behind + text[end:]
    groups = list(blocks.groups)
    groups[place] = part, replace(group, found=tuple(moved))
    for later in range(place + 1, len(groups)):
        if groups[later][0] == part:
            other = groups[later][1]
            behind_it = tuple(_shifted(found, len(behind)) for found in other.found)
            groups[later] = part, replace(other, found=behind_it)
    return MessageBlocks(tuple(groups)), {**texts, part: text}, edits


def _reorder_parts(
    blocks: MessageBlocks, texts: MessageTexts, order: Sequence[int], annotation: str, message: int
) -> tuple[MessageBlocks, MessageTexts, list[Edit]]:
    parts = [part for part, _ in blocks.groups]
    new, edits = dict(texts), []
    for part, old in zip(parts, order, strict=True):
        new[part] = texts[parts[old]]
        if old != parts.index(part):
            place = Place(message, part, 0, len(new[part]))
            edits.append(Edit(EditKind.ALIGNMENT, place, texts[part]))
    groups = tuple((part, blocks.groups[old][1]) for part, old in zip(parts, order, strict=True))
    *_, question = texts
    before = f"{annotation}\n\n"
    edits.append(Edit(EditKind.ORDER_ANNOTATION, Place(message, question, 0, len(before)), ""))
    new[question] = before + texts[question]
    return replace(blocks, groups=groups), new, edits


def _is_one_block_per_part(message: Message, texts: MessageTexts) -> bool:
    """Tell whether a message has one block in each of its parts, and then a question.

    So it is where there are at least two long texts before the last, and nothing but texts: beside pictures,
    and in twos, what stands there is more likely someone's own words.
    """
    return (
        len(texts) > 2
        and len(texts) == len(message["content"])
        and all(len(text) >= _MIN_PART for text in [*texts.values()][:-1])
        and all(part.keys() == {"type", "text"} for part in message["content"])
    )


def _whole_part(text: str) -> Blocks:
    for group in find_blocks(text, whole_text_is_data=True):
        if (group.found[0].start, group.found[-1].end) == (0, len(text)) and len(group.found) == 1:
            return group
    return Blocks(Form.KNOWN, (Found(0, len(text), 0, len(text)),), movable=True)


def _end(text: str, group: Blocks) -> int:
    """Return where blocks end with all that is around them: a closing tag, or the rest of their JSON."""
    end = group.found[-1].end
    if group.form is Form.JSON and is_json(text):
        return len(text)
    closing = _CLOSING[group.form].match(text, end) if group.form in _CLOSING else None
    return closing.end() if closing else end


def _shifted(found: Found, by: int) -> Found:
    return replace(
        found,
        start=found.start + by,
        end=found.end + by,
        text_start=found.text_start + by,
        text_end=found.text_end + by,
    )
