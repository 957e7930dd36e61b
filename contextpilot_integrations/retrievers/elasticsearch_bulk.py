"""Adding and deleting many documents: what is sent, how, and what came of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from contextpilot_integrations.retrievers.elasticsearch_client import Target, failure
from contextpilot_integrations.retrievers.elasticsearch_fields import Fields
from contextpilot_integrations.retrievers.records import Record, checked_ids

__all__ = ["BULK", "BulkOutcome", "additions", "deletions"]

BULK: dict[str, Any] = {
    # The helpers' own error would hold the documents.
    "raise_on_error": False,
    "max_retries": 3,
    "initial_backoff": 0.5,
    "max_backoff": 10.0,
}
"""How the client's bulk helpers work: a document that is refused as one too many is sent again."""


def additions(records: Sequence[Record], index: str, fields: Fields) -> Iterator[dict[str, Any]]:
    """Yield what adds documents, or puts them in the place of those with the same ids."""
    for record in records:
        yield {"_op_type": "index", "_index": index, "_id": record.id, "_source": fields.source(record)}


def deletions(ids: Collection[str], index: str) -> Iterator[dict[str, Any]]:
    """Yield what deletes documents."""
    for document_id in checked_ids(ids):
        yield {"_op_type": "delete", "_index": index, "_id": document_id}


class BulkOutcome:
    """What came of many additions or deletions; what was sent does not get into its error."""

    def __init__(self, client: Target, index: str) -> None:
        self._client = client
        self._index = index
        self._failed: list[Mapping[str, Any]] = []
        self.done = 0

    def add(self, ok: bool, item: Mapping[str, Mapping[str, Any]]) -> None:
        """Count one answer; that something to delete is not there is no failure."""
        (answer,) = item.values()
        self.done += ok
        if not ok and answer.get("result") != "not_found":
            self._failed.append(answer)

    def check(self) -> None:
        """Raise what went wrong with the first of those that failed, if any did."""
        if not self._failed:
            return
        first = self._failed[0]
        error = failure(int(first.get("status", 500)), first, self._client, self._index)
        count = f"{len(self._failed)} of {self.done + len(self._failed)} documents failed"
        raise type(error)(f"{count}, the first with id {first.get('_id')!r}: {error}")
