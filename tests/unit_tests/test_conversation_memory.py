import json
import os
import subprocess
import sys
from collections import UserDict

import pytest

from contextpilot_integrations import Namespace
from contextpilot_integrations.conversation_memory import (
    Conversation,
    ConversationMemory,
    Decision,
    conversation_keys,
)

MESSAGES = [
    {"role": "user", "content": "Naïve 東京 🙂 \ud800, 1.5", "n": -1},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "function": {"arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "x", "ok": True, "at": 1.5}]},
]


def key_of(*messages):
    return conversation_keys(Namespace(), messages)[-1]


@pytest.mark.parametrize("seed", ["1", "2"])
def test_keys_are_equal_in_every_process(seed):
    code = (
        "import json, sys\n"
        "from contextpilot_integrations import Namespace\n"
        "from contextpilot_integrations.conversation_memory import conversation_keys\n"
        "for key in conversation_keys(Namespace(tenant='t'), json.load(sys.stdin)): print(key.hex())"
    )
    env = {**os.environ, "PYTHONHASHSEED": seed}
    given = json.dumps(MESSAGES)
    there = subprocess.run([sys.executable, "-c", code], input=given, env=env, capture_output=True, text=True)
    assert there.stdout.split() == [k.hex() for k in conversation_keys(Namespace(tenant="t"), MESSAGES)]


def test_other_messages_have_other_keys():
    first, second, _ = MESSAGES
    keys = [
        *conversation_keys(Namespace(), MESSAGES),
        *conversation_keys(Namespace(tenant="t"), MESSAGES),
        key_of({**first, "n": -2}),  # Whose hash is that of -1.
        key_of({**first, "n": True}),
        key_of({**first, "n": "-1"}),
        key_of(second),
        key_of(second, first),
        key_of({"role": "user", "content": "ab"}, {"role": "c"}),
        key_of({"role": "user", "content": "a"}, {"role": "bc"}),
        key_of({"role": "user", "content": ["ab", "c"]}),
        key_of({"role": "user", "content": ["a", "bc"]}),
    ]
    assert len({*keys}) == len(keys)


class Secret(str):
    """Tells its text to nobody who asks for its repr."""

    def __repr__(self):
        return "***"


@pytest.mark.parametrize("wrapped", [Secret, lambda text: UserDict(text=text), lambda text: [Secret(text)]])
def test_texts_of_other_kinds_count_as_what_they_are(wrapped):
    assert key_of({"content": wrapped("a")}) == key_of({"content": wrapped("a")})
    assert key_of({"content": wrapped("a")}) != key_of({"content": wrapped("b")})


def test_another_mapping_counts_by_what_it_holds_now():
    message = UserDict(content="a")
    before = key_of(message)
    assert before == key_of(UserDict(content="a"))
    message["content"] = "b"
    assert key_of(message) != before


def test_what_cannot_be_compared_is_taken_for_new():
    message = {"content": [object()]}
    assert key_of(message) != key_of(message)


class TestMemory:
    @pytest.fixture
    def now(self):
        return [0.0]

    @pytest.fixture
    def memory(self, now):
        return ConversationMemory(100_000, max_age=10.0, clock=lambda: now[0])

    def test_the_longest_conversation_is_continued_and_lent_to_one_alone(self, memory):
        keys = conversation_keys(Namespace(), MESSAGES)
        shorter, longer = Conversation(length=1), Conversation(length=2)
        memory.put(keys[0], shorter)
        memory.put(keys[1], longer)
        assert memory.take(keys) is longer
        assert memory.take(keys) is shorter
        assert memory.take(keys) is None

    def test_what_is_old_is_forgotten(self, memory, now):
        memory.put(b"a", Conversation())
        memory.decide(b"a", Decision(order=(1, 0)))
        now[0] = 11.0
        assert memory.take([b"a"]) is None
        assert memory.decided(b"a") is None

    def test_the_least_recently_used_go_first(self, memory):
        for key in (b"a", b"b", b"c"):
            talk = Conversation()
            talk.transcript.size = 40_000
            memory.put(key, talk)
        assert memory.take([b"a"]) is None
        assert memory.take([b"b"])
        assert memory.take([b"c"])
