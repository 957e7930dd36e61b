"""Indexes in a file, so that a restart keeps its orders.

The file is a safetensors file of a few flat columns (`_COLUMNS`), the rows of all its indexes one behind
the other. Ids stand once each in a table, and the other columns name them by their place in it. Its
header's metadata give the format's version and a digest of the columns, so that damage is noticed. It
holds ids (those of a pilot's blocks are digests), counts and weights; never a document's text.
"""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import torch
from safetensors import SafetensorError, deserialize
from safetensors.torch import save

from contextpilot_integrations.files import replace_file
from contextpilot_integrations.index.identifiers import decode_all, encode
from contextpilot_integrations.index.snapshot import NodeRow, Snapshot, restored_index, take_snapshot
from contextpilot_integrations.index.tree import ContextIndex

__all__ = ["load_index", "read_snapshots", "refusing", "save_index", "write_snapshots"]

T = TypeVar("T")
_Columns: TypeAlias = "dict[str, array[Any]]"

_FORMAT = "contextpilot"
_VERSION = 1
# Array type codes: "B" is written as U8, "q" as I64, "d" as F64.
_COLUMNS = {
    "ids": "B",  # the distinct ids, encoded
    "owners": "B",  # one encoded id per index
    "index_nodes": "q",  # how many nodes, requests and recent contexts each index has
    "index_requests": "q",
    "index_contexts": "q",
    "node_parent": "q",  # `NodeRow`, rows counted within the index
    "node_position": "q",
    "node_next_position": "q",
    "node_accesses": "q",
    "node_anonymous": "B",
    "node_distance": "d",
    "node_blocks": "q",  # how many blocks it adds
    "block_id": "q",
    "block_weight": "q",
    "request_id": "q",
    "request_node": "q",
    "context_blocks": "q",  # how many blocks it has
    "context_block_id": "q",
}
_DTYPES = {"B": ("U8", torch.uint8), "q": ("I64", torch.int64), "d": ("F64", torch.float64)}


def save_index(index: ContextIndex, path: str | os.PathLike[str]) -> None:
    """Save an index; its limits are not saved. The file appears whole or not at all.

    Args:
        index: Its block and request ids may be str, int, bytes, None and tuples of these. The caller
            holds the lock that the index needs.
        path: The file, replaced if it is there. Only its owner may read it.

    Raises:
        TypeError: If an id is of another type.
        ValueError: If a number needs more than 64 bits, or an id nests tuples deeper than 64 levels.
        OSError: If the file cannot be written.
    """
    write_snapshots(path, [take_snapshot(index)])


def load_index(
    path: str | os.PathLike[str],
    *,
    capacity: int | None = None,
    max_requests: int = 100_000,
    max_visits: int = 2_000,
) -> ContextIndex:
    """Load an index that behaves as the saved one, within the given limits (see `ContextIndex`).

    Raises:
        ValueError: If a limit is below 1, or the file is damaged, of a newer version or of another kind.
        OSError: If the file cannot be read.
    """
    with refusing(path):
        snapshots = read_snapshots(path)
        if [snapshot.owner for snapshot in snapshots] != [None]:
            raise ValueError("it holds the namespaces of a pilot; load it with ContextPilot.load")
        return restored_index(
            snapshots[0], capacity=capacity, max_requests=max_requests, max_visits=max_visits
        )


@contextmanager
def refusing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Name the file where what is read from it is refused."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"cannot load {os.fspath(path)}: {error}") from error


def write_snapshots(path: str | os.PathLike[str], snapshots: Sequence[Snapshot]) -> None:
    """Write snapshots to a file, which appears whole or not at all. Errors as `save_index`."""
    columns = _columns(snapshots)
    tensors = {
        name: torch.frombuffer(column, dtype=dtype) if column else torch.empty(0, dtype=dtype)
        for name, column in columns.items()
        for _, dtype in [_DTYPES[column.typecode]]
    }
    metadata = {"format": _FORMAT, "version": str(_VERSION), "digest": _digest(columns)}
    replace_file(path, save(tensors, metadata))


def read_snapshots(path: str | os.PathLike[str]) -> list[Snapshot]:
    """Read what `write_snapshots` wrote.

    Only sizes that the file's own size bears out are allocated. Whether the rows are consistent is for
    `restored_index` to say.

    Raises:
        ValueError: If the file is damaged, of a newer version or of another kind.
        OSError: If the file cannot be read.
    """
    columns = _checked_columns(Path(path).read_bytes())
    ids = decode_all(columns["ids"].tobytes())
    if len(set(ids)) != len(ids):
        raise ValueError("an id stands twice in its table")
    blocks = _named(columns, "block_id", ids)
    nodes = list(
        map(
            NodeRow,
            _like(columns, "node_parent", "node_blocks"),
            _like(columns, "node_position", "node_blocks"),
            _like(columns, "node_next_position", "node_blocks"),
            _like(columns, "node_accesses", "node_blocks"),
            map(bool, _like(columns, "node_anonymous", "node_blocks")),
            _like(columns, "node_distance", "node_blocks"),
            _cut(blocks, columns, "node_blocks"),
            _cut(_like(columns, "block_weight", "block_id"), columns, "node_blocks"),
        )
    )
    requests = list(
        zip(
            _named(columns, "request_id", ids),
            _like(columns, "request_node", "request_id"),
            strict=True,
        )
    )
    contexts = _cut(_named(columns, "context_block_id", ids), columns, "context_blocks")
    owners = decode_all(columns["owners"].tobytes())
    if any(len(owners) != len(columns[f"index_{rows}"]) for rows in ("nodes", "requests", "contexts")):
        raise ValueError("the number of indexes is not the same everywhere")
    return list(
        map(
            Snapshot,
            owners,
            _cut(nodes, columns, "index_nodes"),
            _cut(requests, columns, "index_requests"),
            _cut(contexts, columns, "index_contexts"),
        )
    )


class _IdTable:
    """The distinct ids, in the order in which they were first asked for."""

    def __init__(self) -> None:
        self._places: dict[Hashable, int] = {}
        self.encoded = bytearray()

    def place(self, value: Hashable) -> int:
        place = self._places.get(value)
        if place is None:
            self.encoded += encode(value)
            place = self._places[value] = len(self._places)
        return place

    def places(self, values: frozenset[Hashable]) -> list[int]:
        """The places of a set; those that are new come in the order of their bytes, as sets have none."""
        for value in sorted((value for value in values if value not in self._places), key=encode):
            self.place(value)
        return sorted(map(self.place, values))


def _columns(snapshots: Sequence[Snapshot]) -> _Columns:
    columns: _Columns = {name: array(code) for name, code in _COLUMNS.items()}
    ids = _IdTable()
    try:
        for snapshot in snapshots:
            columns["owners"].frombytes(encode(snapshot.owner))
            columns["index_nodes"].append(len(snapshot.nodes))
            columns["index_requests"].append(len(snapshot.requests))
            columns["index_contexts"].append(len(snapshot.contexts))
            for node in snapshot.nodes:
                columns["node_parent"].append(node.parent)
                columns["node_position"].append(node.position)
                columns["node_next_position"].append(node.next_position)
                columns["node_accesses"].append(node.accesses)
                columns["node_anonymous"].append(node.anonymous)
                columns["node_distance"].append(node.distance)
                columns["node_blocks"].append(len(node.blocks))
                columns["block_id"].extend(map(ids.place, node.blocks))
                columns["block_weight"].extend(node.weights)
            for request_id, row in snapshot.requests:
                columns["request_id"].append(ids.place(request_id))
                columns["request_node"].append(row)
            for context in snapshot.contexts:
                columns["context_blocks"].append(len(context))
                columns["context_block_id"].extend(ids.places(frozenset(context)))
    except OverflowError as error:
        raise ValueError("a weight or a count needs more than 64 bits and cannot be saved") from error
    columns["ids"].frombytes(ids.encoded)
    return columns


def _checked_columns(data: bytes) -> _Columns:
    """Return the columns of a file's bytes, undamaged, each of its type."""
    try:
        tensors = dict(deserialize(data))  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise ValueError(f"it is no whole safetensors file ({error})") from error
    # The header was valid just now; its length stands in the first 8 bytes.
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    metadata = header.get("__metadata__") or {}
    version = metadata.get("version", "")
    if metadata.get("format") != _FORMAT or not (version.isascii() and version.isdigit()):
        raise ValueError("it was not saved by contextpilot-integrations, or its header is damaged")
    if version != str(_VERSION):
        raise ValueError(f"it has version {version[:20]}, and only version {_VERSION} can be read here")
    if tensors.keys() != _COLUMNS.keys():
        raise ValueError(f"columns are missing or unknown: {', '.join(sorted(tensors.keys() ^ _COLUMNS))}")
    columns: _Columns = {}
    for name, code in _COLUMNS.items():
        tensor = tensors[name]
        column = array(code)
        if tensor["dtype"] != _DTYPES[code][0] or len(tensor["shape"]) != 1:
            raise ValueError(f"column {name} is {tensor['dtype']} of shape {tensor['shape']}")
        column.frombytes(tensor["data"])
        columns[name] = column
    if metadata.get("digest") != _digest(columns):
        raise ValueError("its digest does not fit, so it is damaged")
    return columns


def _digest(columns: _Columns) -> str:
    """A digest of names and contents, to notice damage; it is no protection against forgery."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(columns):
        raw = columns[name].tobytes()
        digest.update(f"{name} {len(raw)}\n".encode())
        digest.update(raw)
    return digest.hexdigest()


def _like(columns: _Columns, name: str, other: str) -> list[Any]:
    """A column that has as many rows as another."""
    if len(columns[name]) != len(columns[other]):
        raise ValueError(f"column {name} has {len(columns[name])} rows, {other} has {len(columns[other])}")
    return columns[name].tolist()


def _named(columns: _Columns, name: str, ids: Sequence[Hashable]) -> list[Hashable]:
    column = columns[name]
    if column and not 0 <= min(column) <= max(column) < len(ids):
        raise ValueError(f"column {name} names an id that is not in the table")
    return [ids[place] for place in column]


def _cut(rows: Sequence[T], columns: Mapping[str, array[int]], counts: str) -> list[Sequence[T]]:
    """Cut rows into runs of so many as a column of counts says."""
    column = columns[counts]
    if min(column, default=0) < 0 or sum(column) != len(rows):
        raise ValueError(f"column {counts} does not add up to the {len(rows)} rows that there are")
    return [rows[start:end] for start, end in pairwise(accumulate(column, initial=0))]
