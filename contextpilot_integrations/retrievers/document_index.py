"""Documents and their vectors, in memory, in step: the FAISS index and what stands behind its rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Self, TypeAlias, cast

import faiss
import numpy as np
from langchain_core.documents import Document
from numpy.typing import ArrayLike, NDArray

from contextpilot_integrations.retrievers.read_write_lock import ReadWriteLock
from contextpilot_integrations.retrievers.records import Record, checked_ids
from contextpilot_integrations.retrievers.saved_index import read_saved, write_saved

__all__ = ["DocumentIndex", "checked_vectors"]

Vectors: TypeAlias = NDArray[np.float32]
Condition: TypeAlias = Callable[[Mapping[str, Any]], bool]

# FAISS computes one score differently for one query and for many, in the last bits, so order is settled by
# scores of its own, rounded. Beside the k best so many are scored again; one that is further behind than the
# tolerance cannot be among them.
_DIGITS = 6
_MARGIN = 8
_TOLERANCE = 1e-5


class DocumentIndex:
    """Documents under their ids, found by the cosine of the angle between vectors.

    Vectors are brought to length 1 and compared by inner product, exactly (``faiss.IndexFlatIP``): the score
    is the cosine to 6 decimals, between -1 and 1, and 0 where a vector is all zeros. Equal scores keep the
    order in which the documents were added, so one query alone and the same query in a batch find the same.

    It may be searched, changed and saved by many threads at once; a search sees all of a change or nothing of
    it. It is not pickled and not copied: save it, and load it where it is needed.
    """

    def __init__(self) -> None:
        self._lock = ReadWriteLock()
        self._vectors: faiss.IndexFlatIP | None = None
        self._records: list[Record] = []  # one for each row of the vectors
        self._rows: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, document_id: str) -> bool:
        return document_id in self._rows

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a DocumentIndex is not pickled or copied: save it, and load it where it is needed")

    def add(self, records: Sequence[Record], vectors: ArrayLike) -> None:
        """Add documents, all of them or none; one whose id is there already takes its place, as the newest.

        Args:
            records: The documents, their ids distinct.
            vectors: Numbers of shape (records, dimension), of any length but not all zeros to be found.

        Raises:
            ValueError: If the shape is another, the dimension is not that of the vectors that are there, or a
                number is not finite.
        """
        if not records:
            return
        added = _of_length_1(checked_vectors(vectors, len(records)))
        with self._lock.writing():
            self._check_dimension(added.shape[1])
            if self._vectors is None:
                self._vectors = faiss.IndexFlatIP(added.shape[1])
            first = len(self._records)
            self._vectors.add(added)
            self._records += records
            self._drop([self._rows[record.id] for record in records if record.id in self._rows])
            self._rows |= {record.id: row for row, record in enumerate(self._records[first:], first)}

    def remove(self, ids: Collection[str]) -> int:
        """Remove documents; return how many were there. An id that is unknown is no error.

        Raises:
            TypeError: If ``ids`` is a single string, or holds anything but strings.
        """
        unwanted = checked_ids(ids)
        with self._lock.writing():
            rows = sorted({self._rows[document_id] for document_id in unwanted if document_id in self._rows})
            self._drop(rows)
            return len(rows)

    def search(self, queries: ArrayLike, k: int, condition: Condition | None = None) -> list[list[Document]]:
        """Find the documents whose vectors are nearest to each query.

        Args:
            queries: Numbers of shape (queries, dimension).
            k: How many to find for each, at most.
            condition: What metadata must fulfil; it is asked once for each document, while the index cannot
                be changed. It must not use the index itself.

        Returns:
            For each query its documents, best first, as copies with ``metadata["_score"]``.

        Raises:
            ValueError: If the shape is another, the dimension is not that of the vectors that are there, or a
                number is not finite.
            RuntimeError: If the condition searches or changes the index.
        """
        wanted = _of_length_1(checked_vectors(queries))
        with self._lock.reading():
            self._check_dimension(wanted.shape[1])
            rows = None if condition is None else self._rows_that_fulfil(condition)
            candidates = len(self._records) if rows is None else len(rows)
            if self._vectors is None or not min(k, candidates):
                return [[] for _ in wanted]
            best = _Search(self._vectors, candidates, rows).best(wanted, k)
            found = [[(self._records[row], score) for row, score in rows] for rows in best]
        return [[record.found(score) for record, score in records] for records in found]

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Save it as a FAISS file and JSON lines, which replace what the folder held at one stroke.

        Meanwhile it can be searched and changed; what is saved is what it held when the writing began, which
        waits for others that save into the folder.

        Args:
            folder: Made where it is missing. Only its owner may read the files.

        Raises:
            ValueError: If nothing was ever added.
            FileExistsError: If the folder has an ``index.json`` that was saved by something else.
            OSError: If a file cannot be written; what was saved before is there still.
        """
        if self._vectors is None:
            raise ValueError("the index is empty: add documents before saving it")
        write_saved(folder, self._snapshot)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """Load what `save` wrote. Only numbers and JSON are read; nothing is executed.

        Raises:
            ValueError: If a file is damaged, missing, or of another kind or version; the message names it.
            OSError: If there is no saved index, or a file cannot be read.
        """
        index = cls()
        index._vectors, index._records = read_saved(folder)
        index._rows = {record.id: row for row, record in enumerate(index._records)}
        return index

    def _snapshot(self) -> tuple[faiss.IndexFlatIP, list[Record]]:
        with self._lock.reading():
            vectors: Any = faiss.clone_index(cast("faiss.IndexFlatIP", self._vectors))
            return vectors, [*self._records]

    def _check_dimension(self, dimension: int) -> None:
        if self._vectors is not None and self._vectors.d != dimension:
            raise ValueError(
                f"the embeddings give vectors of {dimension} numbers, the index holds vectors of "
                f"{self._vectors.d}: use the embeddings that it was made with, or make it anew"
            )

    def _drop(self, rows: Collection[int]) -> None:
        """Drop rows, after which the others move up, and bring the table of rows up to date."""
        if not rows or self._vectors is None:
            return
        self._vectors.remove_ids(faiss.IDSelectorBatch(np.array([*rows], dtype=np.int64)))
        dropped = {*rows}
        self._records = [record for row, record in enumerate(self._records) if row not in dropped]
        self._rows = {record.id: row for row, record in enumerate(self._records)}

    def _rows_that_fulfil(self, condition: Condition) -> NDArray[np.int64]:
        rows = (row for row, record in enumerate(self._records) if condition(record.metadata))
        return np.fromiter(rows, dtype=np.int64)


class _Search:
    """The rows that are nearest to queries, in an order that does not depend on how they were looked for."""

    def __init__(self, vectors: faiss.IndexFlatIP, candidates: int, rows: NDArray[np.int64] | None) -> None:
        self._vectors = vectors
        self._candidates = candidates
        self._parameters = None
        if rows is not None:
            self._parameters = faiss.SearchParameters()
            self._parameters.sel = faiss.IDSelectorBatch(rows)

    def best(self, queries: Vectors, k: int) -> list[list[tuple[int, float]]]:
        """Return for each query its k best rows and their scores, after one search for all of them."""
        depth = min(self._candidates, k + _MARGIN)
        found = zip(queries, *self._vectors.search(queries, depth, params=self._parameters), strict=True)
        return [self._ordered(query, self._with_ties(query, k, *best))[:k] for query, *best in found]

    def _with_ties(self, query: Vectors, k: int, scores: Vectors, rows: NDArray[np.int64]) -> Any:
        """Return the rows, and more as long as the last may be as good as the k-th."""
        while len(rows) < self._candidates and scores[k - 1] - scores[-1] < _TOLERANCE:
            depth = min(self._candidates, 2 * len(rows))
            (scores,), (rows,) = self._vectors.search(query[None], depth, params=self._parameters)
        return rows

    def _ordered(self, query: Vectors, rows: NDArray[np.int64]) -> list[tuple[int, float]]:
        """Score rows again, each by itself, and to as many digits as float32 bears out."""
        vectors = self._vectors.reconstruct_batch(rows).astype(np.float64)
        scores = (vectors * query.astype(np.float64)).sum(axis=1).round(_DIGITS) + 0.0
        return [(int(rows[place]), float(scores[place])) for place in np.lexsort((rows, -scores))]


def checked_vectors(numbers: ArrayLike, count: int | None = None) -> Vectors:
    """Return numbers as vectors, at 4 bytes each.

    Args:
        numbers: What embeddings gave, of shape (vectors, dimension).
        count: How many vectors there have to be, where that is known.

    Raises:
        ValueError: If the shape is another, or a number is not finite.
    """
    vectors = np.asarray(numbers, dtype=np.float32, order="C")
    if vectors.ndim != 2 or not vectors.shape[1] or count not in (None, len(vectors)):
        expected = "vectors" if count is None else f"{count} vectors"
        raise ValueError(f"the embeddings gave numbers of shape {vectors.shape}, not {expected}")
    if not np.isfinite(vectors).all():
        raise ValueError("the embeddings gave a number that is not finite")
    return vectors


def _of_length_1(vectors: Vectors) -> Vectors:
    """Return copies of vectors, of length 1, or 0 where they are all zeros."""
    copies = vectors.copy()
    faiss.normalize_L2(copies)
    return copies
