"""Vectors and documents in a folder: a FAISS file, JSON lines, and `INDEX`, which names both.

The two are named after what is in them, and `INDEX` is replaced last and at one stroke, so that a folder
always holds one whole index; who finds the files of an earlier one gone reads again. Who saves holds a lock
on the folder, else it could name a file that another deletes; who loads needs none, and no right to write.
`INDEX` tells sizes and digests, so that damage is noticed before FAISS reads a byte. Nothing is pickled:
loading reads numbers and JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import faiss
from filelock import FileLock

from contextpilot_integrations.files import keep, replace_file, temporary_beside
from contextpilot_integrations.retrievers.records import Record

__all__ = ["INDEX", "read_saved", "write_saved"]

INDEX = "index.json"
_LOCK = ".contextpilot-lock"
_FORMAT = "contextpilot-faiss"
_VERSION = 1
_FLAT_INNER_PRODUCT = b"IxFI"  # how FAISS begins the file of an IndexFlatIP, the only kind that is read here


def write_saved(
    folder: str | os.PathLike[str], snapshot: Callable[[], tuple[faiss.IndexFlatIP, Sequence[Record]]]
) -> None:
    """Write an index; the files of an earlier one are deleted once the new one is in its place.

    It waits while another thread or process saves into the folder.

    Args:
        folder: Made where it is missing.
        snapshot: Gives vectors and documents, one row for each; called when it is this one's turn, so that
            whoever saves last saves the newest.

    Raises:
        FileExistsError: If `INDEX` is there and was not saved by this package.
        OSError: If a file cannot be written.
    """
    path = Path(folder)
    _check_own(path / INDEX)
    path.mkdir(parents=True, exist_ok=True)
    with FileLock(path / _LOCK, mode=0o600):
        _write(path, *snapshot())


def _write(path: Path, vectors: faiss.IndexFlatIP, records: Sequence[Record]) -> None:
    named, written = _names_in(path / INDEX), set[str]()
    try:
        vectors_file = _put(path, "vectors-{}.faiss", lambda file: faiss.write_index(vectors, str(file)))
        written.add(vectors_file["name"])
        documents_file = _put(path, "documents-{}.jsonl", lambda file: _write_lines(file, records))
        written.add(documents_file["name"])
        index = {
            "format": _FORMAT,
            "version": _VERSION,
            "documents": len(records),
            "dimension": vectors.d,
            "measure": "cosine",
            "vectors_file": vectors_file,
            "documents_file": documents_file,
        }
        replace_file(path / INDEX, json.dumps(index, indent=1).encode())
    finally:
        # Whether it was replaced or not, what the file in place does not name is of no use.
        for name in (named | written) - _names_in(path / INDEX):
            (path / name).unlink(missing_ok=True)


def read_saved(folder: str | os.PathLike[str]) -> tuple[faiss.IndexFlatIP, list[Record]]:
    """Read what `write_saved` wrote, the newest where another process writes meanwhile.

    Raises:
        ValueError: If a file is damaged, missing, or of another kind or version; the message names it.
        OSError: If there is no saved index, or a file cannot be read.
    """
    path = Path(folder)
    while True:
        named = _names_in(path / INDEX)
        try:
            return _read(path)
        except (OSError, ValueError):
            # The files may be gone because an index of other files has taken their place.
            if _names_in(path / INDEX) in (named, set()):
                raise


def _read(path: Path) -> tuple[faiss.IndexFlatIP, list[Record]]:
    with _refusing(path / INDEX):
        index = json.loads((path / INDEX).read_bytes())
        if not isinstance(index, dict) or index.get("format") != _FORMAT:
            raise ValueError("it was not saved by contextpilot-integrations")
        if index.get("version") != _VERSION:
            raise ValueError(
                f"it has version {index.get('version')!r}; only version {_VERSION} can be read here"
            )
        count, dimension = index["documents"], index["dimension"]
        vectors_file, documents_file = (
            _checked_name(index[key]["name"]) for key in ("vectors_file", "documents_file")
        )
    with _refusing(path / vectors_file):
        _check(path / vectors_file, index["vectors_file"])
        vectors = _read_vectors(path / vectors_file)
        if (vectors.ntotal, vectors.d) != (count, dimension):
            raise ValueError(
                f"it holds {vectors.ntotal} vectors of {vectors.d} numbers; "
                f"{INDEX} tells of {count} of {dimension}"
            )
    with _refusing(path / documents_file):
        _check(path / documents_file, index["documents_file"])
        with (path / documents_file).open(encoding="ascii") as lines:
            records = [_record(number, line) for number, line in enumerate(lines, 1)]
        if len(records) != count:
            raise ValueError(f"it holds {len(records)} documents; {INDEX} tells of {count}")
        if len({record.id for record in records}) != count:
            raise ValueError("an id occurs twice in it")
    return vectors, records


def _put(folder: Path, name: str, write: Callable[[Path], None]) -> dict[str, Any]:
    """Write a file and name it after what is in it; return what `INDEX` tells of it."""
    with temporary_beside(folder / INDEX) as temporary:
        write(temporary)
        digest = _digest(temporary)
        size = temporary.stat().st_size
        name = name.format(digest[:16])
        keep(temporary, folder / name)
    return {"name": name, "bytes": size, "blake2b": digest}


def _check(path: Path, entry: dict[str, Any]) -> None:
    if not path.is_file():
        raise ValueError("it is missing")
    if path.stat().st_size != entry["bytes"]:
        raise ValueError(f"it has {path.stat().st_size} bytes instead of {entry['bytes']}, so it is damaged")
    if _digest(path) != entry["blake2b"]:
        raise ValueError("its digest does not fit, so it is damaged")


def _digest(path: Path) -> str:
    """A digest of a file, to notice damage; it is no protection against forgery."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _read_vectors(path: Path) -> faiss.IndexFlatIP:
    with path.open("rb") as file:
        if file.read(4) != _FLAT_INNER_PRODUCT:
            raise ValueError("it is no flat FAISS index by inner product")
    try:
        vectors = faiss.read_index(str(path))
    except RuntimeError as error:
        raise ValueError(f"FAISS cannot read it ({error})") from error
    if not isinstance(vectors, faiss.IndexFlatIP):
        raise ValueError("it is no flat FAISS index by inner product")
    return vectors


def _write_lines(path: Path, records: Sequence[Record]) -> None:
    with path.open("w", encoding="ascii", newline="\n") as file:
        for record in records:
            line = {"id": record.id, "text": record.text, "metadata": record.metadata}
            file.write(json.dumps(line) + "\n")


def _record(number: int, line: str) -> Record:
    values = json.loads(line)
    if not isinstance(values, dict) or values.keys() != {"id", "text", "metadata"}:
        raise ValueError(f"line {number} is no document")
    record = Record(**values)
    if not (
        isinstance(record.id, str) and isinstance(record.text, str) and isinstance(record.metadata, dict)
    ):
        raise ValueError(f"line {number} is no document")
    return record


def _check_own(path: Path) -> None:
    """Refuse to replace an `INDEX` that another program saved, or may have: a damaged one does not tell."""
    try:
        index = json.loads(path.read_bytes())
    except FileNotFoundError:
        return
    except ValueError:
        index = None
    if not isinstance(index, dict) or index.get("format") != _FORMAT:
        raise FileExistsError(
            f"{path} was not saved by contextpilot-integrations, or is damaged: "
            "save into another folder, or move the file away first"
        )


def _names_in(path: Path) -> set[str]:
    """Return the files that an `INDEX` names; none where it is missing or damaged."""
    try:
        index = json.loads(path.read_bytes())
        return {_checked_name(index[key]["name"]) for key in ("vectors_file", "documents_file")}
    except (OSError, ValueError, LookupError, TypeError):
        return set()


def _checked_name(name: object) -> str:
    """Return a file's name, which leads nowhere but into the folder."""
    if not isinstance(name, str) or not name or Path(name).name != name:
        raise ValueError("it names a file elsewhere")
    return name


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Name the file where what is read from it is refused."""
    try:
        yield
    except (ValueError, LookupError, TypeError) as error:
        reason = f"{error!r}, so it is damaged" if isinstance(error, LookupError | TypeError) else error
        raise ValueError(f"cannot load {path}: {reason}") from error
