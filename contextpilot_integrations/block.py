"""Context blocks: what a block is, what it is called, and how it is written into a prompt.

A block's identity, label and rendering depend on the block alone, never on its rank, score or the
date, so the same block has the same bytes in every prompt: that is what a prefix cache compares.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import index as as_int
from typing import Any, TypeAlias

__all__ = ["MARKER_START", "BlockId", "ContextBlock", "checked_blocks", "labels_of", "marker"]

BlockId: TypeAlias = "str | int | tuple[BlockId, ...]"

MARKER_START = "[CB_"
_BASE32 = "abcdefghijklmnopqrstuvwxyz234567"
_PAIRS = [first + second for first in _BASE32 for second in _BASE32]
_PLAIN = re.compile(r"[A-Za-z0-9_.-]{1,8}")


def marker(label: str) -> str:
    """Return what stands for a block in a prompt, in front of its text and in annotations."""
    return f"{MARKER_START}{label}]"


@dataclass(frozen=True)
class ContextBlock:
    """One unit of external context: a retrieved document, a chunk, a memory, a tool result.

    Blocks are equal when id and text are equal: the same id with another text is another block.

    Args:
        id: A string, an integer of any size (also a numpy one), or a tuple of these.
        text: What the model reads. May be empty.
        metadata: Carried along untouched; no part of the identity.

    Raises:
        TypeError: If ``id`` or ``text`` is of another type.
    """

    id: BlockId
    text: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise TypeError(f"text of block {_shown(self.id)} must be a str, not {type(self.text).__name__}")
        object.__setattr__(self, "id", _normalized(self.id))

    def __repr__(self) -> str:
        # Neither text nor metadata: they may be confidential, and long.
        return f"ContextBlock(id={_shown(self.id)})"

    @cached_property
    def digest(self) -> bytes:
        """16 bytes that stand for (id, text), equal on every machine."""
        hasher = _hasher(self.id)
        hasher.update(self.text.encode("utf-8", "surrogatepass"))
        return hasher.digest()

    @cached_property
    def label(self) -> str:
        """The id where it is at most 8 plain characters, else 6 base32 characters of the digest."""
        return _plain(self.id) or _short(self.digest)

    def adopt_digest(self, equal: ContextBlock) -> None:
        """Take digest and label from an equal block; working them out takes ten times as long."""
        vars(self).update(digest=equal.digest, label=equal.label)

    def render(self) -> str:
        """Return the block as it stands in every prompt: its marker, then its text verbatim."""
        return f"{marker(self.label)} {self.text}" if self.text else marker(self.label)


def checked_blocks(blocks: Iterable[ContextBlock]) -> tuple[ContextBlock, ...]:
    """Return a request's blocks as a tuple.

    Raises:
        TypeError: If it is no iterable of context blocks.
    """
    if not isinstance(blocks, Iterable):
        raise TypeError(f"blocks must be an iterable of ContextBlock objects, not {type(blocks).__name__}")
    checked = tuple(blocks)
    for block in checked:
        if not isinstance(block, ContextBlock):
            raise TypeError(f"blocks must be ContextBlock objects, not {type(block).__name__}")
    return checked


def labels_of(id: BlockId) -> Callable[[Iterable[str]], Iterator[str]]:
    """Return what gives the labels of the blocks of one id whose texts grow piece by piece.

    Made for comparing one id with many texts: from the pieces it yields the label of the first as a text, of
    the first two, and so on. A piece costs about a microsecond, however many went before.

    Raises:
        TypeError: If ``id`` is of another type than a block's.
    """
    normalized = _normalized(id)
    if plain := _plain(normalized):
        return lambda pieces: (plain for _ in pieces)
    start = _hasher(normalized)

    def labels(pieces: Iterable[str]) -> Iterator[str]:
        hasher = start.copy()
        for piece in pieces:
            hasher.update(piece.encode("utf-8", "surrogatepass"))
            yield _short(hasher.digest())

    return labels


def _plain(id: BlockId) -> str:
    """Return an id that can be shown as it is; an empty string for any other."""
    if isinstance(id, str) and _PLAIN.fullmatch(id):
        return id
    if isinstance(id, int) and -(10**7) < id < 10**8:
        return str(id)
    return ""


def _short(digest: bytes) -> str:
    """Return the first 6 base32 characters, two at a time; `base64` takes ten times as long."""
    bits = int.from_bytes(digest[:4], "big") >> 2
    return _PAIRS[bits >> 20] + _PAIRS[bits >> 10 & 1023] + _PAIRS[bits & 1023]


def _hasher(id: BlockId) -> hashlib.blake2b:
    encoded = _encoded(id)
    return hashlib.blake2b(len(encoded).to_bytes(8, "big") + encoded, digest_size=16)


def _normalized(value: object) -> BlockId:
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, tuple):
        return tuple(_normalized(part) for part in value)
    try:
        return as_int(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(
            f"a block id must be a str, an int or a tuple of these, not {type(value).__name__}; "
            "pass str(id) for other types"
        ) from None


def _shown(value: object) -> str:
    try:
        return repr(value)
    except ValueError:  # An int of more than 4,300 digits, perhaps within a tuple.
        return f"<{type(value).__name__} too long to show>"


def _encoded(value: BlockId) -> bytes:
    """Encode an id so that no two ids look alike: "1" beside 1, ("a", "b") beside ("ab",)."""
    if isinstance(value, str):
        raw = value.encode("utf-8", "surrogatepass")
        return b"s%d:%b" % (len(raw), raw)
    if isinstance(value, tuple):
        return b"t%d:%b" % (len(value), b"".join(map(_encoded, value)))
    return b"i%x:" % value
