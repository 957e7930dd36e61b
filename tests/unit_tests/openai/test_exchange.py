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


def tool_call(arguments, index=0, id=None, name=None):
    part = {"index": index, "id": id, "function": {"name": name, "arguments": arguments}}
    return ChatCompletionChunk.construct(choices=[{"index": 0, "delta": {"tool_calls": [part]}}])


def tool_calls(exchange):
    return [(c.id, c.function.name, c.function.arguments) for c in exchange.completion.tool_calls]


def test_tool_calls_are_put_together(exchange):
    exchange.add(tool_call("", id="a", name="look_up"))
    exchange.add(tool_call('{"word": '))
    begun = exchange.completion.tool_calls
    exchange.add(tool_call('"oak"}'))
    exchange.add(tool_call("{}", 1, id="b", name="list"))
    assert tool_calls(exchange) == [("a", "look_up", '{"word": "oak"}'), ("b", "list", "{}")]
    assert begun[0].function.arguments == '{"word": '


def test_names_and_ids_that_are_repeated_stand_once(exchange):
    exchange.add(tool_call("{", id="a", name="list"))
    exchange.add(tool_call("}", id="a", name="list"))
    assert tool_calls(exchange) == [("a", "list", "{}")]


def test_tool_calls_without_numbers_come_whole(exchange):
    exchange.add(tool_call("{}", None, id="a", name="look_up"))
    exchange.add(tool_call("{}", None, id="b", name="list"))
    assert tool_calls(exchange) == [("a", "look_up", "{}"), ("b", "list", "{}")]


def test_a_tool_call_without_a_function_is_one_all_the_same(exchange):
    exchange.add(chunk({"tool_calls": [{"index": 0, "id": "a"}]}))
    assert tool_calls(exchange) == [("a", "", "")]


def test_tool_calls_of_other_choices_are_left_out(exchange):
    exchange.add(chunk({"tool_calls": [{"index": 0, "id": "a"}]}, index=1))
    assert tool_calls(exchange) == []
