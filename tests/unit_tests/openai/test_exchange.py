"""Which chunk of an answer is its first token, and when an answer is whole."""

import pytest
from openai.types.chat import ChatCompletionChunk

from contextpilot_integrations import Plan
from contextpilot_integrations.openai.exchange import Exchange


def chunk(delta, finish_reason=None, index=0):
    choice = {"index": index, "delta": delta, "finish_reason": finish_reason}
    head = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m"}
    return ChatCompletionChunk.model_validate({**head, "choices": [choice]})


@pytest.fixture
def exchange():
    return Exchange(Plan((), ()), [], "m", "", {})


@pytest.mark.parametrize("delta", [{}, {"role": "assistant"}, {"role": "assistant", "content": ""}])
def test_the_role_alone_is_no_token(exchange, delta):
    exchange.add(chunk(delta))
    assert not exchange.began
    assert exchange.completion.ttft is None


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "An "},
        {"reasoning_content": "Hm."},
        {"reasoning": "Hm."},
        {"tool_calls": [{"index": 0, "function": {"name": "look_up"}}]},
    ],
)
def test_tokens_of_any_kind_are_tokens(exchange, delta):
    told = []
    exchange.on_first_token = lambda: told.append(True)
    assert exchange.add(chunk(delta)) == delta.get("content", "")
    exchange.add(chunk(delta))
    assert exchange.began
    assert told == [True]


def test_an_answer_of_no_tokens_has_been_computed_too(exchange):
    exchange.add(chunk({}, "stop"))
    assert exchange.began


def test_the_first_choice_is_the_text(exchange):
    exchange.add(chunk({"content": "one"}))
    exchange.add(chunk({"content": "another"}, "stop", index=1))
    assert exchange.completion.text == "one"
    with pytest.raises(ConnectionError, match="before the answer had ended"):
        exchange.end("text/event-stream")
    exchange.add(chunk({}, "length"))
    exchange.end("text/event-stream")
    assert exchange.completion.finish_reason == "length"
