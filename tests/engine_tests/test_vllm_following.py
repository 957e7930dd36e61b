"""Completions with a follower, held against a vLLM whose cache is so small that it evicts all the time.

What is expected of a request, before it is sent, is what vLLM then says it had cached of it. What the index
believes may be a little less, never more: it counts in whole blocks.
"""

import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread

import httpx
import openai
import pytest
import zmq

from contextpilot_integrations import ContextPilot, Plan
from contextpilot_integrations.demo.handbook import questions
from contextpilot_integrations.engines.cache_follower import CacheFollower, Noticed
from contextpilot_integrations.engines.page_table import Prompt
from contextpilot_integrations.engines.subscriber import KvEventSubscriber
from contextpilot_integrations.openai import Completion, Completions
from contextpilot_integrations.openai.exchange import Exchange

PAGE = 32
PATIENCE = 20  # seconds, for what takes milliseconds on an idle machine
QUESTIONS = [question.question for question in questions()]

# 4,128 tokens: five or six of the prompts, which have some 750 tokens each.
pytestmark = pytest.mark.parametrize(
    "warm_server", [{"blocks": 130, "max_model_len": 4096}], indirect=True, scope="session"
)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never came to be so"
        time.sleep(0.001)


class Forwarder:
    """Stands between an engine's event stream and a subscriber, and loses every seventh message on demand."""

    def __init__(self, source: str, folder: str) -> None:
        self.endpoint = f"ipc://{folder}/forwarded"
        self.loses = False
        self.lost = 0
        self._closing = Event()
        self._sub = zmq.Context.instance().socket(zmq.SUB)
        self._sub.subscribe(b"")
        self._sub.connect(source)
        self._pub = zmq.Context.instance().socket(zmq.PUB)
        self._pub.set(zmq.LINGER, 0)
        self._pub.bind(self.endpoint)
        self._thread = Thread(target=self._forward, daemon=True)
        self._thread.start()

    def _forward(self) -> None:
        while not self._closing.is_set():
            if self._sub.poll(20):
                frames = self._sub.recv_multipart()
                if self.loses and int.from_bytes(frames[1], "big") % 7 == 3:
                    self.lost += 1
                else:
                    self._pub.send_multipart(frames)
        self._sub.close()
        self._pub.close()

    def close(self) -> None:
        self._closing.set()
        self._thread.join(PATIENCE)


@contextmanager
def forwarding(server) -> Iterator[Forwarder]:
    with tempfile.TemporaryDirectory(prefix="kv-") as folder:
        forwarder = Forwarder(server.events_endpoint, folder)
        try:
            yield forwarder
        finally:
            forwarder.close()


@dataclass(frozen=True, slots=True)
class Answered:
    """A completion, beside what is true of it.

    Attributes:
        plan: How it was sent, and what was expected.
        prompt: All its tokens, as the engine's prefix cache sees them.
        cached: How many tokens vLLM had cached.
        certain: How many of the blocks lie in these with all their tokens.
        ends: Where each of the blocks ends in the prompt, by the tokenizer.
    """

    plan: Plan
    prompt: Prompt
    cached: int
    certain: int
    ends: tuple[int, ...]

    @property
    def exact(self) -> bool:
        return self.plan.expected_cached_tokens == self.cached

    @property
    def believed_too_much(self) -> int:
        """How many of the blocks believed do not lie in cached pages up to the last page that they fill."""
        ends = self.ends[: self.plan.expected_cached_blocks]
        return sum(end // PAGE * PAGE > self.cached for end in ends)

    @property
    def believed_too_little(self) -> int:
        return max(0, self.certain - self.plan.expected_cached_blocks)


class Session:
    """Asks the demo's questions, one at a time, and waits until each is followed."""

    def __init__(self, completions: Completions, follower: CacheFollower, contexts, tokens) -> None:
        self.completions = completions
        self.follower = follower
        self.contexts = contexts
        self._tokens = tokens

    def ask(self, place: int, **params) -> Answered:
        completion = self.completions.complete(self.contexts[place], QUESTIONS[place], max_tokens=1, **params)
        return self.answered(completion, place)

    def ask_and_wait(self, place: int, **params) -> Answered:
        """Ask, and wait until the follower knows all pages of the prompt."""
        answered = self.ask(place, **params)
        self.wait_for(answered.prompt)
        return answered

    def wait_for(self, prompt: Prompt) -> None:
        full = len(prompt.token_ids) // PAGE * PAGE
        until(lambda: self.follower.cached_tokens(prompt) == full)

    def settle(self) -> None:
        """Send prompts never seen, and so a page each, until one is followed: so is all before it."""
        deadline = time.monotonic() + PATIENCE
        followed = False
        while not followed:
            assert time.monotonic() < deadline, "no event arrived"
            text = f"{random.random()} " * 3
            prompt = Prompt(self._tokens(text))
            assert PAGE < len(prompt.token_ids) < 3 * PAGE
            self.completions.complete([], text, max_tokens=1)
            for _ in range(200):
                if followed := self.follower.cached_tokens(prompt) > 0:
                    break
                time.sleep(0.001)

    def answered(self, completion: Completion, place: int) -> Answered:
        plan, cached = completion.plan, completion.usage.cached_tokens
        text = "\n\n".join(part for part in (plan.render(), plan.order_annotation, QUESTIONS[place]) if part)
        prompt = Prompt(self._tokens(text), plan.namespace.tenant or None)
        ends = tuple(len(self._tokens(text, until=block.render())) for block in plan.blocks)
        if completion.finish_reason is not None:
            assert completion.usage.prompt_tokens == len(prompt.token_ids)
        return Answered(plan, prompt, cached or 0, sum(end <= (cached or 0) for end in ends), ends)

    def check_integrity(self) -> None:
        with self.follower.pilot.index(self.completions.complete([], "?").plan.namespace) as index:
            index.check_integrity()


@pytest.fixture
def session(server, client, contexts, tokens, tokenizer):
    """Start a session, with a pilot that counts tokens as the model does if no other one is given."""

    @contextmanager
    def session(
        *,
        pilot: ContextPilot | None = None,
        events: str | None = None,
        replay: bool = True,
        client: openai.OpenAI = client,
    ) -> Iterator[Session]:
        pilot = pilot or ContextPilot(
            token_counter=lambda text: len(tokenizer.encode(text, add_special_tokens=False))
        )
        follower = CacheFollower(pilot)
        endpoint = server.replay_endpoint if replay else None
        with KvEventSubscriber(follower, events or server.events_endpoint, endpoint):
            completions = Completions(pilot, client, model=server.name, follower=follower)
            running = Session(completions, follower, contexts, tokens)
            running.settle()  # The subscription has arrived.
            yield running

    return session


def drawn(seed: int, number: int) -> list[int]:
    return random.Random(seed).choices(range(len(QUESTIONS)), k=number)


def exact(answers: Sequence[Answered]) -> int:
    return sum(answered.exact for answered in answers)


def test_500_requests_under_eviction(session):
    with session() as running:
        answers = [running.ask_and_wait(place) for place in drawn(0, 500)]
        running.check_integrity()
        noticed = running.follower.noticed
    off = [(n, a.plan.expected_cached_tokens, a.cached) for n, a in enumerate(answers) if not a.exact]
    assert sum(abs(expected - cached) <= PAGE for _, expected, cached in off) + exact(answers) >= 495, off
    assert noticed[Noticed.CUT] > 100
    assert noticed[Noticed.LOST] == noticed[Noticed.GARBAGE] == 0
    assert max(a.believed_too_much for a in answers) == 0
    assert max(a.believed_too_little for a in answers) <= 1
    assert sum(a.cached for a in answers) > 0.1 * sum(a.ends[-1] for a in answers)


def test_an_estimate_of_lengths_is_enough_for_exact_pages(session):
    with session(pilot=ContextPilot()) as running:
        answers = [running.ask_and_wait(place) for place in drawn(1, 40)]
        running.check_integrity()
        assert running.follower.noticed[Noticed.CUT] > 10
    assert exact(answers) >= 39
    assert sum(a.believed_too_much <= 1 for a in answers) >= 38
    assert sum(a.believed_too_little <= 1 for a in answers) >= 38


def asked_one_by_one(running: Session, places: Sequence[int]) -> list[Answered]:
    """Ask, and wait each time for a later message: then a loss has been noticed."""
    answers = []
    for place in places:
        answers.append(running.ask(place))
        running.settle()
    running.check_integrity()
    assert max(a.believed_too_much for a in answers) == 0
    return answers


def test_lost_messages_are_replayed(server, session):
    with forwarding(server) as forwarder, session(events=forwarder.endpoint) as running:
        forwarder.loses = True
        answers = asked_one_by_one(running, drawn(2, 20))
        assert forwarder.lost > 3
        assert running.follower.noticed[Noticed.LOST] == 0
        assert running.follower.noticed[Noticed.CUT] > 8
    assert exact(answers) >= 19


def test_what_is_lost_for_good_costs_hits_and_is_never_believed(server, session):
    with forwarding(server) as forwarder, session(events=forwarder.endpoint, replay=False) as running:
        forwarder.loses = True
        answers = asked_one_by_one(running, drawn(3, 20))
        assert running.follower.noticed[Noticed.LOST] == forwarder.lost > 3
    assert all(a.plan.expected_cached_tokens <= a.cached for a in answers)
    assert any(a.plan.expected_cached_tokens > 0 for a in answers)
    assert any(a.plan.expected_cached_tokens < a.cached for a in answers)


def test_a_cleared_cache_is_believed_to_be_empty(server, session):
    with session() as running:
        assert [running.ask_and_wait(0).cached > 0 for _ in range(2)] == [False, True]
        before = running.follower.noticed[Noticed.CLEARED]
        server.reset_prefix_cache()
        running.settle()  # vLLM tells it with the next batch.
        assert running.follower.noticed[Noticed.CLEARED] == before + 1
        assert_cold_and_right(running)


def assert_cold_and_right(running: Session) -> None:
    cold, warm = running.ask_and_wait(0), running.ask_and_wait(0)
    assert (cold.plan.expected_cached_blocks, cold.plan.expected_cached_tokens, cold.cached) == (0, 0, 0)
    assert warm.plan.expected_cached_blocks == len(warm.plan.blocks)
    assert warm.plan.expected_cached_tokens == warm.cached > 0
    running.check_integrity()


@pytest.fixture
def sent():
    """The bodies that went out as chat completions, and a client that notes them."""
    bodies = []

    def note(request: httpx.Request) -> None:
        if request.url.path.endswith("/chat/completions"):
            bodies.append(json.loads(request.content))

    return bodies, httpx.Client(event_hooks={"request": [note]})


def test_a_stream_and_one_that_is_given_up(session, contexts):
    with session() as running:
        completions = running.completions
        with completions.stream(contexts[0], QUESTIONS[0], max_tokens=3) as stream:
            list(stream)
        answered = running.answered(stream.completion, 0)
        running.wait_for(answered.prompt)
        repeat = running.ask_and_wait(0)
        assert [answered.exact, repeat.exact] == [True, True]
        assert answered.cached == 0 < repeat.cached

        other = {"ignore_eos": True}
        with completions.stream(contexts[1], QUESTIONS[1], max_tokens=2000, extra_body=other) as stream:
            assert next(iter(stream))
        assert stream.completion.finish_reason is None
        running.wait_for(running.answered(stream.completion, 1).prompt)
        again = running.ask_and_wait(1)
        assert again.plan.expected_cached_blocks == len(again.plan.blocks)
        assert again.exact
        assert again.cached == (len(again.prompt.token_ids) - 1) // PAGE * PAGE
        running.check_integrity()


def test_vllms_id_carries_ours(session, monkeypatch):
    ids, add = [], Exchange.add
    monkeypatch.setattr(Exchange, "add", lambda self, chunk: ids.append(chunk.id) or add(self, chunk))
    with session() as running:
        answered = running.ask(0, request_id="r-1")
        assert ids[-1] == "chatcmpl-r-1"
        assert answered.plan.request_id == "r-1"
        own = running.ask(1).plan.request_id
        assert ids[-1] == f"chatcmpl-{own}"


def test_tenant_bs_prompts_are_what_they_would_be_had_a_never_existed(server, session, sent, contexts):
    bodies, recording = sent
    # Of two blocks each, so that nothing has to be evicted.
    requests = [[contexts[n][0], contexts[n][1]] for n in (0, 4, 8)]
    requests += [requests[0][::-1], [requests[1][1], requests[0][0]]]

    def run(running: Session, *tenants: str) -> list[Answered]:
        running.contexts, answers = requests, []
        for place in range(len(requests)):
            for tenant in tenants:
                if tenant == "a":
                    running.contexts = [request[::-1] for request in requests]
                answers.append(running.ask_and_wait(place, tenant=tenant))
                running.contexts = requests
        return answers

    with (
        recording,
        openai.OpenAI(base_url=server.base_url, api_key="none", http_client=recording) as client,
    ):
        with session(client=client) as running:
            shared = run(running, "a", "b")
        of_b = [body["messages"] for body in bodies if body.get("cache_salt") == "b"]
        server.reset_prefix_cache()
        bodies.clear()
        with session(client=client) as running:
            alone = run(running, "b")
    assert of_b == [body["messages"] for body in bodies if body.get("cache_salt") == "b"]
    assert len(of_b) == len(requests)
    assert all(a.exact for a in [*shared, *alone])
    assert [a.cached for a in shared[1::2]] == [a.cached for a in alone]
    assert shared[1].cached == 0 < shared[0].ends[-1]
    assert any(a.cached for a in alone)


# The last test, since what the others use is another process then.


def test_a_restart_ends_the_belief(server, session):
    with session() as running:
        assert [running.ask_and_wait(0).cached > 0 for _ in range(2)] == [False, True]
        server.stop()
        with pytest.raises(openai.APIConnectionError):
            running.ask(0)
        server.start()
        running.settle()
        assert running.follower.noticed[Noticed.RESTARTED] == 1
        assert_cold_and_right(running)
