"""Record the cache events of a real vLLM for the tests that read them without one.

Run as ``.venv-vllm/bin/python tests/engine_tests/record_kv_events.py``; the recordings in
tests/unit_tests/engines/data are replaced. What they hold is described there.
"""

import json
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import zmq

from contextpilot_integrations.engines import read_usage
from contextpilot_integrations.evaluation.tiny_llama import write_tiny_llama
from contextpilot_integrations.evaluation.vllm_server import VLLMServer

DATA = Path(__file__).parents[1] / "unit_tests" / "engines" / "data"
BLOCK = 32
BLOCKS = 12  # One of them unusable: two prompts of 6 blocks do not fit.
QUIET = 500  # Milliseconds without a message, after which none is to come.


class Recorder:
    """Sends requests, and writes them and the messages that they cause in the order seen."""

    def __init__(self, server: VLLMServer, client: openai.OpenAI) -> None:
        self._server, self._client = server, client
        self._subscriber = zmq.Context.instance().socket(zmq.SUB)
        self._subscriber.subscribe(server.topic)
        self._subscriber.connect(server.events_endpoint)
        while not self._subscriber.poll(QUIET):  # Until the subscription has arrived.
            self._complete(prompt(random.randrange(10**9), 1))
        self._lines: list[dict[str, Any]] = []
        self._heard()

    @contextmanager
    def recording(self, name: str, about: str) -> Iterator[None]:
        self._server.reset_prefix_cache()
        self._lines = [{"about": about}]
        yield
        text = "".join(json.dumps(line) + "\n" for line in self._lines)
        (DATA / f"{name}.jsonl").write_text(text)

    def send(self, ids: list[int], **body: object) -> None:
        """Send a prompt, and record it and what it causes."""
        answer = self._complete(ids, **body)
        cached = read_usage(answer).cached_tokens
        self._lines.append({"sent": {"token_ids": ids, **body}, "cached_tokens": cached})
        self._lines += [{"frames": [frame.hex() for frame in message]} for message in self._heard()]

    def reset(self) -> None:
        self._server.reset_prefix_cache()
        self._lines.append({"reset": True})

    def replay(self, start: Callable[[int], int]) -> None:
        """Record a replay from a number on, given as what to make of the recording's first one."""
        first = next(int(line["frames"][1], 16) for line in self._lines if "frames" in line)
        number = start(first)
        with zmq.Context.instance().socket(zmq.DEALER) as dealer:
            dealer.connect(self._server.replay_endpoint)
            dealer.send_multipart([b"", number.to_bytes(8, "big")])
            self._lines.append({"replay_from": number})
            while dealer.poll(QUIET):
                self._lines.append({"replayed": [frame.hex() for frame in dealer.recv_multipart()]})

    def _complete(self, prompt: Any, **body: object) -> Any:
        return self._client.completions.create(model="tiny", prompt=prompt, max_tokens=1, extra_body=body)

    def _heard(self) -> list[list[bytes]]:
        messages = []
        while self._subscriber.poll(QUIET):
            messages.append(self._subscriber.recv_multipart())
        return messages


def prompt(seed: int, blocks: int) -> list[int]:
    """So many full blocks and one token, in tokens that msgpack writes in one byte."""
    return [*random.Random(seed).choices(range(3, 128), k=blocks * BLOCK), 5]


def record(recorder: Recorder) -> None:
    one, two, other = prompt(1, 4), prompt(2, 2), prompt(3, 6)
    with recorder.recording("vllm-eviction", "a branch, a hit, an eviction, a reset"):
        recorder.send(one, session_id="s-1")
        recorder.send([*one[: 3 * BLOCK], *two], session_id="s-2")
        recorder.send(one, session_id="s-3")
        recorder.send(other, session_id="s-4")
        recorder.reset()
        recorder.send(two, session_id="s-5")
    with recorder.recording("vllm-salts", "two tenants, one without a session, and a full report"):
        recorder.send(two, cache_salt="alice", session_id="s-1")
        recorder.send(two, cache_salt="bob")
        recorder.send(two, cache_salt="bob", vllm_xargs={"kv_cache_report_mode": "full"})
    with recorder.recording("vllm-copies", "three copies of one block, then the eviction of all"):
        # Its last token is always computed, so a prompt that ends with a block has that one stored again.
        full = two[:-1]
        for _ in range(3):
            recorder.send(full)
        recorder.send(other)
        recorder.send(prompt(4, 9))
    with recorder.recording("vllm-replay", "replays from the first message, past it, past the last"):
        recorder.send(prompt(5, 1))
        recorder.send(prompt(6, 1))
        recorder.replay(lambda first: first)
        recorder.replay(lambda first: first + 1)
        recorder.replay(lambda first: first + 2)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as model:
        write_tiny_llama(model)
        DATA.mkdir(exist_ok=True)
        with (
            VLLMServer(model, blocks=BLOCKS, max_model_len=(BLOCKS - 1) * BLOCK) as server,
            openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client,
        ):
            record(Recorder(server, client))
