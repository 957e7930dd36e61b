"""Both subscribers on real ZeroMQ sockets, beside a publisher that works as those of vLLM and SGLang do."""

import asyncio
import gc
import itertools
import math
import re
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from contextlib import asynccontextmanager, contextmanager

import msgspec
import pytest
import zmq

from contextpilot_integrations import ContextBlock, ContextPilot
from contextpilot_integrations.engines.cache_follower import CacheFollower, Noticed
from contextpilot_integrations.engines.page_table import Prompt
from contextpilot_integrations.engines.subscriber import AsyncKvEventSubscriber, KvEventSubscriber

PATIENCE = 20  # seconds, for what takes milliseconds on an idle machine
BLOCKS = [ContextBlock(str(i), f"passage {i}") for i in range(4)]
TOKENS, ENDS = list(range(16)), [4, 8, 12, 16]  # A page a block.
END = b"\xff" * 8


def vllm_stored(hashes, tokens, parent=None, **fields):
    event = {"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": tokens}
    return event | {"block_size": 4, "lora_id": None, "medium": "GPU", "group_idx": 0} | fields


def vllm_removed(*hashes):
    return {"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU", "group_idx": 0}


STORED = vllm_stored([1, 2, 3, 4], TOKENS)


class Publisher:
    """Publishes batches, and sends the last of them again to whoever asks.

    It is in the engines' order: a message is buffered even if it is not sent, which here means lost.
    """

    def __init__(self, folder, *, buffer=100, replies=True, topic=b"kv-events", old=False):
        self.endpoint, self.replay_endpoint = f"ipc://{folder}/e", f"ipc://{folder}/r"
        self.buffer, self.topic, self.old, self.replies = [], topic, old, replies
        self.size = buffer
        self.asked = []
        self._numbers = itertools.count()
        self._pub = zmq.Context.instance().socket(zmq.XPUB)
        self._pub.set(zmq.LINGER, 0)
        self._pub.set(zmq.XPUB_VERBOSE, 1)
        self._pub.bind(self.endpoint)
        self._router = zmq.Context.instance().socket(zmq.ROUTER)
        self._router.set(zmq.LINGER, 0)
        self._router.bind(self.replay_endpoint)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def wait_for_subscriber(self):
        assert self._pub.poll(PATIENCE * 1_000), "nobody subscribed"
        return self._pub.recv()

    def publish(self, *events, lost=False, rank=0):
        self.publish_raw(msgspec.msgpack.encode([time.time(), list(events), rank]), lost=lost)

    def publish_raw(self, payload, *, lost=False):
        number = next(self._numbers)
        self.buffer = [*self.buffer, (number, payload)][-self.size :]
        if not lost:
            self._pub.send_multipart([self.topic, number.to_bytes(8, "big"), payload])

    def publish_frames(self, *frames):
        self._pub.send_multipart(frames)

    def restart(self):
        self.buffer = []
        self._numbers = itertools.count()

    def _serve(self):
        while not self._closing.is_set():
            if not self._router.poll(20):
                continue
            client, empty, start = self._router.recv_multipart()
            self.asked.append(int.from_bytes(start, "big"))
            if not self.replies:
                continue
            topic = [] if self.old else [self.topic]
            for number, payload in self.buffer:
                if number >= self.asked[-1]:
                    self._router.send_multipart([client, empty, *topic, number.to_bytes(8, "big"), payload])
            self._router.send_multipart([client, empty, *([] if self.old else [b""]), END, b""])
        self._router.close()

    def close(self):
        self._closing.set()
        self._thread.join(PATIENCE)
        self._pub.close()


@contextmanager
def publishing(**settings):
    # A folder of its own with a short name: an ipc path has room for about 100 characters.
    with tempfile.TemporaryDirectory() as folder:
        publisher = Publisher(folder, **settings)
        try:
            yield publisher
        finally:
            publisher.close()


@pytest.fixture
def publisher():
    with publishing() as publisher:
        yield publisher


@asynccontextmanager
async def in_a_thread(*args, **settings):
    with KvEventSubscriber(*args, **settings) as subscriber:
        yield subscriber


@pytest.fixture(params=[in_a_thread, AsyncKvEventSubscriber], ids=["thread", "task"])
def subscriber(request):
    """Each test runs with both."""
    return request.param


@asynccontextmanager
async def listening(subscriber, publisher, follower, *, replay=True, **settings):
    endpoint = publisher.replay_endpoint if replay else None
    async with subscriber(follower, publisher.endpoint, endpoint, **settings) as running:
        await asyncio.to_thread(publisher.wait_for_subscriber)
        yield running


async def until(condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never came to be so"
        await asyncio.sleep(0.005)


def believed(pilot):
    with pilot.index() as index:
        index.check_integrity()
        return len(index.search([block.digest for block in BLOCKS]).blocks)


@pytest.fixture
def pilot():
    return ContextPilot()


@pytest.fixture
def follower(pilot):
    return CacheFollower(pilot)


def send(pilot, follower):
    follower.track(pilot.prepare(BLOCKS), Prompt(TOKENS), ENDS)


def held(follower):
    return follower.cached_tokens(Prompt(TOKENS))


async def test_half_a_prefix_evicted_is_half_a_prefix_believed(subscriber, publisher, pilot, follower):
    async with listening(subscriber, publisher, follower):
        send(pilot, follower)
        publisher.publish(STORED)
        await until(lambda: held(follower) == 16)
        publisher.publish(vllm_removed(4), vllm_removed(3))
        await until(lambda: held(follower) == 8)
        assert believed(pilot) == 2


async def test_sglangs_stream(subscriber, pilot, follower):
    with publishing(topic=b"", old=True) as publisher:
        async with listening(subscriber, publisher, follower):
            send(pilot, follower)
            publisher.publish(["BlockStored", [-1, -2, 3, 4], None, TOKENS, 4, None], lost=True)
            publisher.publish({"type": "BlockRemoved", "block_hashes": [2**64 - 2]})
            await until(lambda: held(follower) == 4)
            assert believed(pilot) == 1
            assert follower.noticed[Noticed.LOST] == 0


async def test_lost_messages_are_replayed(subscriber, publisher, pilot, follower):
    async with listening(subscriber, publisher, follower):
        send(pilot, follower)
        publisher.publish(STORED)
        publisher.publish(vllm_removed(4), lost=True)
        publisher.publish(vllm_removed(3), lost=True)
        publisher.publish(vllm_stored([9], [9] * 4))
        await until(lambda: follower.cached_tokens(Prompt([9] * 4)) == 4)
        assert held(follower) == 8
        assert believed(pilot) == 2
        assert follower.noticed[Noticed.LOST] == 0
        assert publisher.asked == [0]


async def test_history_is_replayed_to_who_comes_late(subscriber, publisher, pilot, follower):
    publisher.publish(STORED)
    async with listening(subscriber, publisher, follower):
        send(pilot, follower)
        publisher.publish(vllm_removed(4))
        await until(lambda: held(follower) == 12)
        assert believed(pilot) == 3


@pytest.mark.parametrize(
    ("engine", "replay"),
    [({"buffer": 1}, True), ({"replies": False}, True), ({}, False)],
    ids=["gone", "silent", "no endpoint"],
)
async def test_what_cannot_be_replayed_ends_the_belief_and_not_the_stream(
    subscriber, pilot, follower, engine, replay
):
    with publishing(**engine) as publisher:
        async with listening(subscriber, publisher, follower, replay=replay, replay_timeout=0.2):
            send(pilot, follower)
            publisher.publish(STORED)
            await until(lambda: held(follower) == 16)
            publisher.publish(vllm_removed(4), lost=True)
            publisher.publish(vllm_removed(9))
            await until(lambda: follower.noticed[Noticed.LOST] == 1)
            await until(lambda: believed(pilot) == 0)
            assert held(follower) == 0
            send(pilot, follower)
            publisher.publish(STORED, vllm_removed(2))
            await until(lambda: held(follower) == 4)
            assert believed(pilot) == 1


async def test_a_restart_ends_the_belief(subscriber, publisher, pilot, follower):
    async with listening(subscriber, publisher, follower):
        send(pilot, follower)
        publisher.publish(STORED)
        publisher.publish(vllm_stored([9], [9] * 4))
        await until(lambda: follower.cached_tokens(Prompt([9] * 4)) == 4)
        publisher.restart()
        publisher.publish(vllm_stored([5], TOKENS[:4]))
        await until(lambda: follower.noticed[Noticed.RESTARTED] == 1)
        await until(lambda: held(follower) == 4)
        assert believed(pilot) == 0


async def test_a_cleared_cache_ends_the_belief(subscriber, publisher, pilot, follower):
    async with listening(subscriber, publisher, follower):
        send(pilot, follower)
        publisher.publish(STORED)
        await until(lambda: held(follower) == 16)
        publisher.publish({"type": "AllBlocksCleared"})
        await until(lambda: believed(pilot) == 0)


async def test_a_late_stream_is_harmless(subscriber, publisher, pilot, follower):
    async with listening(subscriber, publisher, follower):
        # All of this happened before the first event about it comes.
        send(pilot, follower)
        send(pilot, follower)
        assert believed(pilot) == 4
        publisher.publish(STORED)
        publisher.publish(vllm_removed(4), vllm_removed(3))
        publisher.publish(vllm_stored([3, 4], TOKENS[8:], parent=2), vllm_stored([9], [9] * 4))
        await until(lambda: follower.cached_tokens(Prompt([9] * 4)) == 4)
        assert held(follower) == 16
        assert believed(pilot) == 2
        send(pilot, follower)
        publisher.publish(vllm_removed(4))
        await until(lambda: held(follower) == 12)
        assert believed(pilot) == 3


@pytest.mark.parametrize(
    ("bad", "noticed"), [(b"\xc1secret", Noticed.GARBAGE), (b"\x93" * 5_000, Noticed.TOO_LARGE)]
)
async def test_what_cannot_be_read_ends_the_belief_and_not_the_stream(
    subscriber, publisher, pilot, caplog, bad, noticed
):
    follower = CacheFollower(pilot, max_payload_bytes=4_000)
    async with listening(subscriber, publisher, follower):
        send(pilot, follower)
        publisher.publish_raw(bad)
        publisher.publish_raw(bad)
        publisher.publish(STORED)
        await until(lambda: held(follower) == 16)
        assert follower.noticed[noticed] == 2
        assert believed(pilot) == 0
    assert "secret" not in caplog.text
    assert len(caplog.records) == 1


async def test_frames_that_are_no_message_and_events_of_unknown_types(subscriber, publisher, follower):
    async with listening(subscriber, publisher, follower):
        publisher.publish_frames(b"kv-events")
        publisher.publish_frames(b"kv-events", b"short", b"")
        publisher.publish({"type": "BlockMoved", "to": "CPU"}, STORED)
        await until(lambda: held(follower) == 16)
        assert follower.noticed[Noticed.GARBAGE] == 2
        assert follower.noticed[Noticed.UNKNOWN_EVENT] == 1


async def test_salts_are_apart(subscriber, publisher, follower):
    async with listening(subscriber, publisher, follower):
        salted = vllm_stored([1, 2], TOKENS[:8], extra_keys=[["ours"], None])
        publisher.publish(salted, vllm_stored([3], TOKENS[:4]))
        await until(lambda: held(follower) == 4)
        assert follower.cached_tokens(Prompt(TOKENS, salt="ours")) == 8
        assert follower.cached_tokens(Prompt(TOKENS, salt="theirs")) == 0


async def test_three_copies_are_removed_three_times(subscriber, publisher, pilot, follower):
    async with listening(subscriber, publisher, follower):
        send(pilot, follower)
        publisher.publish(STORED, STORED, STORED)
        publisher.publish(vllm_removed(3), vllm_removed(3), vllm_stored([9], [9] * 4))
        await until(lambda: follower.cached_tokens(Prompt([9] * 4)) == 4)
        assert (held(follower), believed(pilot)) == (16, 4)
        publisher.publish(vllm_removed(3))
        await until(lambda: held(follower) == 8)
        assert believed(pilot) == 2


async def test_ranks_have_a_stream_each_and_share_a_follower(subscriber, publisher, pilot, follower):
    with publishing() as second:
        async with listening(subscriber, publisher, follower), listening(subscriber, second, follower):
            send(pilot, follower)
            publisher.publish(STORED)
            second.publish(STORED, rank=1)
            await until(lambda: held(follower) == follower.cached_tokens(Prompt(TOKENS), rank=1) == 16)
            publisher.publish(vllm_removed(4))
            await until(lambda: held(follower) == 12)
            assert believed(pilot) == 4
            second.publish(vllm_removed(4), rank=1)
            await until(lambda: believed(pilot) == 3)


async def test_only_the_topic_is_subscribed_to(subscriber, publisher, follower):
    async with subscriber(follower, publisher.endpoint, topic="kv"):
        assert await asyncio.to_thread(publisher.wait_for_subscriber) == b"\x01kv"
        publisher.publish_frames(b"other", b"\0" * 8, b"garbage")
        publisher.publish(STORED)
        await until(lambda: held(follower) == 16)
        assert follower.noticed[Noticed.GARBAGE] == 0


async def test_a_failure_inside_ends_the_belief_and_not_the_stream(
    subscriber, publisher, pilot, follower, monkeypatch, caplog
):
    async with listening(subscriber, publisher, follower):
        send(pilot, follower)
        with monkeypatch.context() as broken:
            broken.setattr(follower, "take", lambda payload: 1 / 0)
            publisher.publish(STORED)
            await until(lambda: believed(pilot) == 0)
        publisher.publish(STORED)
        await until(lambda: held(follower) == 16)
    assert "ZeroDivisionError" in caplog.text


async def test_it_closes_while_it_waits_for_a_replay(subscriber, follower):
    with publishing(replies=False) as publisher:
        start = time.monotonic()
        async with listening(subscriber, publisher, follower, replay_timeout=60):
            publisher.publish(STORED, lost=True)
            publisher.publish(STORED)
            await until(lambda: publisher.asked == [0])
        assert time.monotonic() - start < PATIENCE


async def test_it_closes_before_it_has_begun(subscriber, follower):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        async with subscriber(follower, "tcp://127.0.0.1:9"):
            pass
        gc.collect()
    # What other tests left to the garbage collector may be among them.
    assert not [str(warning.message) for warning in caught if "zmq" in str(warning.message)]


async def test_it_closes_though_the_engine_never_was_there(subscriber, follower):
    start = time.monotonic()
    async with subscriber(follower, "tcp://127.0.0.1:9", "tcp://127.0.0.1:9"):
        pass
    assert time.monotonic() - start < PATIENCE
    assert "kv-events" not in {thread.name for thread in threading.enumerate()}


ASKING_NOBODY = """
import sys, time, zmq
from contextpilot_integrations import ContextPilot
from contextpilot_integrations.engines.cache_follower import CacheFollower, Noticed
from contextpilot_integrations.engines.subscriber import KvEventSubscriber

context, follower = zmq.Context.instance(), CacheFollower(ContextPilot())
publisher = context.socket(zmq.XPUB)
publisher.bind("inproc://events")
with KvEventSubscriber(follower, "inproc://events", "tcp://127.0.0.1:9", replay_timeout=0.1):
    publisher.recv()
    publisher.send_multipart([b"", (5).to_bytes(8, "big"), b"garbage"])
    while not follower.noticed[Noticed.GARBAGE]:
        time.sleep(0.01)
publisher.close(0)
context.term()
"""


def test_a_request_that_reaches_nobody_does_not_keep_the_program_from_ending():
    subprocess.run([sys.executable, "-c", ASKING_NOBODY], check=True, timeout=3 * PATIENCE)


@pytest.mark.parametrize(
    "wrong",
    [
        ("localhost:5557", None),
        ("tcp://*:5557", None),
        ("tcp://localhost", None),
        ("inproc://kv-test", "nowhere"),
    ],
)
async def test_an_address_that_is_none_fails_at_once(subscriber, follower, wrong):
    name, named = "replay_endpoint" if wrong[1] else "endpoint", re.escape(repr(wrong[1] or wrong[0]))
    with pytest.raises(ValueError, match=f'^{name} must be .* such as "tcp://localhost:5557", got {named}'):
        async with subscriber(follower, *wrong):
            pass


@pytest.mark.parametrize("kind", [KvEventSubscriber, AsyncKvEventSubscriber])
@pytest.mark.parametrize("seconds", [0, math.inf, math.nan])
def test_a_timeout_of_nothing_or_for_ever_is_refused(kind, follower, seconds):
    with pytest.raises(ValueError, match=f"number of seconds above 0, got {seconds}"):
        kind(follower, "inproc://kv-test", replay_timeout=seconds)


async def test_the_event_loop_runs_on_under_a_flood(publisher, follower):
    async with listening(AsyncKvEventSubscriber, publisher, follower):
        for _ in range(200):
            publisher.publish(STORED)
        turns = 0
        while held(follower) < 16 or follower.noticed[Noticed.CLEARED] < 1:
            turns += 1
            if turns == 1:
                publisher.publish({"type": "AllBlocksCleared"}, STORED)
            await asyncio.sleep(0)
        assert turns > 20
