"""Arrays of JSON objects that have a text field, found with the places of all that they hold."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from contextpilot_integrations.recognition.blocks import Form, Found, unescape
from contextpilot_integrations.recognition.claims import LONGEST_NAME, Claim, is_json

__all__ = ["STRING", "json_arrays"]

_PLAIN = r'[^"\\\x00-\x1f]*+'
STRING = re.compile(rf'"{_PLAIN}(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{{4}}){_PLAIN})*+"')
"""A JSON string."""

_SPACE = r"[ \t\n\r]*+"
# A quotation mark that begins no string is a token too: what holds it is no JSON.
_TOKEN = re.compile(rf'(?P<string>{STRING.pattern})(?P<key>{_SPACE}:{_SPACE})?+|[\[\]{{}}"]')
_ARRAY_START = re.compile(rf"^[ \t]*+(?P<array>\[){_SPACE}\{{", re.MULTILINE)
_WHOLE_OBJECT_START = re.compile(rf"{_SPACE}(?=\{{)")
_COMMA = re.compile(rf"{_SPACE},{_SPACE}")
_NOTHING = re.compile(_SPACE)
_NUMBER = re.compile(rf"-?[0-9]{{1,20}}(?={_SPACE}[,}}])")

_TEXT_FIELDS = ("text", "content", "page_content", "snippet")
_NAMING_FIELDS = ("id", "title", "source", "url")
_FIELDS = {f'"{name}"': name for name in (*_TEXT_FIELDS, *_NAMING_FIELDS)}


def json_arrays(text: str) -> Iterator[Claim]:
    """Yield the objects of arrays that begin a line, or stand right inside the object that the text is."""
    if whole := _WHOLE_OBJECT_START.match(text):
        arrays, end = _read(text, whole.end())
        if arrays and _NOTHING.fullmatch(text, end):
            for array in arrays:
                yield from _claims(text, array)
            return
    reached = 0
    while start := _ARRAY_START.search(text, reached):
        # Where nothing is found, what was read is not read again, so that the time stays linear.
        arrays, reached = _read(text, start.start("array"))
        for array in arrays:
            yield from _claims(text, array)


@dataclass(slots=True)
class _Object:
    start: int
    end: int = 0
    strings: dict[str, tuple[int, int]] = field(default_factory=dict)  # Where their insides stand.
    numbers: dict[str, str] = field(default_factory=dict)
    is_message: bool = False


def _read(text: str, start: int) -> tuple[list[list[_Object]], int]:
    """Read the array or object that begins at a place.

    Returns:
        The arrays of nothing but objects that it is, or has as its values, none if it is no JSON; and up to
        where it was read.
    """
    nested: list[str] = []
    arrays: list[list[_Object]] = []
    array: list[_Object] | None = None
    array_depth = 0
    for token in _TOKEN.finditer(text, start):
        kind = text[token.start()]
        if kind == '"':
            if token["string"] is None:
                return [], token.end()
            if array and token["key"] and len(nested) == array_depth + 1:
                _read_field(text, token, array[-1])
        elif kind in "[{":
            nested.append(kind)
            if kind == "[" and (len(nested) == 1 or (len(nested) == 2 and nested[0] == "{")):
                array, array_depth, array_end = [], len(nested), token.end()
            elif kind == "{" and array is not None and len(nested) == array_depth + 1:
                if not (_COMMA if array else _NOTHING).fullmatch(text, array_end, token.start()):
                    array = None
                else:
                    array.append(_Object(token.start()))
        else:
            if not nested or nested.pop() + kind not in ("[]", "{}"):
                return [], token.end()
            if array and kind == "}" and len(nested) == array_depth:
                array[-1].end = array_end = token.end()
            elif array is not None and len(nested) == array_depth - 1:
                if array and _NOTHING.fullmatch(text, array_end, token.start()):
                    arrays.append(array)
                array = None
            if not nested:
                return (arrays if is_json(text[start : token.end()]) else []), token.end()
    return [], len(text)


def _read_field(text: str, key: re.Match[str], owner: _Object) -> None:
    if key["string"] == '"role"':
        owner.is_message = True
    elif name := _FIELDS.get(key["string"]):
        if string := STRING.match(text, key.end()):
            owner.strings[name] = string.start() + 1, string.end() - 1
        elif number := _NUMBER.match(text, key.end()):
            owner.numbers[name] = number[0]


def _claims(text: str, array: list[_Object]) -> Iterator[Claim]:
    fields = [[name for name in _TEXT_FIELDS if name in item.strings] for item in array]
    if not all(fields):
        return
    is_chat = any(item.is_message for item in array)
    for item, (name, *_) in zip(array, fields, strict=True):
        start, end = item.strings[name]
        found = Found(item.start, item.end, start, end, _name(text, item), in_json=True)
        yield Claim(Form.JSON, item.start, item.end, found, movable=not is_chat)


def _name(text: str, item: _Object) -> str:
    for name in _NAMING_FIELDS:
        if name in item.numbers:
            return f"{name} {item.numbers[name]}"
        start, end = item.strings.get(name, (0, 0))
        if 0 < end - start <= LONGEST_NAME and (shown := unescape(text[start:end])).isprintable():
            return f'{name} "{shown}"'
    return ""
