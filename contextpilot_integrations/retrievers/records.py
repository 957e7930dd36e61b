"""Documents as what a store keeps: under an id of their own, with metadata that JSON can hold."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from langchain_core.documents import Document

from contextpilot_integrations.plan_metadata import PLAN_KEY

__all__ = ["SCORE_KEY", "Record", "checked_ids", "to_records"]

SCORE_KEY = "_score"
"""Where a search puts the score into the metadata, as Elasticsearch names it: "score" is the caller's own."""

_OF_A_REQUEST = {SCORE_KEY, PLAN_KEY}


@dataclass(frozen=True, slots=True)
class Record:
    """A document as a store keeps it.

    Attributes:
        id: Its id, else a digest of its text and metadata.
        text: Its text.
        metadata: A copy of its metadata, as it comes back from JSON, without what a search or a plan wrote
            there (``"_score"``, ``"contextpilot"``): what was found and is added again is the same document.
    """

    id: str
    text: str
    metadata: dict[str, Any]

    def found(self, score: float) -> Document:
        """Return a document of the caller's own, its score in ``metadata["_score"]``."""
        metadata = {**copy.deepcopy(self.metadata), SCORE_KEY: score}
        return Document(id=self.id, page_content=self.text, metadata=metadata)


def to_records(documents: Iterable[Document]) -> list[Record]:
    """Return the records of documents, in their order; those that are equal collapse to one.

    Raises:
        TypeError: If there is anything but documents, or metadata that JSON cannot hold.
        ValueError: If two different documents have the same id, or an id is empty.
    """
    records: dict[str, Record] = {}
    for number, document in enumerate(documents):
        if not isinstance(document, Document):
            raise TypeError(f"documents must be Document objects, not {type(document).__name__}")
        record = _to_record(number, document)
        if records.setdefault(record.id, record) != record:
            raise ValueError(
                f"two different documents have the id {record.id!r}: give each an id of its own, "
                "or none, which makes it a digest of text and metadata"
            )
    return list(records.values())


def checked_ids(ids: Collection[str]) -> list[str]:
    """Return the ids of documents.

    Raises:
        TypeError: If they are a single string, which is a collection too, or hold anything but strings.
    """
    if isinstance(ids, str):
        raise TypeError("ids must be a collection of ids, not a string: pass [id]")
    checked = [*ids]
    for one in checked:
        if not isinstance(one, str):
            raise TypeError(f"ids must be strings, not {type(one).__name__}")
    return checked


def _to_record(number: int, document: Document) -> Record:
    if document.id == "":
        raise ValueError(f"documents[{number}] has an empty id: give it one, or None")
    try:
        own = {key: value for key, value in document.metadata.items() if key not in _OF_A_REQUEST}
        metadata = json.loads(json.dumps(own, allow_nan=False), object_pairs_hook=_distinct)
    except (TypeError, ValueError) as error:
        # Whatever the encoder says names types and keys at most, no values.
        raise TypeError(f"the metadata of documents[{number}] cannot be JSON: {error}") from error
    identity = document.id
    if identity is None:
        content = json.dumps([document.page_content, metadata], sort_keys=True)
        identity = hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
    return Record(identity, document.page_content, metadata)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON; keys that were told apart by their type alone are refused."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"as strings, which keys become, two are {twice!r}")
    return found
