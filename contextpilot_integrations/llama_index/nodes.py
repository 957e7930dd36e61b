"""LlamaIndex nodes as context blocks, and back with the plan in their metadata and their marker in sight.

LlamaIndex writes a node into a prompt as ``node.get_content(MetadataMode.LLM)``. So that this begins with the
block's marker, a planned copy has it in its ``text_template``; text, id and the metadata stay as they are.
LlamaIndex takes no template where there is no metadata to show. There the marker is the one entry that is
shown, which multimodal prompts (``node.get_content_blocks``) show too.

A node has one template for all its readers, so what is embedded of a planned copy, or read by a reranker,
(``MetadataMode.EMBED``) may have the marker or lack the names of its metadata: plan last.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from numbers import Number
from types import NoneType
from typing import Any, cast

from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore

from contextpilot_integrations.block import ContextBlock, marker
from contextpilot_integrations.plan import Plan
from contextpilot_integrations.plan_metadata import (
    PLAN_KEY,
    PlanMetadata,
    copied,
    plan_entries,
    ranks_in_order,
    read_plan,
)
from contextpilot_integrations.plan_metadata import order_annotation as planned_order_annotation

__all__ = [
    "MARKER_KEY",
    "VOLATILE_KEYS",
    "NodePlanMetadata",
    "Request",
    "checked_keys",
    "format_nodes",
    "is_reordered",
    "order_annotation",
    "plan_metadata",
    "planned_nodes",
    "to_block",
]

MARKER_KEY = "contextpilot_marker"
"""Where a planned node that shows the model no other metadata has its marker."""

_DATES = frozenset({"__last_accessed__", "last_accessed_date", "retrieved_at"})
VOLATILE_KEYS = _DATES | {
    "distance",
    "rank",
    "relevance_score",
    "rerank_score",
    "retrieval_score",
    "score",
    "similarity",
    "similarity_score",
    "_score",
}
"""Metadata by these names tells of a retrieval, not of a text: it would change a block's bytes each time.

So do the dates. The others do where they are numbers or None; a ``score`` of "3-2" is the text's own.
"""

_ALWAYS_HIDDEN = _DATES | {PLAN_KEY}
_PERHAPS_HIDDEN = VOLATILE_KEYS | {PLAN_KEY}
_IMMUTABLE = {str, int, NoneType}


class NodePlanMetadata(PlanMetadata, total=False):
    """What a planned node's entry holds beside what all adapters write.

    Attributes:
        score: The node's score when it was planned; None where it had none.
        text_template: The template that it came with.
        metadata_template: The one for its metadata.
    """

    score: float | None
    text_template: str
    metadata_template: str


def to_block(node: BaseNode, metadata_keys: Collection[str] | None = None) -> ContextBlock:
    """Return the context block that a node is: its id, and what the model sees of it.

    Args:
        node: A node, planned or not.
        metadata_keys: The metadata that the model sees in front of the text. None: what the node itself
            shows, less `VOLATILE_KEYS`.

    Raises:
        TypeError: If ``metadata_keys`` is a str.
    """
    return _block(_seen(_unplanned(node), checked_keys(metadata_keys)))


def checked_keys(metadata_keys: Collection[str] | None) -> Collection[str] | None:
    """Return the names of metadata as they are.

    Raises:
        TypeError: If they are a single str, whose letters would be taken for names.
    """
    if isinstance(metadata_keys, str):
        raise TypeError(f"metadata_keys must be a list of names, not a str; pass [{metadata_keys!r}]")
    return metadata_keys


def plan_metadata(node: BaseNode | NodeWithScore) -> PlanMetadata | None:
    """Return what the pilot wrote into a node's metadata; None where it never saw the node."""
    return read_plan(node.metadata)


@dataclass(frozen=True, slots=True)
class Request:
    """Nodes in order of relevance, as they were before any plan.

    Attributes:
        given: As they came.
        nodes: What each would show the model.
        ranks: The rank of each.
        blocks: The context blocks.
        scores: The score of each; None where it has none.
    """

    given: list[NodeWithScore]
    nodes: list[BaseNode]
    ranks: list[int]
    blocks: list[ContextBlock]
    scores: list[float | None]

    @classmethod
    def of(cls, given: Sequence[NodeWithScore], metadata_keys: Collection[str] | None = None) -> Request:
        """Take nodes best first, or in the order of a plan, which is then undone."""
        ranks = ranks_in_order([_entry(item) for item in given])
        if ranks is None:
            ranks, ordered = list(range(len(given))), list(given)
        else:
            ranked = sorted(zip(ranks, given, strict=True), key=lambda pair: pair[0])
            ranks, ordered = [rank for rank, _ in ranked], [item for _, item in ranked]
        nodes = [_seen(_unplanned(item.node), metadata_keys) for item in ordered]
        return cls(
            ordered, nodes, ranks, [_block(node) for node in nodes], [_score(item) for item in ordered]
        )


def planned_nodes(plan: Plan, request: Request, *, order_template: str) -> list[NodeWithScore]:
    """Return copies of a request's nodes in the order to send, each with its score and the plan.

    Args:
        plan: What the pilot planned for its blocks.
        request: The request.
        order_template: The pilot's.
    """
    return [
        request.given[place].model_copy(
            update={
                "node": _with_plan(request.nodes[place], request.blocks[place], request.scores[place], entry)
            }
        )
        for place, entry in plan_entries(plan, request.ranks, order_template=order_template)
    ]


def format_nodes(nodes: Sequence[NodeWithScore]) -> str:
    """Write nodes as a prompt shows them, one paragraph each, and after them the order annotation."""
    texts = [item.node.get_content(MetadataMode.LLM) for item in nodes]
    return "\n\n".join(filter(None, [*texts, order_annotation(nodes)]))


def order_annotation(nodes: Sequence[NodeWithScore]) -> str:
    """Tell the model the order of relevance, where planned nodes stand in another.

    It names just the nodes given, so a step after the pilot may have dropped some. It is empty where they
    are in order of relevance, did not all come from one plan, were reordered or got other scores since, where
    one does not show its marker, and where markers would be ambiguous.
    """
    entries = [_entry(item) for item in nodes]
    blocks = []
    for item, entry in zip(nodes, entries, strict=True):
        shown = item.node.get_content(MetadataMode.LLM)
        if entry is None or not shown.startswith(marker(entry["label"])):
            return ""
        blocks.append(ContextBlock(entry["label"], shown.removeprefix(marker(entry["label"]))))
    return planned_order_annotation(entries, blocks)


def is_reordered(nodes: Sequence[NodeWithScore]) -> bool:
    """Tell whether nodes stand in the order of a plan that is not their order of relevance."""
    ranks = ranks_in_order([_entry(item) for item in nodes]) or ()
    return any(before > after for before, after in pairwise(ranks))


def _entry(item: NodeWithScore) -> NodePlanMetadata | None:
    """Return what the plan said of a node; None where a reranker gave it another score since."""
    if (entry := _node_plan(item.node)) is None:
        return None
    score = _score(item)
    return entry if score is None or score == entry.get("score", score) else None


def _score(item: NodeWithScore) -> float | None:
    """Return a score as plain JSON has it. NaN equals nothing, so it is as good as none."""
    score = None if item.score is None else float(item.score)
    return score if score == score else None


def _node_plan(node: BaseNode) -> NodePlanMetadata | None:
    return cast(NodePlanMetadata | None, read_plan(node.metadata))


def _block(node: BaseNode) -> ContextBlock:
    return ContextBlock(node.node_id, node.get_content(MetadataMode.LLM))


def _unplanned(node: BaseNode) -> BaseNode:
    """Return a node as it was before it was planned; the node itself where it was not."""
    entry = _node_plan(node)
    if entry is None:
        return node
    fields: dict[str, Any] = {
        "metadata": {key: v for key, v in node.metadata.items() if key not in (PLAN_KEY, MARKER_KEY)}
    }
    if "text_template" in entry:
        fields["text_template"] = entry["text_template"]
        fields["metadata_template"] = entry["metadata_template"]
    return node.model_copy(update=fields)


def _seen(node: BaseNode, metadata_keys: Collection[str] | None) -> BaseNode:
    """Return a node that shows the model no more metadata than it may; it shares its values."""
    if metadata_keys is None:
        excluded = node.excluded_llm_metadata_keys
        if _PERHAPS_HIDDEN.isdisjoint(node.metadata):
            return node
        hidden = (key for key, value in node.metadata.items() if _is_hidden(key, value))
        excluded = [*excluded, *(key for key in hidden if key not in excluded)]
    else:
        excluded = [key for key in node.metadata if key not in metadata_keys or key == PLAN_KEY]
    if excluded == node.excluded_llm_metadata_keys:
        return node
    return node.model_copy(update={"excluded_llm_metadata_keys": excluded})


def _is_hidden(key: str, value: object) -> bool:
    if key not in VOLATILE_KEYS or key in _ALWAYS_HIDDEN:
        return key in _ALWAYS_HIDDEN
    return value is None or (isinstance(value, Number) and not isinstance(value, bool))


def _with_plan(node: BaseNode, block: ContextBlock, score: float | None, entry: PlanMetadata) -> BaseNode:
    """Return a copy of a node that shows its marker in front of what it showed."""
    fields = {
        name: _copied(name, value) for name, value in vars(node).items() if type(value) not in _IMMUTABLE
    }
    metadata, excluded = fields["metadata"], fields["excluded_llm_metadata_keys"]
    planned = cast(NodePlanMetadata, entry)
    planned["score"] = score
    if isinstance(template := getattr(node, "text_template", None), str):
        planned["text_template"], planned["metadata_template"] = template, node.metadata_template
        if _shows_metadata(node, block):
            fields["text_template"] = f"{marker(block.label)} {template.lstrip()}"
        else:
            excluded.extend(key for key in metadata if key not in excluded)
            fields["text_template"], fields["metadata_template"] = "{metadata_str} {content}", "{value}"
            metadata[MARKER_KEY] = marker(block.label)
    metadata[PLAN_KEY] = planned
    if PLAN_KEY not in excluded:
        excluded.append(PLAN_KEY)
    not_embedded = fields["excluded_embed_metadata_keys"]
    not_embedded.extend(key for key in (PLAN_KEY, MARKER_KEY) if key not in not_embedded)
    return node.model_copy(update=fields)


def _shows_metadata(node: BaseNode, block: ContextBlock) -> bool:
    if node.metadata.keys() <= {*node.excluded_llm_metadata_keys}:
        return False
    if block.text != node.get_content(MetadataMode.NONE):
        return True
    # Its template leaves it out; or it is written as nothing, and then LlamaIndex takes no template.
    return bool(node.get_metadata_str(MetadataMode.LLM).strip())


def _copied(name: str, value: Any) -> Any:
    if name == "obj":  # What an index node points to: an index, a query engine.
        return value
    if name == "embedding":  # Hundreds of floats, which need no copies of their own.
        return [*value]
    if name == "relationships":  # What tells of other nodes is shared, else it would cost more than all else.
        return {**value}
    return copied(value)
