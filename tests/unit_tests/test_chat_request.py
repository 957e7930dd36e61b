import pytest

from contextpilot_integrations import ContextBlock, Namespace
from contextpilot_integrations.chat_request import ChatRequest

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": "u"}}, {"type": "text", "text": "t"}],
    },
    {"role": "assistant", "content": None, "tool_calls": []},
    {"role": "tool", "tool_call_id": "1", "content": "x"},
]


def test_a_plain_body():
    request = ChatRequest.from_body({"messages": MESSAGES})
    assert request == ChatRequest(MESSAGES)
    assert request.messages is MESSAGES


def test_what_the_caller_knows():
    request = ChatRequest.from_body(
        {
            "model": "m",
            "messages": MESSAGES,
            "tools": [{"type": "function"}],
            "contextpilot": {"blocks": [{"id": "a", "text": "x"}, {"id": 2, "text": ""}], "tenant": "acme"},
        },
        endpoint="http://here",
    )
    assert request.blocks == (ContextBlock("a", "x"), ContextBlock(2, ""))
    assert request.namespace == Namespace("http://here", "m", "acme", '[{"type": "function"}]')


def test_other_tools_are_another_namespace():
    one, other = (
        ChatRequest.from_body({"messages": [], "tools": [{"name": name}]}).namespace for name in ("a", "b")
    )
    assert one != other


def with_message(message):
    return {"messages": [*MESSAGES, message]}


def with_caller(caller):
    return {"messages": MESSAGES, "contextpilot": caller}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, 'there is no "messages"'),
        ({"messages": "hello"}, "\"messages\" must be a list of chat messages, not 'hello'"),
        (with_message("hello"), "message 4 must be an object, not 'hello'"),
        (with_message({"content": "x"}), 'message 4 has no "role"'),
        (with_message({"role": 1, "content": "x"}), 'message 4 has no "role"'),
        (with_message({"role": "user", "content": 7}), "the content of message 4 must be a string"),
        (
            with_message({"role": "user", "content": {"text": "x"}}),
            "the content of message 4 must be a string",
        ),
        (with_message({"role": "user", "content": ["x"]}), "part 0 of message 4 must be an object"),
        (with_message({"role": "user", "content": [{"text": 7}]}), "part 0 of message 4 must be an object"),
        (
            with_message({"role": "assistant", "tool_calls": "x"}),
            "the tool calls of message 4 must be",
        ),
        (
            with_message({"role": "assistant", "tool_calls": [7]}),
            "the tool calls of message 4 must be",
        ),
        ({"messages": [], "model": 7}, '"model" must be a string, not 7'),
        (with_caller("acme"), "\"contextpilot\" must be an object, not 'acme'"),
        (with_caller({"tenant": 7}), '"tenant" must be a string, not 7'),
        (with_caller({"blockz": []}), '"contextpilot" may hold "blocks" and "tenant", not [\'blockz\']'),
        (with_caller({"blocks": {}}), '"blocks" must be a list'),
        (with_caller({"blocks": ["x"]}), '"blocks" must hold objects'),
        (with_caller({"blocks": [{"id": True, "text": "x"}]}), '"blocks" must hold objects'),
        (with_caller({"blocks": [{"id": "a"}]}), '"blocks" must hold objects'),
    ],
)
def test_what_is_wrong_is_said_in_one_line(body, reason):
    with pytest.raises(ValueError, match=r"^[^\n]+$") as raised:
        ChatRequest.from_body(body)
    assert str(raised.value).startswith(reason)
