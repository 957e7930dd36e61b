"""Completions with a follower, over real sockets, in fair and bad weather."""

import asyncio
import itertools
import random
import threading
import time
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import openai
import pytest
from sglang_stand_in import SGLangStandIn, tokenize

from contextpilot_integrations import ContextBlock, ContextPilot
from contextpilot_integrations.engines.cache_follower import CacheFollower, Noticed
from contextpilot_integrations.engines.page_table import Prompt
from contextpilot_integrations.engines.subscriber import KvEventSubscriber
from contextpilot_integrations.openai import AsyncCompletions, Completions
from contextpilot_integrations.openai.planner import Planner

PATIENCE = 20  # seconds, for what takes milliseconds on an idle machine
TEXT = """
a quay keeps its crane and the harbour its pilots while every ferry waits for the tide to turn
"""
BLOCKS = [
    ContextBlock(str(n), " ".join(random.Random(n).choices(TEXT.split(), k=random.Random(n).randint(20, 60))))
    for n in range(24)
]


def drawn(seed, number):
    """Contexts of two to four blocks, some of which come much more often than others."""
    draw = random.Random(seed)
    weights = [1 / (n + 1) for n in range(len(BLOCKS))]
    return [list(dict.fromkeys(draw.choices(BLOCKS, weights, k=draw.randint(2, 4)))) for _ in range(number)]


@pytest.fixture
def sglang():
    with SGLangStandIn() as engine:
        yield engine


@pytest.fixture
def pilot():
    return ContextPilot(token_counter=lambda text: len(tokenize(text)), on_error="raise")


@pytest.fixture
def follower(pilot):
    return CacheFollower(pilot)


@asynccontextmanager
async def subscribed(follower, engine, *, replay=True, **settings):
    endpoint = engine.replay_endpoint if replay else None
    with KvEventSubscriber(follower, engine.events_endpoint, endpoint, **settings):
        await asyncio.to_thread(engine.wait_for_subscriber)
        yield


def said(caplog):
    return [r.getMessage() for r in caplog.records if r.name.startswith("contextpilot_integrations")]


def check_integrity(pilot, completion):
    with pilot.index(completion.plan.namespace) as index:
        index.check_integrity()


class Asking:
    """Asks, and waits for an event that comes after those of the request."""

    def __init__(self, completions, engine, follower):
        self.completions, self.engine, self.follower = completions, engine, follower
        self._number = 0

    async def ask(self, blocks, **names):
        completion = await self.completions.complete(blocks, "What now?", **names)
        await self.settle()
        check_integrity(self.follower.pilot, completion)
        return completion

    async def settle(self):
        """Send prompts never seen, until one is followed: so is all before it."""
        deadline, followed = time.monotonic() + PATIENCE, False
        while not followed:
            assert time.monotonic() < deadline, "no event arrived"
            self._number += 1
            await self.completions.complete([], f"{self._number} is a number " * 5)
            prompt = Prompt(self.engine.prompts[-1])
            full = len(prompt.token_ids) // self.engine.page_tokens * self.engine.page_tokens
            for _ in range(100):
                if followed := self.follower.cached_tokens(prompt) == full:
                    break
                await asyncio.sleep(0.002)


def off(completions):
    return [
        (n, c.plan.expected_cached_tokens, c.usage.cached_tokens)
        for n, c in enumerate(completions)
        if c.plan.expected_cached_tokens != c.usage.cached_tokens
    ]


def believed_too_much(engine, completion):
    """How many tokens are believed to be cached beyond the pages that are, but for a started one."""
    blocks = completion.plan.blocks[: completion.plan.expected_cached_blocks]
    believed = len(tokenize("<user>\n" + "\n\n".join(block.render() for block in blocks))) if blocks else 0
    return max(0, believed // engine.page_tokens * engine.page_tokens - completion.usage.cached_tokens)


LONG_RUNS = [("sync", 16, 100), ("sync", 1, 40), ("async", 16, 40)]


class TestSGLang:
    @pytest.mark.parametrize(("connect", "page_tokens", "number"), LONG_RUNS, indirect=["connect"])
    async def test_what_is_expected_is_what_was_cached(self, connect, pilot, follower, page_tokens, number):
        with SGLangStandIn(page_tokens=page_tokens) as engine:
            async with subscribed(follower, engine):
                asking = Asking(connect(engine, pilot, follower=follower), engine, follower)
                found = [await asking.ask(blocks) for blocks in drawn(0, number)]
                assert [body["rid"] for body in engine.bodies if "What" in str(body)] == [
                    completion.plan.request_id for completion in found
                ]
            assert off(found) == []
            assert max(believed_too_much(engine, completion) for completion in found) == 0
            assert follower.noticed[Noticed.CUT] > number / 5
            assert sum(c.usage.cached_tokens for c in found) > 0.1 * sum(c.usage.prompt_tokens for c in found)

    async def test_flush_and_restart(self, connect, sglang, pilot, follower):
        async with subscribed(follower, sglang):
            asking = Asking(connect(sglang, pilot, follower=follower), sglang, follower)
            for shake, noticed in (
                (lambda: openai.OpenAI(base_url=sglang.base_url, api_key="none"), Noticed.CLEARED),
                (sglang.restart, Noticed.RESTARTED),
            ):
                cold, warm = [await asking.ask(BLOCKS[:3]) for _ in range(2)]
                assert (cold.usage.cached_tokens, cold.plan.expected_cached_blocks) == (0, 0)
                assert warm.usage.cached_tokens > 0
                assert off([cold, warm]) == []
                before = follower.noticed[noticed]
                done = shake()
                if done is not None:
                    done.post(sglang.base_url.replace("/v1", "/flush_cache"), cast_to=object)
                    done.close()
                await asking.settle()
                assert follower.noticed[noticed] == before + 1
            last = await asking.ask(BLOCKS[:3])
            assert (last.usage.cached_tokens, last.plan.expected_cached_blocks) == (0, 0)

    @pytest.mark.parametrize("connect", ["sync"], indirect=True)
    async def test_lost_messages_are_replayed(self, connect, sglang, pilot, follower):
        sglang.loses = lambda number: number % 5 == 3
        async with subscribed(follower, sglang):
            asking = Asking(connect(sglang, pilot, follower=follower), sglang, follower)
            found = [await asking.ask(blocks) for blocks in drawn(1, 30)]
        assert off(found) == []
        assert follower.noticed[Noticed.LOST] == 0
        assert follower.noticed[Noticed.CUT] > 10

    @pytest.mark.parametrize("connect", ["sync"], indirect=True)
    async def test_what_is_lost_for_good_is_never_believed(self, connect, pilot, follower):
        with SGLangStandIn(kept_messages=1) as engine:
            engine.loses = lambda number: number % 5 == 3
            async with subscribed(follower, engine):
                asking = Asking(connect(engine, pilot, follower=follower), engine, follower)
                found = [await asking.ask(blocks) for blocks in drawn(2, 25)]
            assert follower.noticed[Noticed.LOST] > 3
            assert all(c.plan.expected_cached_tokens <= c.usage.cached_tokens for c in found)
            assert max(believed_too_much(engine, completion) for completion in found) == 0
            assert any(c.plan.expected_cached_tokens for c in found)

    async def test_tenants_are_apart(self, connect, sglang, pilot, follower):
        async with subscribed(follower, sglang):
            asking = Asking(connect(sglang, pilot, follower=follower), sglang, follower)
            found = [await asking.ask(BLOCKS[:3], tenant=tenant) for tenant in "abab"]
        assert off(found) == []
        assert [c.usage.cached_tokens > 0 for c in found] == [False, False, True, True]


class TestTokenizing:
    @pytest.mark.parametrize(
        "answer",
        [
            (404, {"detail": "Not Found"}),
            (500, {}),
            (200, b"<html>"),
            (200, []),
            (200, {"tokens": "secret"}),
            (200, {"tokens": ["secret"]}),
            (200, {"tokens": [-1]}),
            (200, {"tokens": [2**40]}),
            (200, {"tokens": None}),
        ],
        ids=str,
    )
    async def test_that_fails_is_named_once_and_the_request_goes_out(
        self, connect, sglang, pilot, follower, caplog, answer
    ):
        sglang.tokenizing = answer
        completions = connect(sglang, pilot, follower=follower)
        found = [await completions.complete(BLOCKS[:3], "What now?") for _ in range(3)]
        assert {c.text for c in found} == {" I do not know."}
        assert [c.plan.expected_cached_blocks for c in found] == [0, 3, 3]
        [line] = said(caplog)
        assert "could not be tokenized by the server" in line
        assert "secret" not in caplog.text
        check_integrity(pilot, found[0])

    async def test_that_succeeds_again_is_followed_again(self, connect, sglang, pilot, follower):
        async with subscribed(follower, sglang):
            completions = connect(sglang, pilot, follower=follower)
            asking = Asking(completions, sglang, follower)
            sglang.tokenizing = (404, {})
            await completions.complete(BLOCKS[:3], "What now?")
            sglang.tokenizing = None
            assert off([await asking.ask(BLOCKS[:3])]) == []

    async def test_that_disagrees_with_the_engine_is_named_once(
        self, connect, sglang, pilot, follower, caplog
    ):
        sglang.prefix = tokenize("Be nice. ")
        async with subscribed(follower, sglang):
            completions = connect(sglang, pilot, follower=follower)
            found = [await completions.complete(BLOCKS[:3], "What now?") for _ in range(3)]
            check_integrity(pilot, found[0])
        [line] = said(caplog)
        assert f"of {found[0].usage.prompt_tokens} tokens, but tokenizes it as" in line

    @pytest.mark.parametrize("name", ["llama.cpp", "plain"])
    async def test_that_an_engine_does_not_know_is_named_once_and_not_asked(
        self, connect, start, pilot, follower, caplog, name
    ):
        engine = start(name)
        completions = connect(engine, pilot, follower=follower)
        for _ in range(3):
            assert (await completions.complete(BLOCKS[:2], "What now?")).text == "An answer."
        assert len(engine.bodies) == 3
        [line] = said(caplog)
        assert "does not tell the tokens of a prompt" in line

    async def test_that_is_slow_holds_up_few_requests(
        self, connect, sglang, pilot, follower, caplog, monkeypatch
    ):
        monkeypatch.setattr(Planner, "tokenize_timeout", 0.2)
        sglang.tokenizing_waits.clear()
        completions = connect(sglang, pilot, follower=follower)
        asked = []
        for _ in range(14):
            assert (await completions.complete(BLOCKS[:3], "What now?")).text == " I do not know."
            asked.append(sglang.asked_to_tokenize)
        # One fails, a second one fails and two are passed over, a third fails and six are.
        assert asked == [1, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 4, 4, 4]
        [line] = said(caplog)
        assert "could not be tokenized by the server (APITimeoutError)" in line

        sglang.tokenizing_waits.set()
        monkeypatch.undo()
        async with subscribed(follower, sglang):
            for _ in range(14):  # The rest of those that are passed over.
                await completions.complete([], "What else?")
            asking = Asking(completions, sglang, follower)
            assert off([await asking.ask(BLOCKS[:3]) for _ in range(4)]) == []

    async def test_is_done_once_for_a_request_that_is_sent_again(self, connect, sglang, pilot, follower):
        sglang.failures = 2
        completions = connect(sglang, pilot, follower=follower)
        await completions.complete(BLOCKS[:3], "What now?")
        assert (len(sglang.bodies), sglang.asked_to_tokenize) == (3, 2)  # With the empty message.

    async def test_without_a_follower_nobody_is_asked(self, connect, sglang, pilot, caplog):
        sglang.tokenizing = (500, {})
        await connect(sglang, pilot).complete(BLOCKS[:3], "What now?")
        assert said(caplog) == []


class TestEvents:
    async def test_a_late_stream_is_caught_up_with(self, connect, sglang, pilot, follower):
        async with subscribed(follower, sglang):
            completions = connect(sglang, pilot, follower=follower)
            asking = Asking(completions, sglang, follower)
            await asking.settle()
            for seed in range(2):
                sglang.late = True
                for blocks in drawn(seed, 15):  # All of these are expected blindly.
                    check_integrity(pilot, await completions.complete(blocks, "What now?"))
                sglang.late = False
                await asking.settle()
                found = [await asking.ask(blocks) for blocks in drawn(10 + seed, 15)]
                assert off(found) == []
                assert max(believed_too_much(sglang, completion) for completion in found) == 0
            assert follower.noticed[Noticed.LOST] == 0

    @pytest.mark.parametrize("heard", [1, 2])
    async def test_two_engines_behind_one_address(self, connect, sglang, pilot, follower, heard):
        """What one of them holds is believed, though the other may be asked: hits are lost, and no more."""
        with SGLangStandIn() as second, routed(sglang, second) as router:
            engines = [sglang, second]
            async with AsyncExitStack() as stack:
                for engine in engines[:heard]:
                    await stack.enter_async_context(subscribed(follower, engine))
                completions = connect(router, pilot, follower=follower)
                for number, blocks in enumerate(drawn(4, 40)):
                    completion = await completions.complete(blocks, "What now?")
                    assert completion.text == " I do not know."
                    check_integrity(pilot, completion)
                    if number == 30:
                        second.restart()
            assert all(len(engine.prompts) == 20 for engine in engines)
            noticed = follower.noticed
            assert noticed[Noticed.CUT] > 0
            assert noticed[Noticed.LOST] == noticed[Noticed.GARBAGE] == 0

    async def test_no_stream_at_all(self, connect, sglang, pilot, follower):
        completions = connect(sglang, pilot, follower=follower)
        found = [await completions.complete(blocks, "What now?") for blocks in drawn(0, 20)]
        assert {c.plan.expected_cached_tokens for c in found} == {0}
        assert sum(c.plan.expected_cached_blocks for c in found) > 0
        check_integrity(pilot, found[0])


@contextmanager
def routed(*engines):
    """Send each request for a completion to the next engine, and all else to the first."""
    turns = itertools.cycle(engines)
    client = httpx.Client()

    class Router(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            self.forward(engines[0])

        def do_POST(self):
            self.forward(next(turns) if self.path.endswith("/completions") else engines[0])

        def forward(self, engine):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            url = f"{engine.base_url.removesuffix('/v1')}{self.path}"
            answer = client.request(self.command, url, content=body)
            self.send_response(answer.status_code)
            self.send_header("Content-Type", answer.headers["Content-Type"])
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Router)
    server.base_url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        client.close()


def test_a_follower_of_another_pilots_cache_is_refused(pilot):
    other = CacheFollower(ContextPilot())
    sync, asynchronous = openai.OpenAI(api_key="none"), openai.AsyncOpenAI(api_key="none")
    for make in (
        lambda: Completions(pilot, sync, model="m", follower=other),
        lambda: AsyncCompletions(pilot, asynchronous, model="m", follower=other),
    ):
        with pytest.raises(ValueError, match="for the same pilot"):
            make()
