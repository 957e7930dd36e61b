"""What the forms say about a text, each for itself; `find_blocks` decides between them."""

from __future__ import annotations

import json
from typing import NamedTuple

from contextpilot_integrations.recognition.blocks import Form, Found

__all__ = ["LONGEST_NAME", "Claim", "is_json", "shortened"]

LONGEST_NAME = 80
"""In characters: more is no name to call a block by."""


class Claim(NamedTuple):
    """A stretch of text that a form takes for a block, or for the last one, whose end nobody knows.

    Attributes:
        form: Which form.
        start: Where the stretch begins.
        end: The character after its last.
        found: The block; None if its end is not known.
        movable: Whether the block may change places with its neighbours.
        end_from_form: Whether any other block of the form would be seen to end where this one does.
        end_from_known: Whether the block would be seen to end wherever it stood.
    """

    form: Form
    start: int
    end: int
    found: Found | None
    movable: bool = True
    end_from_form: bool = True
    end_from_known: bool = False


def shortened(text: str, start: int, end: int) -> tuple[int, int]:
    """Return a stretch of text without the empty lines at its beginning and its end."""
    inner = text[start:end]
    before = inner[: len(inner) - len(inner.lstrip(" \t\r\n"))]
    after = inner[len(inner.rstrip(" \t\r\n")) :]
    if len(before) == len(inner):
        return start, start
    start += before.rfind("\n") + 1
    if (line_end := after.find("\n")) >= 0:
        end -= len(after) - line_end
        end -= after[line_end - 1 : line_end] == "\r"
    return start, end


def is_json(text: str) -> bool:
    """Tell whether a text is one JSON value."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
