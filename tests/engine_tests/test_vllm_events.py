"""vLLM's cache events as they are on the wire: what a reader of them may rely on.

A message is three frames: the topic, a sequence number of 8 bytes, and msgpack of
``[time, events, data parallel rank]``.
"""

import random
import time
from collections.abc import Callable, Iterator

import msgspec
import pytest
import zmq

BLOCK = 32
END = (-1).to_bytes(8, "big", signed=True)


class Events:
    """Reads what the server published, from its replay endpoint, since a moment."""

    def __init__(self, endpoint: str) -> None:
        self._socket = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.setsockopt(zmq.RCVTIMEO, 10_000)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(endpoint)
        self.start = len(self.replay(0))

    def close(self) -> None:
        self._socket.close()

    def replay(self, start: int) -> list[list[bytes]]:
        """Ask for all messages from a sequence number on."""
        self._socket.send_multipart([b"", start.to_bytes(8, "big")])
        messages = []
        while (message := self._socket.recv_multipart())[2] != END:
            messages.append(message)
        assert message == [b"", b"", END, b""]
        return messages

    def until(self, enough: Callable[[list[dict]], bool]) -> list[dict]:
        """Read until the events are enough; publishing them takes the server a moment."""
        deadline = time.monotonic() + 10
        while True:
            events = [event for *_, payload in self.replay(self.start) for event in decoded(payload)]
            if enough(events):
                return events
            assert time.monotonic() < deadline, events
            time.sleep(0.05)

    def stored(self, blocks: int) -> list[dict]:
        """Read until so many blocks are stored, and leave out other events."""
        events = self.until(lambda events: len(hashes(events, "BlockStored")) >= blocks)
        return [event for event in events if event["type"] == "BlockStored"]


def decoded(payload: bytes) -> list[dict]:
    _, events, rank = msgspec.msgpack.decode(payload)
    assert rank == 0
    return events


@pytest.fixture
def events(server) -> Iterator[Events]:
    events = Events(server.replay_endpoint)
    yield events
    events.close()


def prompt(seed: int, blocks: int) -> list[int]:
    return random.Random(seed).choices(range(100, 4000), k=blocks * BLOCK)


def send(client, ids: list[int], **body):
    return client.completions.create(
        model="tiny", prompt=ids, max_tokens=1, extra_body={"session_id": "s-1", **body}
    )


def hashes(events: list[dict], kind: str) -> list[int]:
    return [value for event in events if event["type"] == kind for value in event["block_hashes"]]


def test_a_prompts_full_blocks_are_stored_as_one_chain(client, events):
    ids = prompt(1, 4)
    send(client, [*ids, 5])
    (event,) = events.stored(4)
    assert len(set(event.pop("block_hashes"))) == 4
    assert event == {
        "type": "BlockStored",
        "parent_block_hash": None,
        "token_ids": ids,
        "block_size": BLOCK,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None] * 4,
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
        "session_id": "s-1",
    }


def test_a_longer_prompt_hangs_on_the_last_block_that_it_shares(client, events):
    first, second = prompt(1, 4), prompt(2, 2)
    send(client, [*first, 5])
    send(client, [*first[: 3 * BLOCK], *second, 5])
    chain, branch = events.stored(6)
    assert branch["parent_block_hash"] == chain["block_hashes"][2]
    assert branch["token_ids"] == second


def test_a_hit_is_silent_unless_a_full_report_is_asked_for(client, events):
    ids = [*prompt(1, 4), 5]
    send(client, ids)
    send(client, ids)
    send(client, [*prompt(2, 1), 5])
    first, other = events.stored(5)
    assert other["parent_block_hash"] is None
    send(client, ids, vllm_xargs={"kv_cache_report_mode": "full"})
    *_, again = events.stored(9)
    assert again["block_hashes"] == first["block_hashes"]


def test_a_prompt_that_ends_with_a_block_has_it_stored_again(client, events):
    ids = prompt(1, 2)  # The last token is always computed, and its block with it.
    for _ in range(3):
        send(client, ids)
    chain, *copies = events.stored(4)
    assert len(copies) == 2
    for copy in copies:
        assert copy["block_hashes"] == chain["block_hashes"][1:]
        assert copy["parent_block_hash"] == chain["block_hashes"][0]


def test_a_salt_is_shown_with_the_first_block_and_changes_every_hash(client, events):
    ids = prompt(1, 2)
    send(client, [*ids, 5], cache_salt="a")
    send(client, [*ids, 5])
    salted, plain = events.stored(4)
    assert salted["extra_keys"] == [["a"], None]
    assert plain["extra_keys"] == [None, None]
    assert not {*salted["block_hashes"]} & {*plain["block_hashes"]}


def test_a_reset_is_published_with_the_next_batch(server, client, events):
    send(client, prompt(1, 1))
    events.stored(1)
    server.reset_prefix_cache()
    before = len(events.replay(events.start))
    send(client, prompt(1, 1))
    found = events.until(lambda events: len(hashes(events, "BlockStored")) == 2)
    assert [event["type"] for event in found][-2:] == ["AllBlocksCleared", "BlockStored"]
    assert len(events.replay(events.start)) == before + 1


def test_generated_tokens_fill_blocks_too(client, events):
    ids = prompt(1, 2)
    answer = client.completions.create(
        model="tiny",
        prompt=ids,
        max_tokens=BLOCK + 1,
        extra_body={"ignore_eos": True, "return_token_ids": True},
    )
    chain, more = events.stored(3)
    assert more["parent_block_hash"] == chain["block_hashes"][-1]
    assert more["token_ids"] == answer.choices[0].token_ids[:BLOCK]


def test_what_is_evicted_is_removed_from_the_end_of_the_oldest_prompt_on(server, client, events):
    blocks = 250
    for seed in range(server.blocks // blocks + 1):
        send(client, prompt(seed, blocks))
    all_events = events.until(lambda found: bool(hashes(found, "BlockRemoved")))
    oldest = hashes(all_events, "BlockStored")[:blocks]
    removed = hashes(all_events, "BlockRemoved")
    assert removed == oldest[::-1][: len(removed)]
    first = next(event for event in all_events if event["type"] == "BlockRemoved")
    assert first.keys() == {"type", "block_hashes", "medium", "group_idx"}


def test_the_replay_repeats_what_was_published_from_a_number_on(server, client, events):
    with zmq.Context.instance().socket(zmq.SUB) as subscriber:
        subscriber.subscribe(server.topic)
        subscriber.connect(server.events_endpoint)
        for seed in range(100):  # What is published before the subscription arrives is not heard.
            send(client, [*prompt(seed, 1), 5])
            if subscriber.poll(100):
                break
        heard = subscriber.recv_multipart()
    assert heard[0] == server.topic.encode()
    number = int.from_bytes(heard[1], "big")
    assert events.replay(number)[0] == [b"", *heard]
    assert events.replay(number + 100) == []
