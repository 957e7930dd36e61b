"""KV events as vLLM and SGLang write them, and what else may come along."""

import msgspec
import pytest

from contextpilot_integrations.engines.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventBatch,
    decode,
)

encode = msgspec.msgpack.encode

VLLM_STORED = {
    "type": "BlockStored",
    "block_hashes": [2**64 - 1, 7],
    "parent_block_hash": None,
    "token_ids": [1, 2, 3, 4],
    "block_size": 2,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": None,
    "extra_keys": [["salt"], None],
    "group_idx": 0,
    "session_id": "s",
}
SGLANG_STORED = {
    "type": "BlockStored",
    "block_hashes": [-1],
    "parent_block_hash": -(2**63),
    "token_ids": [1, 2],
    "block_size": 2,
    "lora_id": "adapter-0",
    "medium": "GPU",
    "cache_salt": "salt",
}


def only(event):
    (decoded,) = decode(encode([1.5, [event], 0])).events
    return decoded


def test_vllms_events():
    removed = {"type": "BlockRemoved", "block_hashes": [7], "medium": "GPU", "group_idx": 1}
    batch = decode(encode([1.5, [VLLM_STORED, removed, {"type": "AllBlocksCleared"}], 3]))
    assert batch == EventBatch(
        events=(
            BlockStored(
                block_hashes=(2**64 - 1, 7),
                parent_block_hash=None,
                token_ids=(1, 2, 3, 4),
                block_size=2,
                medium="GPU",
                extra_keys=(("salt",), None),
                group_idx=0,
            ),
            BlockRemoved(block_hashes=(7,), medium="GPU", group_idx=1),
            AllBlocksCleared(),
        ),
        rank=3,
    )


def test_sglangs_events():
    event = only(SGLANG_STORED)
    assert (event.cache_salt, event.lora_id, event.extra_keys) == ("salt", "adapter-0", None)


def test_signed_and_unsigned_are_the_same_hash():
    assert (
        only(SGLANG_STORED).block_hashes == only({**SGLANG_STORED, "block_hashes": [2**64 - 1]}).block_hashes
    )
    assert only(SGLANG_STORED).parent_block_hash == 2**63
    removed = {"type": "BlockRemoved", "block_hashes": [-1, -(2**63)]}
    assert only(removed).block_hashes == (2**64 - 1, 2**63)


def test_hashes_may_be_bytes():
    event = only({**VLLM_STORED, "block_hashes": [b"\x01" * 32, b"\xff" * 8], "parent_block_hash": b"\x02"})
    assert event.block_hashes == (b"\x01" * 32, b"\xff" * 8)
    assert event.parent_block_hash == b"\x02"


def test_older_engines_write_arrays():
    stored = ["BlockStored", [-1], None, [1, 2], 2, None, "GPU", "adapter", [["salt"]]]
    events = decode(encode([1.0, [stored, ["BlockRemoved", [5]], ["AllBlocksCleared"]]])).events
    first = BlockStored(
        (2**64 - 1,), None, (1, 2), 2, medium="GPU", lora_name="adapter", extra_keys=(("salt",),)
    )
    assert events == (first, BlockRemoved((5,)), AllBlocksCleared())


def test_a_missing_rank_is_rank_0():
    assert decode(encode([1, []])).rank == 0


def test_unknown_types_and_fields_are_passed_over():
    batch = decode(
        encode(
            [
                1.0,
                [{"type": "BlockMoved", "to": 3}, ["New", 1], {"type": "AllBlocksCleared", "why": {}}],
                0,
                9,
            ]
        )
    )
    assert batch == EventBatch((AllBlocksCleared(),), unknown=2)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"secret",
        b"\xdd\xff\xff\xff\xff",  # An array that claims four billion items.
        b"\x92\x00\x91\x81\xa1a" + b"\x91" * 100_000,  # Nested deeper than any stack.
        encode({"events": []}),
        encode([1.0, [[]]]),
        encode([1.0, [[{}]]]),
        encode([1.0, [{"type": ["secret"]}]]),
        encode([1.0, [{"type": "BlockRemoved"}]]),
        encode([1.0, [{**VLLM_STORED, "token_ids": [1, 2, 3, -4]}]]),
        encode([1.0, [{**VLLM_STORED, "token_ids": [1, 2, 3, 2**32]}]]),
        encode([1.0, [{**VLLM_STORED, "block_size": "secret"}]]),
        encode([1.0, [{**VLLM_STORED, "block_hashes": ["secret"]}]]),
    ],
)
def test_garbage_is_refused_and_not_quoted(payload):
    with pytest.raises(ValueError, match="not a payload of KV events") as raised:
        decode(payload)
    assert "secret" not in str(raised.value)
    assert raised.value.__cause__ is None
