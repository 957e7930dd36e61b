"""LlamaIndex nodes as context blocks, and back with the plan in their metadata and their marker in sight.

LlamaIndex writes a node into a prompt as ``node.get_content(MetadataMode.LLM)``. So that this begins with the
block's marker, a planned copy has it in its ``text_template``; text, id and the metadata stay as they are.

A node has one template for all its readers. So what is embedded of a planned copy, or read by a reranker,
(``MetadataMode.EMBED``) has the marker too, and where the model sees no metadata, none: plan last.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any

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
    "TEMPLATE_KEY",
    "VOLATILE_KEYS",
    "Request",
    "format_nodes",
    "order_annotation",
    "plan_metadata",
    "planned_nodes",
    "to_block",
]

TEMPLATE_KEY = "contextpilot_template"
"""Where a planned node that shows the model no metadata has the template that it came with.

LlamaIndex takes no template where there is no metadata to show, so this is shown, by one that leaves it out.
"""

VOLATILE_KEYS = frozenset(
    {
        "distance",
        "last_accessed_date",
        "rank",
        "relevance_score",
        "rerank_score",
        "retrieval_score",
        "retrieved_at",
        "score",
        "similarity",
        "similarity_score",
        "_score",
    }
)
"""Metadata by these names tells of a retrieval, not of a text: it would change a block's bytes each time."""

_HIDDEN = VOLATILE_KEYS | {PLAN_KEY}
_IMMUTABLE = {str, int, NoneType}


def to_block(node: BaseNode, metadata_keys: Collection[str] | None = None) -> ContextBlock:
    """Return the context block that a node is: its id, and what the model sees of it.

    Args:
        node: A node, planned or not.
        metadata_keys: The metadata that the model sees in front of the text. None: what the node itself
            shows, less `VOLATILE_KEYS`.
    """
    return _block(_seen(_unplanned(node), metadata_keys))


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
    """

    given: list[NodeWithScore]
    nodes: list[BaseNode]
    ranks: list[int]
    blocks: list[ContextBlock]

    @classmethod
    def of(cls, given: Sequence[NodeWithScore], metadata_keys: Collection[str] | None = None) -> Request:
        """Take nodes best first, or in the order of a plan, which is then undone."""
        ranks = ranks_in_order([plan_metadata(item) for item in given])
        if ranks is None:
            ranks, ordered = list(range(len(given))), list(given)
        else:
            ranked = sorted(zip(ranks, given, strict=True), key=lambda pair: pair[0])
            ranks, ordered = [rank for rank, _ in ranked], [item for _, item in ranked]
        nodes = [_seen(_unplanned(item.node), metadata_keys) for item in ordered]
        return cls(ordered, nodes, ranks, [_block(node) for node in nodes])


def planned_nodes(plan: Plan, request: Request, *, order_template: str) -> list[NodeWithScore]:
    """Return copies of a request's nodes in the order to send, each with its score and the plan.

    Args:
        plan: What the pilot planned for its blocks.
        request: The request.
        order_template: The pilot's.
    """
    return [
        request.given[place].model_copy(
            update={"node": _with_plan(request.nodes[place], request.blocks[place], entry)}
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
    are in order of relevance, did not all come from one plan or were reordered since, where one does not show
    its marker, and where markers would be ambiguous.
    """
    entries = [plan_metadata(item) for item in nodes]
    blocks = []
    for item, entry in zip(nodes, entries, strict=True):
        shown = item.node.get_content(MetadataMode.LLM)
        if entry is None or not shown.startswith(marker(entry["label"])):
            return ""
        blocks.append(ContextBlock(entry["label"], shown.removeprefix(marker(entry["label"]))))
    return planned_order_annotation(entries, blocks)


def _block(node: BaseNode) -> ContextBlock:
    return ContextBlock(node.node_id, node.get_content(MetadataMode.LLM))


def _unplanned(node: BaseNode) -> BaseNode:
    """Return a node as it was before it was planned; the node itself where it was not."""
    entry = read_plan(node.metadata)
    if entry is None:
        return node
    fields: dict[str, Any] = {
        "metadata": {key: v for key, v in node.metadata.items() if key not in (PLAN_KEY, TEMPLATE_KEY)}
    }
    template = getattr(node, "text_template", None)
    if isinstance(template, str):
        own = template.removeprefix(f"{marker(entry['label'])} ")
        fields["text_template"] = node.metadata.get(TEMPLATE_KEY, own)
    return node.model_copy(update=fields)


def _seen(node: BaseNode, metadata_keys: Collection[str] | None) -> BaseNode:
    """Return a node that shows the model no more metadata than it may; it shares its values."""
    if metadata_keys is None:
        excluded = node.excluded_llm_metadata_keys
        if _HIDDEN.isdisjoint(node.metadata):
            return node
        excluded = [*excluded, *(key for key in node.metadata if key in _HIDDEN and key not in excluded)]
    else:
        excluded = [key for key in node.metadata if key not in metadata_keys or key == PLAN_KEY]
    if excluded == node.excluded_llm_metadata_keys:
        return node
    return node.model_copy(update={"excluded_llm_metadata_keys": excluded})


def _with_plan(node: BaseNode, block: ContextBlock, entry: PlanMetadata) -> BaseNode:
    """Return a copy of a node that shows its marker in front of what it showed."""
    fields = {
        name: _copied(name, value) for name, value in vars(node).items() if type(value) not in _IMMUTABLE
    }
    fields["metadata"][PLAN_KEY] = entry
    for hidden in (fields["excluded_llm_metadata_keys"], fields["excluded_embed_metadata_keys"]):
        if PLAN_KEY not in hidden:
            hidden.append(PLAN_KEY)
    if isinstance(template := getattr(node, "text_template", None), str):
        if block.text == node.get_content(MetadataMode.NONE):
            fields["metadata"][TEMPLATE_KEY] = template
            fields["excluded_embed_metadata_keys"].append(TEMPLATE_KEY)
            template = "{content}"
        fields["text_template"] = f"{marker(block.label)} {template.lstrip()}"
    return node.model_copy(update=fields)


def _copied(name: str, value: Any) -> Any:
    if name == "obj":  # What an index node points to: an index, a query engine.
        return value
    if name == "embedding":  # Hundreds of floats, which need no copies of their own.
        return [*value]
    if name == "relationships":  # What tells of other nodes is shared, else it would cost more than all else.
        return {**value}
    return copied(value)
