"""Listening to an engine's KV events over ZeroMQ, in a thread or in an asyncio task.

vLLM publishes them with ``--kv-events-config '{"enable_kv_cache_events": true, "publisher": "zmq",
"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558"}'``, SGLang with ``--kv-events-config`` and the
same keys but the first. Each data-parallel rank publishes on ports of its own and needs a subscriber of its
own; all of them may share one follower. Engines behind one load-balanced address cannot be told apart: a page
counts as held while one of those that are listened to holds it, whoever is asked next.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from threading import Event, Thread
from time import monotonic
from types import TracebackType
from typing import Self

try:
    import zmq
    import zmq.asyncio
except ImportError as error:
    raise ImportError(
        "listening to KV events needs pyzmq; install it with: "
        'pip install "contextpilot-integrations[events]"',
        name="zmq",
    ) from error

from contextpilot_integrations.engines.cache_follower import CacheFollower, Noticed
from contextpilot_integrations.engines.event_stream import EventStream, is_end_of_replay, replay_request

__all__ = ["AsyncKvEventSubscriber", "KvEventSubscriber"]

logger = logging.getLogger(__name__)

# How long a thread waits before it looks whether it should end, in milliseconds.
_TICK = 100
_CLOSING_SECONDS = 5.0
# As many messages as the engines queue before they drop one.
_QUEUE = 100_000


class _Subscriber:
    """What a subscriber listens to, and whom it tells."""

    def __init__(
        self,
        follower: CacheFollower,
        endpoint: str,
        replay_endpoint: str | None = None,
        topic: str = "",
        *,
        replay_timeout: float = 5.0,
    ) -> None:
        if not 0 < replay_timeout < math.inf:
            raise ValueError(f"replay_timeout must be a number of seconds above 0, got {replay_timeout}")
        self._follower = follower
        self._endpoint = endpoint
        self._replay_endpoint = replay_endpoint
        self._topic = topic
        self._replay_timeout = replay_timeout
        self._stream = EventStream(follower)

    def _subscribe(self, socket: zmq.Socket[bytes] | zmq.asyncio.Socket) -> None:
        try:
            socket.set(zmq.RCVHWM, _QUEUE)
            socket.set(zmq.SUBSCRIBE, self._topic.encode())
            _connect(socket, "endpoint", self._endpoint)
            if self._replay_endpoint is not None:  # A wrong address should fail now, not at the first gap.
                probe: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
                with probe:
                    _connect(probe, "replay_endpoint", self._replay_endpoint)
        except BaseException:
            socket.close()
            raise

    def _failed(self, error: Exception) -> None:
        # The error's message may quote an event, so only its type is logged.
        logger.warning(
            "following KV events failed with %s; what was believed is forgotten", type(error).__name__
        )
        self._follower.doubt(Noticed.LOST)


class KvEventSubscriber(_Subscriber):
    """Listens in a daemon thread while its ``with`` block runs.

    Messages that were lost are asked for again; where the engine no longer has them, what was believed is
    forgotten. Nothing that an engine sends ends the thread. Enter it before the first request is sent.

    An engine that restarts or is reset is noticed by the event of its next request: until then what it had
    cached before is predicted.

    Args:
        follower: Who is told what happens.
        endpoint: Where the engine publishes, as a client connects to it: "tcp://localhost:5557".
        replay_endpoint: Where it sends lost messages again; None: what is lost is lost.
        topic: What the messages' topics start with.
        replay_timeout: How many seconds to wait for each message of a replay.

    Raises:
        ValueError: If ``replay_timeout`` is not above 0, or infinite; on entering, if an endpoint is no
            address to connect to.
    """

    def __enter__(self) -> Self:
        self._closing = Event()
        socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.SUB)
        self._subscribe(socket)
        self._thread = Thread(target=self._listen, args=[socket], name="kv-events", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._thread.join(_CLOSING_SECONDS)

    def _listen(self, socket: zmq.Socket[bytes]) -> None:
        with socket:
            while not self._closing.is_set():
                try:
                    if socket.poll(_TICK):
                        self._receive(socket.recv_multipart())
                except zmq.ContextTerminated as error:  # By the application: no more will come.
                    self._failed(error)
                    return
                except Exception as error:
                    self._failed(error)

    def _receive(self, frames: list[bytes]) -> None:
        start = self._stream.missing_before(frames)
        if start is not None and self._replay_endpoint is not None:
            dealer: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
            with dealer:
                _connect(dealer, "replay_endpoint", self._replay_endpoint)
                dealer.send_multipart(replay_request(start))
                self._receive_replay(dealer)
        self._stream.live(frames)

    def _receive_replay(self, dealer: zmq.Socket[bytes]) -> None:
        deadline = monotonic() + self._replay_timeout
        while not self._closing.is_set() and monotonic() < deadline:
            if dealer.poll(min(_TICK, round(1_000 * self._replay_timeout))):
                frames = dealer.recv_multipart()
                if is_end_of_replay(frames):
                    return
                self._stream.replayed(frames)
                deadline = monotonic() + self._replay_timeout


class AsyncKvEventSubscriber(_Subscriber):
    """Listens in a task of the running event loop while its ``async with`` block runs.

    Otherwise it is as `KvEventSubscriber` is, and its arguments and errors are the same.
    """

    async def __aenter__(self) -> Self:
        self._context = zmq.asyncio.Context(shadow=zmq.Context.instance())
        socket = self._context.socket(zmq.SUB)
        self._subscribe(socket)
        self._task = asyncio.create_task(self._listen(socket), name="kv-events")
        # Not by the task itself, which is cancelled before it has begun where the block ends at once.
        self._task.add_done_callback(lambda _: socket.close())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._task.cancel()
        await asyncio.wait([self._task], timeout=_CLOSING_SECONDS)

    async def _listen(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            try:
                await self._receive(await socket.recv_multipart())
            except zmq.ContextTerminated as error:  # By the application: no more will come.
                self._failed(error)
                return
            except Exception as error:
                self._failed(error)

    async def _receive(self, frames: list[bytes]) -> None:
        start = self._stream.missing_before(frames)
        if start is not None and self._replay_endpoint is not None:
            with self._context.socket(zmq.DEALER) as dealer:
                _connect(dealer, "replay_endpoint", self._replay_endpoint)
                await dealer.send_multipart(replay_request(start))
                with contextlib.suppress(TimeoutError):
                    await self._receive_replay(dealer)
        self._stream.live(frames)
        await asyncio.sleep(0)  # Messages that wait already are received without a pause.

    async def _receive_replay(self, dealer: zmq.asyncio.Socket) -> None:
        while True:
            frames = await asyncio.wait_for(dealer.recv_multipart(), self._replay_timeout)
            if is_end_of_replay(frames):
                return
            self._stream.replayed(frames)
            await asyncio.sleep(0)


def _connect(socket: zmq.Socket[bytes] | zmq.asyncio.Socket, name: str, address: str) -> None:
    socket.set(zmq.LINGER, 0)  # An engine that cannot be reached must not hold up the end.
    try:
        socket.connect(address)
    except zmq.ZMQError as error:
        raise ValueError(
            f"{name} must be an address to connect to, with protocol and port, such as "
            f'"tcp://localhost:5557", got {address!r}'
        ) from error
