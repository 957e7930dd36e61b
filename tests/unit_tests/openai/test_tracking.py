"""Which tokens of a prompt a follower is told to be whose."""

import pytest

from contextpilot_integrations import ContextBlock, ContextPilot, Namespace
from contextpilot_integrations.engines import PLAIN, SGLANG, VLLM, Server
from contextpilot_integrations.engines.cache_follower import CacheFollower
from contextpilot_integrations.openai import tracking
from contextpilot_integrations.openai.exchange import Exchange
from contextpilot_integrations.openai.tracking import PromptTracker

BLOCKS = [ContextBlock("a", "one two three"), ContextBlock("b", "four five"), ContextBlock("c", "six")]
ON_VLLM = Server(VLLM)


def tokenized(body):
    """A token a word; the template writes the tools first, each message behind its role, and a last word."""
    text = " ".join(
        [
            *(f"<tool> {tool}" for tool in body.get("tools", ())),
            *(f"<{message['role']}> {message['content']} <end>" for message in body["messages"]),
            "<answer>",
        ]
    )
    return [sum(word.encode()) * 1000 + len(word) for word in text.split()]


def count(text):
    return len(text.split())


class Follower(CacheFollower):
    """Notes what it is told."""

    def __init__(self):
        super().__init__(ContextPilot())
        self.told = []

    def track(self, plan, prompt, block_ends):
        self.told.append((plan, prompt, tuple(block_ends)))
        return super().track(plan, prompt, block_ends)


@pytest.fixture
def follower():
    return Follower()


@pytest.fixture
def tracker(follower):
    return PromptTracker(follower, count)


def exchange_of(follower, blocks=BLOCKS, *, system="Be brief.", tenant="", question="Why not ?", **params):
    plan = follower.pilot.prepare(blocks, namespace=Namespace(tenant=tenant))
    text = "\n\n".join(part for part in (plan.render(), question) if part)
    messages = [{"role": "system", "content": system}, {"role": "user", "content": text}]
    return Exchange(plan, messages, "m", "", params)


def track(tracker, exchange, server=ON_VLLM):
    bodies = tracker.bodies(exchange)
    tracker.track(exchange, server, [{"tokens": tokenized(body)} for body in bodies])
    return len(bodies)


def test_blocks_end_where_their_words_do(tracker, follower):
    track(tracker, exchange_of(follower))
    [(plan, prompt, ends)] = follower.told
    # <system> Be brief. <end> <user>, then each block's marker and words.
    assert ends == (5 + 4, 5 + 4 + 3, 5 + 4 + 3 + 2)
    assert len(prompt.token_ids) == 5 + 9 + 3 + 2
    assert plan.blocks == tuple(BLOCKS)


def test_where_the_message_stands_is_asked_once_a_template(tracker, follower):
    assert [track(tracker, exchange_of(follower)) for _ in range(3)] == [2, 1, 1]
    assert track(tracker, exchange_of(follower, BLOCKS[1:], question="What else is there ?")) == 1
    assert follower.told[-1][2] == (5 + 3, 5 + 3 + 2)


@pytest.mark.parametrize(
    "other",
    [
        {"system": "Be as long as you like."},
        {"tools": ["look_up", "write down"]},
        {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}},
        {"reasoning_effort": "high"},
    ],
    ids=str,
)
def test_another_template_is_asked_about_anew(tracker, follower, other):
    track(tracker, exchange_of(follower))
    exchange = exchange_of(follower, **other)
    assert track(tracker, exchange) == 2
    before = tokenized(tracker.bodies(exchange)[0]).index(tokenized({"messages": [BLOCK_MESSAGE]})[1])
    assert follower.told[-1][2] == (before + 4, before + 4 + 3, before + 4 + 3 + 2)


BLOCK_MESSAGE = {"role": "user", "content": "[CB_a]"}


def test_what_no_template_sees_is_not_asked_about(tracker, follower):
    track(tracker, exchange_of(follower))
    assert track(tracker, exchange_of(follower, temperature=0.5, max_tokens=3)) == 1
    [body] = tracker.bodies(exchange_of(follower, temperature=0.5, tools=["look_up"]))[:1]
    assert body.keys() == {"model", "messages", "tools"}


def test_the_templates_remembered_are_bounded(tracker, follower, monkeypatch):
    monkeypatch.setattr(tracking, "_MOST_TEMPLATES", 3)
    for n in range(10):
        assert track(tracker, exchange_of(follower, system=f"S{n}")) == 2
        assert len(tracker._margins) <= 3
    assert track(tracker, exchange_of(follower, system="S9")) == 1
    assert track(tracker, exchange_of(follower, system="S0")) == 2


def test_a_prompt_without_blocks_is_tracked_whole(tracker, follower):
    exchange = exchange_of(follower, [])
    assert track(tracker, exchange) == 1
    assert follower.told[0][2] == ()
    assert exchange.tracked_tokens == len(follower.told[0][1].token_ids) == 5 + 3 + 2


@pytest.mark.parametrize(("engine", "salt"), [(VLLM, "t"), (SGLANG, "t"), (PLAIN, None)])
def test_salt_and_adapter_are_what_the_engine_is_told(tracker, follower, engine, salt):
    track(tracker, exchange_of(follower, tenant="t"), Server(engine, adapter="lora"))
    track(tracker, exchange_of(follower), Server(engine))
    assert [(prompt.salt, prompt.lora) for _, prompt, _ in follower.told] == [(salt, "lora"), (None, None)]


@pytest.mark.parametrize("answer", [None, [], {}, {"tokens": None}, {"tokens": "12"}])
def test_an_answer_without_tokens_is_refused(tracker, follower, answer):
    exchange = exchange_of(follower)
    with pytest.raises(ValueError, match="has no tokens"):
        tracker.track(exchange, Server(VLLM), [answer, answer])
    assert exchange.tracked_tokens is None
    assert follower.told == []
