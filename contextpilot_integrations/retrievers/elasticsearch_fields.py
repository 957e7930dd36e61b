"""Where an index keeps a document: its mappings, searches, and documents from what was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from langchain_core.documents import Document

from contextpilot_integrations.retrievers.filters import Filter, allowed_values
from contextpilot_integrations.retrievers.json_paths import values_at, without
from contextpilot_integrations.retrievers.records import SCORE_KEY, Record

__all__ = ["ID_FIELD", "Clauses", "Fields"]

Clauses: TypeAlias = Filter | Sequence[Mapping[str, Any]]

ID_FIELD = "contextpilot_id"
"""The id once more, since a server does not sort by its own: documents of equal score stand in its order."""

_TOO_GREAT = 2**53  # From here on whole numbers share their float64 with the next.


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of an index, each with its full path where it stands in an object (``"body.content"``).

    Attributes:
        text: The one that is searched and is a document's text.
        metadata: The one that holds the metadata; None: all others do.
    """

    text: str
    metadata: str | None

    def mappings(self, analyzer: str) -> dict[str, Any]:
        """Return the mappings of an index: text scored by BM25, strings in metadata matched as wholes.

        Numbers are compared as float64, whatever the first one in a field is: else that would make it one of
        whole numbers, or of float32. Strings of more than 8,191 characters in metadata are kept but cannot be
        filtered by.

        Raises:
            ValueError: If metadata have no field of their own.
        """
        if self.metadata is None:
            raise ValueError("documents are added only where metadata have a field: set metadata_field")
        whole = {"type": "keyword", "ignore_above": 8191}
        kinds = {"string": whole, "long": {"type": "double"}, "double": {"type": "double"}}
        inside = f"{self.metadata}.*"
        return {
            "date_detection": False,
            "dynamic_templates": [
                {f"metadata_{kind}": {"match_mapping_type": kind, "path_match": inside, "mapping": mapping}}
                for kind, mapping in kinds.items()
            ],
            "properties": {
                self.text: {"type": "text", "analyzer": analyzer, "similarity": "BM25"},
                self.metadata: {"type": "object"},
                ID_FIELD: {"type": "keyword"},
            },
        }

    def source(self, record: Record) -> dict[str, Any]:
        """Return what an index of these `mappings` holds for a document."""
        assert self.metadata is not None
        return {self.text: record.text, self.metadata: record.metadata, ID_FIELD: record.id}

    def searches(self, queries: Sequence[str], k: int, *filters: Clauses | None) -> list[dict[str, Any]]:
        """Return what to ask the server for each query; documents have to pass all filters.

        Raises:
            TypeError: If a filter compares with anything but strings, numbers and bools, or is none.
            ValueError: If it compares with a whole number that float64 does not tell from the next.
        """
        clauses = [clause for given in filters for clause in self._clauses(given)]
        shared = {
            "size": k,
            "sort": [{"_score": "desc"}, {ID_FIELD: {"order": "asc", "unmapped_type": "keyword"}}],
            "_source": True if self.metadata is None else [self.text, self.metadata, f"{self.metadata}.*"],
            "track_total_hits": False,
        }
        matches = ({"match": {self.text: {"query": query}}} for query in queries)
        return [{"query": {"bool": {"must": [match], "filter": clauses}}, **shared} for match in matches]

    def document(self, hit: Mapping[str, Any]) -> Document:
        """Return the document of a hit, its score in the metadata.

        Several texts in the field, all of which are searched, become one, a line for each.

        Raises:
            ValueError: If there is no text, or the metadata are no object.
        """
        source: dict[str, Any] = hit.get("_source", {})
        place = f"document {hit['_id']!r} of index {hit['_index']!r}"
        texts = [*values_at(source, self.text)]
        if not texts or not all(isinstance(text, str) for text in texts):
            raise ValueError(
                f"{place} has no text in its field {self.text!r}: set text_field to the one that holds it"
            )
        if self.metadata is None:
            metadata = without(without(source, self.text), ID_FIELD)
        else:
            objects = [one for one in values_at(source, self.metadata) if one is not None]
            if len(objects) > 1 or not all(isinstance(one, Mapping) for one in objects):
                raise ValueError(
                    f"{place} has something else than one object in its field {self.metadata!r}: set "
                    "metadata_field to the one that holds an object, or to None, which takes all other fields"
                )
            inside = f"{self.metadata}."
            metadata = {key[len(inside) :]: value for key, value in source.items() if key.startswith(inside)}
            metadata |= objects[0] if objects else {}
        return Document(
            id=hit["_id"], page_content="\n".join(texts), metadata={**metadata, SCORE_KEY: hit["_score"]}
        )

    def _clauses(self, given: Clauses | None) -> list[Mapping[str, Any]]:
        if given is None:
            return []
        if isinstance(given, Mapping):
            prefix = "" if self.metadata is None else f"{self.metadata}."
            return [{"terms": {prefix + key: _exact(key, v)}} for key, v in allowed_values(given).items()]
        clauses = given if isinstance(given, list | tuple) else [given]
        for clause in clauses:
            if not isinstance(clause, Mapping):
                raise TypeError(
                    'filter must be a mapping such as {"lang": "en"}, or a list of mappings, clauses in the '
                    f"server's own language, not {type(clause).__name__}"
                )
        return [*clauses]


def _exact(key: str, values: list[Any]) -> list[Any]:
    """Return the values, if none is a whole number that would find others too."""
    for value in values:
        if isinstance(value, int) and abs(value) >= _TOO_GREAT:
            raise ValueError(
                f"filter[{key!r}] must be less than 2**53, up to which the server tells whole numbers apart: "
                "keep greater ones as strings, or pass a list of clauses where the index has another mapping"
            )
    return values
