"""How location annotations are worded, what they quote, and what looks like one."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

from contextpilot_integrations.recognition import escape, unescape

__all__ = ["Wording", "first_line", "is_like_annotation", "quoted", "shortened"]

_MAX_QUOTE = 40  # Characters.
_MAX_ANNOTATION = 1_000  # Characters beside the wording: a name, a quote, and their escapes.


@dataclass(frozen=True, slots=True)
class Wording:
    """How the annotations are worded, and what they cost.

    Attributes:
        location: For a block.
        passage: For a passage.
        count: Counts the tokens of a text.
    """

    location: str
    passage: str
    count: Callable[[str], int]


def quoted(text: str, *, in_json: bool) -> str:
    """Return how a text begins: whole words of its first line, if there are any that are short enough."""
    return shortened(first_line(text, in_json=in_json))


def first_line(text: str, *, in_json: bool) -> str:
    """Return a text's first line as it is quoted: without spaces around it, and not escaped."""
    line = text.lstrip().partition("\\n" if in_json else "\n")[0]
    if in_json:
        with suppress(ValueError):
            line = unescape(line)
    line = next(iter(line.strip().splitlines()), "")
    # Half of a surrogate pair stands escaped where it is quoted from, and could not be sent otherwise.
    return line.encode("utf-8", "backslashreplace").decode()


def shortened(line: str) -> str:
    """Return the beginning of a line: whole words, if there are any that are short enough."""
    if len(line) <= _MAX_QUOTE:
        return line
    start = line[: _MAX_QUOTE + 1]
    return start[: start.rfind(" ")].rstrip() if " " in start else start[:_MAX_QUOTE]


def is_like_annotation(line: str, wording: Wording) -> bool:
    """Tell whether a line could be one of our annotations, whoever wrote it.

    It stays as it is, and nothing points at it: so rewriting twice is rewriting once.
    """
    longest = _MAX_ANNOTATION + len(wording.location) + len(wording.passage)
    return len(line) <= longest and _look_alike(wording.location, wording.passage).fullmatch(line) is not None


@lru_cache(maxsize=64)
def _look_alike(*templates: str) -> re.Pattern[str]:
    forms = [form for t in templates for form in (t, escape(t))]
    ranges = r"(?:[0-9]+ times )?(?:lines? [0-9]+(?:-[0-9]+)?|[0-9]+ items?)"
    patterns = [re.sub(r"\\\{(?:source|quote)\\\}", ".+", re.escape(form)) for form in forms]
    either = "|".join(pattern.replace(r"\{range\}", ranges) for pattern in patterns)
    # In JSON that is taken apart by its members it is one of them, or all of a string that had lines.
    return re.compile(rf'(?:(?:"(?:[^"\\]|\\.)*+": ?)?")?(?:{either})"?')
