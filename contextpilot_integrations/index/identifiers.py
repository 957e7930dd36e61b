"""Ids of blocks and requests as bytes and back, without loss: "1" stays apart from 1."""

from __future__ import annotations

import struct
from collections.abc import Hashable

__all__ = ["decode_all", "encode"]

# A tag for the type, then how many bytes follow.
_HEAD = struct.Struct("<cQ")
# Hashing a nested tuple recurses in C without a guard, so a file must not choose the depth.
_LEVELS = 64


def encode(value: Hashable) -> bytes:
    """Encode one id.

    Args:
        value: A str, an int of any size, bytes, None, or a tuple of these. Subclasses are other types,
            since what they add would be lost.

    Raises:
        TypeError: If it is or holds a value of another type.
        ValueError: If tuples are nested deeper than 64 levels.
    """
    return _encode(value, _LEVELS)


def decode_all(data: bytes) -> list[Hashable]:
    """Decode ids that were encoded one behind the other.

    Raises:
        ValueError: If the bytes are not what `encode` makes.
    """
    return _decode(data, 0, len(data), _LEVELS)


def _encode(value: Hashable, levels: int) -> bytes:
    if type(value) is bytes:
        tag, raw = b"b", value
    elif type(value) is str:
        tag, raw = b"s", value.encode("utf-8", "surrogatepass")
    elif type(value) is int:
        tag, raw = b"i", value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    elif type(value) is tuple:
        if not levels:
            raise ValueError(f"an id nests tuples deeper than {_LEVELS} levels")
        tag, raw = b"t", b"".join(_encode(part, levels - 1) for part in value)
    elif value is None:
        tag, raw = b"n", b""
    else:
        raise TypeError(
            "an id to be saved must be a str, an int, bytes, None or a tuple of these, "
            f"not {type(value).__name__}"
        )
    return _HEAD.pack(tag, len(raw)) + raw


def _decode(data: bytes, start: int, end: int, levels: int) -> list[Hashable]:
    values: list[Hashable] = []
    while start < end:
        if end - start < _HEAD.size:
            raise ValueError("an id is cut off")
        tag, length = _HEAD.unpack_from(data, start)
        start += _HEAD.size
        if length > end - start:
            raise ValueError("an id is cut off")
        stop = start + length
        if tag == b"b":
            values.append(data[start:stop])
        elif tag == b"s":
            values.append(data[start:stop].decode("utf-8", "surrogatepass"))
        elif tag == b"i" and length:
            values.append(int.from_bytes(data[start:stop], "little", signed=True))
        elif tag == b"t" and levels:
            values.append(tuple(_decode(data, start, stop, levels - 1)))
        elif tag == b"n" and not length:
            values.append(None)
        else:
            raise ValueError(f"an id of unknown kind {tag!r}")
        start = stop
    return values
