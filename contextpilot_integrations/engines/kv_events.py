"""The KV events of vLLM and SGLang: what a payload of their event streams says.

Both publish msgpack ``[timestamp, events, data_parallel_rank]``. An event is a map tagged by ``type`` whose
fields are omitted at their default; older engines write it as an array, the type first. Events of types not
known here are left out and counted, and fields not known here are passed over, so newer engines can be read.
No sockets here: a recorded payload is read as a live one is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

try:
    import msgspec
except ImportError as error:
    raise ImportError(
        'reading KV events needs msgspec; install it with: pip install "contextpilot-integrations[events]"',
        name="msgspec",
    ) from error

__all__ = ["AllBlocksCleared", "BlockHash", "BlockRemoved", "BlockStored", "EventBatch", "KvEvent", "decode"]

BlockHash: TypeAlias = int | bytes
TokenId: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]


class BlockStored(msgspec.Struct, frozen=True, tag=True):
    """Pages of one chain were stored, each behind the one before it.

    Attributes:
        block_hashes: One a page; an integer is its 64 bits unsigned.
        parent_block_hash: The page that stands before the first; None at the beginning of a prompt.
        token_ids: Those of all pages, ``block_size`` a page. Empty when a copy is made in another medium.
        block_size: Tokens a page.
        lora_id: The adapter's number, or its name in the engine's process.
        medium: Where the copy lies, as the engine calls it: "GPU", "CPU".
        lora_name: The adapter's name.
        extra_keys: What else each page's hash depends on: the cache salt on the first page of a prompt, the
            adapter's name, images (vLLM).
        group_idx: Which of the model's KV cache groups the pages belong to (vLLM).
        cache_salt: The salt of the request that stored them (SGLang).
    """

    block_hashes: tuple[BlockHash, ...]
    parent_block_hash: BlockHash | None
    token_ids: tuple[TokenId, ...]
    block_size: Annotated[int, msgspec.Meta(ge=0)]
    lora_id: int | str | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: tuple[tuple[Any, ...] | None, ...] | None = None
    group_idx: int | None = None
    cache_salt: str | None = None

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "block_hashes", tuple(map(_unsigned, self.block_hashes)))
        if self.parent_block_hash is not None:
            msgspec.structs.force_setattr(self, "parent_block_hash", _unsigned(self.parent_block_hash))


class BlockRemoved(msgspec.Struct, frozen=True, tag=True):
    """One copy of each of these pages was dropped; the fields are those of `BlockStored`."""

    block_hashes: tuple[BlockHash, ...]
    medium: str | None = None
    group_idx: int | None = None

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "block_hashes", tuple(map(_unsigned, self.block_hashes)))


class AllBlocksCleared(msgspec.Struct, frozen=True, tag=True):
    """Every page was dropped, in all media."""


KvEvent: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared

# In an array the fields stand in the same order.
_FIELDS: dict[object, tuple[str, ...]] = {
    kind.__name__: kind.__struct_fields__ for kind in (BlockStored, BlockRemoved, AllBlocksCleared)
}


class _Payload(msgspec.Struct, array_like=True):
    timestamp: float
    events: list[dict[str, Any] | list[Any]]
    data_parallel_rank: int | None = None


@dataclass(frozen=True, slots=True)
class EventBatch:
    """What one message of an event stream says.

    Attributes:
        events: In the order in which they happened.
        rank: The engine's data-parallel rank; 0 where it names none.
        unknown: How many events were of a type not known here.
    """

    events: tuple[KvEvent, ...]
    rank: int = 0
    unknown: int = 0


_decoder = msgspec.msgpack.Decoder(_Payload)


def decode(payload: bytes) -> EventBatch:
    """Read a payload.

    Raises:
        ValueError: If it is no payload of KV events. The message quotes nothing of it.
    """
    try:
        content = _decoder.decode(payload)
        mapped = [event if isinstance(event, dict) else _as_map(event) for event in content.events]
        known = [event for event in mapped if event.get("type") in _FIELDS]
        events = msgspec.convert(known, tuple[KvEvent, ...])
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"not a payload of KV events ({type(error).__name__})") from None
    return EventBatch(events, content.data_parallel_rank or 0, len(mapped) - len(known))


def _as_map(event: list[Any]) -> dict[str, Any]:
    """Name the fields of an event that was written as an array."""
    kind, *values = event
    return {"type": kind} | dict(zip(_FIELDS.get(kind, ()), values, strict=False))


def _unsigned(block_hash: BlockHash) -> BlockHash:
    return block_hash & 0xFFFF_FFFF_FFFF_FFFF if isinstance(block_hash, int) else block_hash
