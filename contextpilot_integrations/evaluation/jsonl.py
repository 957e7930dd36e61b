"""Files of one JSON object a line, with errors that name the line."""

from __future__ import annotations

import json
import math
import os
import reprlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

__all__ = ["PathOrDash", "Record", "TraceError", "check_output", "read_records", "write_jsonl"]

PathOrDash: TypeAlias = "str | os.PathLike[str]"

_BOM = b"\xef\xbb\xbf"
_REQUIRED: Any = object()
_KIND_NAMES = {str: "a string", int: "an integer", list: "a list"}


class TraceError(ValueError):
    """A file is not what it should be; the message is one line: file, line number, what to mend."""


@dataclass(frozen=True, slots=True)
class Record:
    """One JSON object of a file, and where it stands.

    Attributes:
        file: The file's name for messages.
        number: The line number, counted from 1.
        fields: The object.
    """

    file: str
    number: int
    fields: Mapping[str, Any]

    def error(self, reason: str) -> TraceError:
        """Return an error that names this line."""
        return TraceError(f"{self.file}:{self.number}: {reason}")

    def get(self, name: str, *kinds: type, default: Any = _REQUIRED) -> Any:
        """Return a field; null counts as absent.

        Args:
            name: The field's name.
            kinds: What its type may be: ``str``, ``int``, ``list``. A JSON true is no integer.
            default: What an absent field stands for; without it the field is required.

        Raises:
            TraceError: If the field is of another type, or required and absent.
        """
        value = self.fields.get(name)
        wanted = " or ".join(_KIND_NAMES[kind] for kind in kinds)
        if value is None:
            if default is _REQUIRED:
                raise self.error(f'there is no "{name}"; add it as {wanted}')
            return default
        if type(value) not in kinds:
            raise self.error(f'"{name}" must be {wanted}, not {reprlib.repr(value)}')
        return value


def read_records(path: PathOrDash) -> Iterator[Record]:
    """Yield the objects of a file line by line.

    A byte order mark, Windows line ends and blank lines are accepted.

    Args:
        path: A file, or "-" for standard input.

    Raises:
        TraceError: If the file cannot be read, or a line is not UTF-8, not JSON or not an object.
    """
    name = display_name(path)
    try:
        # Bytes, not text: a line that is not UTF-8 can then be named.
        with nullcontext(sys.stdin.buffer) if _is_dash(path) else open(path, "rb") as lines:
            for number, line in enumerate(lines, 1):
                if number == 1:
                    line = line.removeprefix(_BOM)
                if line.strip():
                    yield Record(name, number, _parsed(line, f"{name}:{number}"))
    except OSError as exc:
        raise TraceError(f"{name}: cannot be read: {exc.strerror or exc}") from exc


def check_output(output: PathOrDash, *inputs: PathOrDash | None) -> None:
    """Refuse to write a file over one that is read.

    Args:
        output: What is to be written, a file or "-".
        inputs: What is to be read: files, "-" or None.

    Raises:
        ValueError: If it is one of them, under whatever name.
    """
    if _is_dash(output) or not os.path.isfile(output):
        return
    # Standard input may come from the file too.
    sources = [0 if _is_dash(path) else path for path in inputs if path is not None]
    if any(os.path.samefile(source, output) for source in sources if os.path.exists(source)):
        raise ValueError(
            f"{os.fspath(output)} is read and would be overwritten; name another file for the output"
        )


def write_jsonl(path: PathOrDash, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write one JSON object a line, in ASCII, which every reader takes.

    Args:
        path: A file, which is overwritten, or "-" for standard output.
        rows: The objects; tuples become lists.

    Raises:
        OSError: If the file cannot be written.
        ValueError: If a row holds a number that JSON has not: NaN, or an infinite one.
    """
    with (
        nullcontext(sys.stdout) if _is_dash(path) else open(path, "w", encoding="ascii", newline="\n") as out
    ):
        for row in rows:
            out.write(json.dumps(row, allow_nan=False) + "\n")


def display_name(path: PathOrDash) -> str:
    """Return what messages call a file."""
    return "<stdin>" if _is_dash(path) else os.fspath(path)


def _is_dash(path: PathOrDash) -> bool:
    return os.fspath(path) == "-"


def _parsed(line: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(line.decode("utf-8"), parse_constant=_refused, parse_float=_finite)
    except UnicodeDecodeError:
        raise TraceError(f"{where}: not UTF-8; convert the file first") from None
    except RecursionError:
        raise TraceError(f"{where}: nested too deeply to be read") from None
    except ValueError as exc:
        raise TraceError(f"{where}: not JSON ({exc}); write one JSON object a line") from None
    if not isinstance(value, dict):
        raise TraceError(f"{where}: not a JSON object; write one object a line, as in {{...}}")
    return value


def _refused(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number of JSON")


def _finite(number: str) -> float:
    value = float(number)
    if math.isinf(value):
        raise ValueError(f"{reprlib.repr(number)} is beyond what a number can hold")
    return value
